//! Everything delivered once more because somebody asked for it.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio_postgres::{AsyncMessage, NoTls};
use trellara_applier::channel;
pub(crate) use trellara_applier::rewind::Answer;
use trellara_applier::rewind::{Place, Report, Request, answer_channel};
use trellara_envelope::{HaltCode, Lane, Lsn, StreamSequence};
use trellara_jetstream::trim;

use crate::dedup::{dedup, sql, written_down};
use crate::flow::{Flow, PATIENCE};

/// Asks for a rewind and waits for its end.
pub(crate) async fn rewind(flow: &Flow) -> Answer {
    rewind_and(flow, async || ()).await
}

/// The same with something that is done right after it was asked for.
pub(crate) async fn rewind_and(flow: &Flow, then: impl AsyncFnOnce()) -> Answer {
    rewind_as(flow, (Place::Oldest, &token()), then).await
}

/// Asks for a rewind to a place and waits for its end.
async fn rewind_to(flow: &Flow, to: Place) -> Answer {
    rewind_as(flow, (to, &token()), async || ()).await
}

fn token() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

async fn rewind_as(flow: &Flow, (to, token): (Place, &str), then: impl AsyncFnOnce()) -> Answer {
    let (listener, mut connection) = tokio_postgres::connect(&flow.target.url, NoTls)
        .await
        .unwrap();
    let (heard, mut answers) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) =
            std::future::poll_fn(|context| connection.poll_message(context)).await
        {
            if let AsyncMessage::Notification(one) = message {
                let _ = heard.send(one.payload().to_owned());
            }
        }
    });
    let answer = answer_channel(&flow.name);
    listener
        .batch_execute(&format!("LISTEN \"{answer}\""))
        .await
        .unwrap();
    ask(flow, &listener, (to, token)).await;
    then().await;
    let wait = async {
        loop {
            let payload = answers.recv().await.expect("a connection");
            match Answer::parse(&payload, token) {
                Some(Answer::Began { .. }) | None => {}
                Some(end) => return end,
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("an answer")
}

async fn ask(flow: &Flow, client: &tokio_postgres::Client, (to, token): (Place, &str)) {
    let request = Request {
        to,
        token: token.to_owned(),
    };
    let words = [channel(&flow.name), request.payload()];
    client
        .execute("SELECT pg_notify($1, $2)", &[&words[0], &words[1]])
        .await
        .unwrap();
}

/// Every row version of the target: nothing can be written without another answer.
async fn row_versions(flow: &Flow) -> String {
    let mut all = Vec::new();
    for table in [
        "public.t",
        "trellara.applied",
        "trellara.watermark",
        "trellara.lane",
    ] {
        let versions = format!(
            "SELECT count(*)::text || ' ' || \
                    coalesce(sum(hashtextextended(ctid::text || ' ' || xmin::text, 0)), 0)::text \
               FROM {table}"
        );
        let row = flow.target.client.query_one(&versions, &[]).await.unwrap();
        all.push(format!("{table} {}", row.get::<_, String>(0)));
    }
    all.join(", ")
}

#[tokio::test]
async fn a_rewind_skips_thousands_and_writes_nothing() {
    for version in [15, 18] {
        let mut flow = Flow::new(version).await;
        flow.marker().await;
        let ids: Vec<[i32; 1]> = (0..100).map(|id| [id]).collect();
        let hundred: Vec<&[i32]> = ids.iter().map(<[i32; 1]>::as_slice).collect();
        for round in 0..50 {
            flow.bundle(&hundred).await;
            if round % 10 == 9 {
                flow.marker().await;
                flow.large(&[1, 2], |_| {}).await;
            }
        }
        let applier = flow.start();
        flow.caught_up().await;
        written_down(&mut flow).await;
        let before = row_versions(&flow).await;
        let Answer::Done(report) = rewind(&flow).await else {
            panic!("not done");
        };
        assert_eq!(report.transactions, 5005, "{report:?}");
        assert_eq!(
            (report.confirmed, report.below_watermark),
            (5005, 0),
            "{report:?}"
        );
        assert_eq!(report.rows_written, 0, "{report:?}");
        assert_eq!((report.first, report.until), (1, flow.sequence));
        assert!((1..=60).contains(&report.probes), "{report:?}");
        assert_eq!(row_versions(&flow).await, before);
        // It goes on where it stood.
        flow.bundle(&[&[5000]]).await;
        flow.caught_up().await;
        let snapshot = applier.status.snapshot();
        assert_eq!(snapshot.duplicate_transactions, 5005);
        assert_eq!(snapshot.transactions, 5006);
        applier.stop().await;
        let rows = flow.target.rows().await;
        assert!(rows.ends_with("5000:1"), "{rows}");
    }
}

/// Whoever asks does not know whether anybody listened, and asks again.
#[tokio::test]
async fn a_request_that_is_repeated_is_one_request() {
    let (flow, applier) = Flow::applied(18, &[&[1], &[2]]).await;
    let again = async || {
        for _ in 0..3 {
            ask(&flow, &flow.target.client, (Place::Oldest, "a-test")).await;
        }
    };
    let answer = rewind_as(&flow, (Place::Oldest, "a-test"), again).await;
    let Answer::Done(report) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(report.transactions, 2, "{report:?}");
    applier.stop().await;
}

/// A rewind proves what it reads: a transaction that is not in the ledger is not passed by.
#[tokio::test]
async fn a_rewind_over_a_transaction_that_the_ledger_lacks_fails_by_name() {
    let (flow, applier) = Flow::applied(18, &[&[1]]).await;
    sql(
        &flow,
        "UPDATE trellara.applied SET hashes = decode(repeat('ab', 16), 'hex') \
          WHERE length(hashes) > 0",
    )
    .await;
    let answer = rewind(&flow).await;
    let Answer::Failed { reason } = answer else {
        panic!("{answer:?}");
    };
    assert!(reason.starts_with("DIVERGED"), "{reason}");
    assert_eq!(applier.halt().await.code, HaltCode::Diverged);
}

#[tokio::test]
async fn a_rewind_of_a_purged_stream_has_nothing_to_read() {
    let mut flow = Flow::new(18).await;
    let applier = flow.start();
    flow.marker().await;
    written_down(&mut flow).await;
    let answer = rewind(&flow).await;
    let Answer::Done(report) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!((report.transactions, report.probes), (0, 0));
    assert_ne!(report, Report::default(), "genesis and marker were there");
    applier.stop().await;
}

/// A frame of a writer that had lost the stream stays in it. It was passed over, and is again: also
/// where the marker that took over before it was trimmed.
#[tokio::test]
async fn a_rewind_passes_over_what_was_passed_over_before() {
    let ends_beyond: &[&[i32]] = &[&[8], &[8], &[9]];
    let ends_below: &[&[i32]] = &[&[9]];
    for garbage in [ends_beyond, ends_below] {
        for trimmed in [false, true] {
            let mut flow = Flow::new(18).await;
            let overtaken = flow.overtaken(garbage).await;
            let applier = flow.start();
            flow.caught_up().await;
            written_down(&mut flow).await;
            if trimmed {
                let lane = flow.name.transactions_subject(Lane(0));
                for subject in [lane, flow.name.mark_subject()] {
                    let stream = flow.name.stream();
                    trim::purge_to(&flow.broker, &stream, &subject, overtaken)
                        .await
                        .unwrap();
                }
            }
            let answer = rewind(&flow).await;
            let Answer::Done(report) = answer else {
                panic!("{answer:?}");
            };
            let of_ours = if trimmed { 1 } else { 2 };
            assert_eq!(report.transactions, of_ours, "{report:?}");
            assert_eq!(report.confirmed, of_ours, "{report:?}");
            applier.stop().await;
            assert_eq!(flow.target.rows().await, "1:1 2:1");
        }
    }
}

/// C44: a range that was published twice is looked up where its transactions end, and not from
/// there to where the next ones do.
#[tokio::test]
async fn c44_what_comes_again_from_far_apart_is_looked_up_in_pieces() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    let mut options = flow.options();
    // A ledger row for each.
    options.batch_transactions = 1;
    let applier = flow.start_with(options);
    for id in 0..100 {
        flow.bundle(&[&[id]]).await;
    }
    flow.caught_up().await;
    applier.stop().await;
    let end = flow.position;
    for _ in 0..10 {
        for from in [0x100, end - 0x10] {
            flow.go_back_to(from);
            flow.marker().await;
            flow.bundle(&[&[7]]).await;
        }
    }
    flow.bundle(&[&[100]]).await;
    let applier = flow.start();
    flow.caught_up().await;
    let seen = dedup(&applier);
    assert!(seen.rows_read <= 20, "one for each: {seen:?}");
    let answer = rewind(&flow).await;
    let Answer::Done(report) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(report.confirmed, 121, "{report:?}");
    assert!(report.rows_read <= 121, "one for each: {report:?}");
    applier.stop().await;
    assert_eq!(flow.target.rows().await.split(' ').count(), 101);
}

async fn done(flow: &Flow, to: Place) -> Report {
    match rewind_to(flow, to).await {
        Answer::Done(report) => report,
        other => panic!("{to}: {other:?}"),
    }
}

async fn refused(flow: &Flow, to: Place) -> String {
    match rewind_to(flow, to).await {
        Answer::Refused { reason } => reason,
        other => panic!("{to}: {other:?}"),
    }
}

/// Whatever the ledger's rows cover: one transaction each, or all of them together.
#[tokio::test]
async fn a_rewind_to_a_place_begins_at_the_frame_that_is_there() {
    for (version, batch) in [(15, 1), (18, 4096)] {
        let mut flow = Flow::new(version).await;
        flow.marker().await;
        let mut ends = Vec::new();
        for id in 0..6 {
            flow.bundle(&[&[2 * id], &[2 * id + 1]]).await;
            ends.push((flow.sequence, flow.position));
        }
        let mut options = flow.options();
        options.batch_transactions = batch;
        let applier = flow.start_with(options);
        flow.caught_up().await;
        written_down(&mut flow).await;
        let before = row_versions(&flow).await;
        let (_, last) = *ends.last().unwrap();
        for lsn in (0x101..=last)
            .step_by(5)
            .chain(ends.iter().map(|(_, end)| *end))
        {
            let report = done(&flow, Place::Lsn(Lsn(lsn))).await;
            let behind = ends.iter().filter(|(_, end)| *end >= lsn);
            let (first, _) = *behind.clone().next().expect("it was applied");
            assert_eq!(report.first, first, "{lsn:x}");
            assert_eq!(report.transactions, 2 * behind.count() as u64, "{lsn:x}");
            assert_eq!(
                (report.confirmed, report.rows_written),
                (report.transactions, 0)
            );
        }
        for (number, (sequence, _)) in ends.iter().enumerate() {
            let report = done(&flow, Place::Sequence(StreamSequence(*sequence))).await;
            let transactions = 2 * (ends.len() - number) as u64;
            assert_eq!((report.first, report.until), (*sequence, flow.sequence));
            assert_eq!(report.transactions, transactions);
        }
        assert_eq!(row_versions(&flow).await, before);
        // Genesis and marker end where the flow began.
        let report = done(&flow, Place::Lsn(Lsn(0x100))).await;
        assert_eq!((report.first, report.transactions), (1, 12));
        let before_it = refused(&flow, Place::Lsn(Lsn(0xff))).await;
        assert_eq!(before_it, "0/FF is before the flow began, at 0/100");
        flow.bundle(&[&[100]]).await;
        flow.caught_up().await;
        applier.stop().await;
    }
}

/// A relay that published a range again wrote frames whose positions go back: the first that reached
/// the place is meant, not the one that came again.
#[tokio::test]
async fn a_rewind_to_an_lsn_finds_the_frame_that_reached_it_first() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    let mut options = flow.options();
    options.batch_transactions = 1;
    let applier = flow.start_with(options);
    let mut first = 0;
    for id in 0..20 {
        flow.bundle(&[&[id]]).await;
        if id == 9 {
            first = flow.sequence;
        }
    }
    for _ in 0..10 {
        let end = flow.position;
        flow.go_back_to(0x100);
        flow.marker().await;
        flow.bundle(&[&[7]]).await;
        flow.go_back_to(end);
        flow.marker().await;
    }
    flow.caught_up().await;
    written_down(&mut flow).await;
    let report = done(&flow, Place::Lsn(Lsn(0x1a0))).await;
    assert_eq!(report.first, first, "{report:?}");
    assert_eq!(report.transactions, 11 + 10);
    applier.stop().await;
}

/// Chunks are read with their manifest: a rewind into the middle of them begins behind.
#[tokio::test]
async fn a_rewind_to_a_chunk_begins_at_the_frame_behind_it() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    let bundle = flow.sequence;
    flow.large(&[2, 3], |_| {}).await;
    let manifest = flow.sequence;
    flow.caught_up().await;
    assert!(manifest > bundle + 1, "there are chunks");
    let report = done(&flow, Place::Sequence(StreamSequence(bundle + 1))).await;
    assert_eq!((report.first, report.transactions), (manifest, 1));
    assert_eq!(report.confirmed, 1);
    applier.stop().await;
}

#[tokio::test]
async fn a_place_that_is_not_there_is_refused_by_name() {
    let (mut flow, applier) = Flow::applied(18, &[&[1], &[2], &[3]]).await;
    let (last, end) = (flow.sequence, flow.position);
    let beyond = refused(&flow, Place::Sequence(StreamSequence(last + 1))).await;
    assert_eq!(
        beyond,
        format!(
            "sequence {} is beyond the applied place, sequence {last}",
            last + 1
        )
    );
    let beyond = refused(&flow, Place::Lsn(Lsn(end + 1))).await;
    let applied = format!("is beyond the applied position, {}", Lsn(end));
    assert!(beyond.ends_with(&applied), "{beyond}");
    // The last frame stays whatever is trimmed.
    for id in 4..8 {
        flow.bundle(&[&[id]]).await;
    }
    flow.caught_up().await;
    let oldest = StreamSequence(flow.sequence - 1);
    let lane = flow.name.transactions_subject(Lane(0));
    for subject in [lane, flow.name.mark_subject()] {
        trim::purge_to(&flow.broker, &flow.name.stream(), &subject, oldest)
            .await
            .unwrap();
    }
    let gone = refused(&flow, Place::Sequence(StreamSequence(2))).await;
    assert!(
        gone.contains("sequence 2 is not in the stream any more")
            && gone.ends_with(&oldest.to_string()),
        "{gone}"
    );
    let behind = Lsn(flow.position - 0x20);
    for lsn in [Lsn(0x101), behind] {
        let gone = refused(&flow, Place::Lsn(lsn)).await;
        let named = format!("{lsn} is not in the stream any more");
        assert!(
            gone.starts_with(&named) && gone.ends_with(&behind.to_string()),
            "{gone}"
        );
    }
    let report = done(&flow, Place::Lsn(Lsn(behind.0 + 1))).await;
    assert_eq!((report.first, report.transactions), (oldest.0, 2));
    applier.stop().await;
}
