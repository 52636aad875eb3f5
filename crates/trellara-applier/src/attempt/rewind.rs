//! Reading again what was applied, because an operator asked for it: everything is confirmed to be
//! in the ledger and skipped, nothing moves and nothing is written.

use std::time::Instant;

use trellara_envelope::{FrameDigest, StreamSequence};

mod place;

use super::Attempt;
use crate::machine::{self, Delivered};
use crate::rewind::{Answer, Report, Request, answer_channel};
use crate::trouble::Trouble;

/// A rewind under way.
pub(super) struct Rewinding {
    token: String,
    /// The frame where the lane stood.
    until: (StreamSequence, FrameDigest),
    began: Instant,
    report: Report,
}

impl Attempt<'_> {
    /// Moves the consumer back to a place that was passed before.
    pub(super) async fn rewind(&mut self, request: Request) -> Result<(), Trouble> {
        let token = request.token;
        let running = self.rewinding.as_ref().map(|rewinding| &rewinding.token);
        if running == Some(&token) || self.rewound.as_ref() == Some(&token) {
            // It was repeated before our answer was heard.
            return Ok(());
        }
        if running.is_some() {
            let reason = "another rewind is still running".to_owned();
            return self.answer(&token, &Answer::Failed { reason }).await;
        }
        if let Some(run) = self.fenced_by() {
            // It would read the held frame again, and the run would wait for all of it.
            let reason = format!("verify run {run} holds the lane; try again when it has ended");
            return self.answer(&token, &Answer::Failed { reason }).await;
        }
        if self.holds_for_pause() {
            // What it would read again lies before a frame that was read already.
            let reason =
                "the lane was paused while a verify run held it; resume it first".to_owned();
            return self.answer(&token, &Answer::Failed { reason }).await;
        }
        if self.waits_for_copy() {
            let reason = "the lane waits for a copy; try again when it is in".to_owned();
            return self.answer(&token, &Answer::Failed { reason }).await;
        }
        if let Some(blocked) = &self.quarantine.blocked {
            let reason = format!("the lane stands still for held transaction {}", blocked.id);
            return self.answer(&token, &Answer::Failed { reason }).await;
        }
        // Afterwards nothing is in flight, and whatever comes again was applied.
        self.write_down().await?;
        let Some(until) = self.machine.last_seen() else {
            let reason = "no frame was read since the stream was replaced".to_owned();
            return self.answer(&token, &Answer::Failed { reason }).await;
        };
        let first = match self.first_of(request.to, until.0).await? {
            Ok(Some(first)) => first,
            Ok(None) => return self.answer(&token, &Answer::Done(Report::default())).await,
            Err(reason) => return self.answer(&token, &Answer::Refused { reason }).await,
        };
        tracing::info!(to = %request.to, %first, until = %until.0, "rewinding, as asked for");
        self.consumer.reposition(first).await?;
        self.again = None;
        let before = self.status.snapshot();
        self.rewinding = Some(Rewinding {
            token: token.clone(),
            until,
            began: Instant::now(),
            report: Report {
                first: first.0,
                until: until.0.0,
                confirmed: before.duplicate_transactions,
                below_watermark: before.dedup.below_watermark,
                probes: before.dedup.probes,
                rows_read: before.dedup.rows_read,
                rows_written: before.changes + self.durable.ordinal.0.cast_unsigned(),
                ..Report::default()
            },
        });
        let until = until.0;
        self.answer(&token, &Answer::Began { first, until }).await
    }

    /// A frame that was read before. The chain was proved then; now every transaction in it is
    /// looked up, and the frame where the lane stood proves that the stream is still the same.
    pub(super) async fn pass_again(&mut self, opened: &Delivered) -> Result<(), Trouble> {
        let Some(rewinding) = &self.rewinding else {
            return Ok(());
        };
        let (until, digest) = rewinding.until;
        let another =
            opened.sequence > until || (opened.sequence == until && opened.digest != digest);
        if another {
            return Err(rewritten(opened));
        }
        if self.was_passed_over(opened).await? {
            return Ok(());
        }
        if opened.frame.header.position > self.machine.end_lsn() {
            return Err(rewritten(opened));
        }
        if let Some(rewinding) = &mut self.rewinding {
            rewinding.report.frames += 1;
            rewinding.report.transactions += machine::entries(&opened.frame.body).len() as u64;
        }
        self.count_duplicate(opened);
        self.claim(opened, 0).await?;
        if opened.sequence == until {
            self.confirm().await?;
            self.rewound().await?;
        }
        Ok(())
    }

    async fn rewound(&mut self) -> Result<(), Trouble> {
        let Some(rewinding) = self.rewinding.take() else {
            return Ok(());
        };
        // The consumer's own floor is a mirror for operators; it went back with the consumer.
        self.consumer.ack(self.durable.transport.sequence);
        self.again = None;
        let now = self.status.snapshot();
        let before = rewinding.report;
        let written = now.changes + self.durable.ordinal.0.cast_unsigned();
        let below_watermark = now.dedup.below_watermark - before.below_watermark;
        let duplicates = now.duplicate_transactions - before.confirmed;
        let report = Report {
            confirmed: duplicates - below_watermark,
            below_watermark,
            probes: now.dedup.probes - before.probes,
            rows_read: now.dedup.rows_read - before.rows_read,
            rows_written: written - before.rows_written,
            milliseconds: u64::try_from(rewinding.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..before
        };
        tracing::info!(
            transactions = report.transactions,
            below_watermark = report.below_watermark,
            probes = report.probes,
            "passed the old place"
        );
        self.answer(&rewinding.token, &Answer::Done(report)).await?;
        self.rewound = Some(rewinding.token);
        // A verify run may have asked meanwhile.
        Box::pin(self.look_at_fence()).await
    }

    /// What ended the attempt ended the rewind.
    pub(super) async fn rewind_failed(&mut self, trouble: &Trouble) {
        let Some(rewinding) = self.rewinding.take() else {
            return;
        };
        let reason = match trouble {
            Trouble::Passing(reason) | Trouble::Disturbed { reason, .. } => reason.clone(),
            Trouble::Halted { halt, .. } => halt.to_string(),
            Trouble::Cancelled => "the applier was stopped".to_owned(),
        };
        // Lost with the connection it is lost: the command has a time limit.
        let _ = self
            .answer(&rewinding.token, &Answer::Failed { reason })
            .await;
    }

    async fn answer(&self, token: &str, answer: &Answer) -> Result<(), Trouble> {
        let channel = answer_channel(&self.options.flow);
        self.target
            .client()
            .execute(
                "SELECT pg_notify($1, $2)",
                &[&channel, &answer.payload(token)],
            )
            .await?;
        Ok(())
    }
}

fn rewritten(opened: &Delivered) -> Trouble {
    Trouble::passing(format!(
        "the stream changed while it was read again (sequence {}); finding the place anew",
        opened.sequence
    ))
}
