//! Whether a transaction was applied: asked of the cache where it can vouch, else of the ledger.
//!
//! Three layers, one authority. A transaction that stands in the batch in flight follows its
//! outcome; the cache says "none of these was applied" or nothing; everything else is read from the
//! ledger, and what the ledger and the source's order disagree about stops the lane (C33).

use std::collections::HashSet;
use std::time::Instant;

use trellara_envelope::{
    FlowName, Halt, HaltCode, LaneEpoch, LedgerOrdinal, Lsn, SystemId, TransactionHash,
};

use super::Attempt;
use super::commit::reporting;
use crate::apply::Committed;
use crate::batch::Claim;
use crate::cache::{LaneCache, SharedCache, Vouch};
use crate::checkpoint::Checkpoint;
use crate::ledger::probe::{Asked, Found, Prober};
use crate::ledger::watermark::{self, Watermark};
use crate::machine::Delivered;
use crate::options::ApplierOptions;
use crate::quarantine::store;
use crate::session::TargetSession;
use crate::status::ApplierStatus;
use crate::trouble::Trouble;
use crate::verdict::{Answer, Known, verdict};

/// No ordinal: look in the whole ledger.
const NOWHERE: LedgerOrdinal = LedgerOrdinal(-1);

/// What an attempt knows of its lane's past.
pub(super) struct Dedup {
    pub(super) cache: LaneCache,
    prober: Prober,
    pub(super) epoch: LaneEpoch,
    /// Read when first needed, and after each pruning anew.
    pub(super) watermark: Option<(SystemId, Option<Watermark>)>,
    pub(super) prune_at: Instant,
    /// Whether the cache vouched for the batch that is being committed.
    vouched: bool,
    /// The run of duplicates that only the watermark answered for.
    below: Below,
}

/// Duplicates that only the watermark answered for: their rows were pruned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Below {
    transactions: u64,
    /// Where the first and the last of them end.
    from: Lsn,
    to: Lsn,
}

impl Below {
    fn add(&mut self, end_lsn: Lsn) {
        if self.transactions == 0 {
            self.from = end_lsn;
        }
        self.transactions += 1;
        self.to = end_lsn;
    }
}

impl Dedup {
    /// With the lane taken and its checkpoint read: nobody else writes there from here on, and
    /// nothing that was known before this connect counts (C43).
    pub(super) async fn begin(
        target: &TargetSession,
        options: &ApplierOptions,
        shared: SharedCache,
        epoch: LaneEpoch,
        durable: &Checkpoint,
        status: &ApplierStatus,
    ) -> Result<Self, Trouble> {
        let (flow, lane) = (&options.flow, options.lane);
        let mut cache = LaneCache::bind(shared, flow, lane, epoch, durable.source.system);
        let prober = Prober::prepare(target.client(), flow, lane).await?;
        show(&cache, options, status);
        hydrate(&mut cache, target, options, durable, status).await?;
        Ok(Self {
            cache,
            prober,
            epoch,
            watermark: None,
            prune_at: Instant::now(),
            vouched: false,
            below: Below::default(),
        })
    }

    /// Warns of duplicates that only the watermark answered for: once when a run of them begins.
    fn say_below(&mut self, flow: &FlowName, new: Below) {
        let run = &mut self.below;
        if new.transactions == 0 {
            if run.transactions > 0 {
                tracing::info!(
                    %flow, from = %run.from, to = %run.to, transactions = run.transactions,
                    "no more transactions came again from below the watermark"
                );
            }
            *run = Below::default();
            return;
        }
        if run.transactions == 0 {
            tracing::warn!(
                %flow, from = %new.from, to = %new.to, transactions = new.transactions,
                "transactions came again from below the watermark: their rows were pruned, so \
                 their place alone says that they were applied"
            );
            run.from = new.from;
        }
        run.transactions += new.transactions;
        run.to = new.to;
    }

    /// Whatever ended the attempt, the next one begins without a vouch.
    pub(super) fn forget(&self, options: &ApplierOptions, status: &ApplierStatus) {
        self.cache.forget();
        show(&self.cache, options, status);
    }
}

/// Fills the cache, if it wants to be.
async fn hydrate(
    cache: &mut LaneCache,
    target: &TargetSession,
    options: &ApplierOptions,
    durable: &Checkpoint,
    status: &ApplierStatus,
) -> Result<(), Trouble> {
    let hydrated = cache.hydrate(target.client(), durable).await?;
    if let Some(hydrated) = hydrated {
        status.dedup().hydrated(&options.flow, hydrated.elapsed);
        tracing::info!(
            flow = %options.flow, identities = hydrated.identities,
            seconds = hydrated.elapsed.as_secs_f64(), "read the ledger into the identity cache"
        );
    }
    show(cache, options, status);
    Ok(())
}

fn show(cache: &LaneCache, options: &ApplierOptions, status: &ApplierStatus) {
    let (state, stats) = cache.figures();
    status.dedup().set_cache(&options.flow, state, &stats);
}

impl Attempt<'_> {
    /// Gathers the claims of a frame that was applied already by its place, but for its first
    /// `known`. They are confirmed together, after at most a batch of them.
    pub(super) async fn claim(&mut self, opened: &Delivered, known: usize) -> Result<(), Trouble> {
        self.confirm_unless_next(opened).await?;
        self.batch.claim(opened, known);
        Ok(())
    }

    /// A probe reads the ledger from its lowest claim to its highest. So those that wait are
    /// confirmed first when this frame stands elsewhere: a range that was published twice would
    /// otherwise be read whole between its end and its beginning (C44).
    pub(super) async fn confirm_unless_next(&mut self, opened: &Delivered) -> Result<(), Trouble> {
        if self.batch.claims_go_on_with(opened) {
            return Ok(());
        }
        self.confirm().await
    }

    /// Confirms that what came again was applied, before anything moves past it. One that stands in
    /// the batch in flight follows its outcome; the others are asked of the ledger, all at once.
    pub(super) async fn confirm(&mut self) -> Result<(), Trouble> {
        let claims = self.batch.take_claims();
        if claims.is_empty() {
            return Ok(());
        }
        let in_flight: HashSet<TransactionHash> =
            self.batch.units().iter().map(|unit| unit.hash).collect();
        let asked: Vec<Asked> = claims
            .iter()
            .filter(|claim| !in_flight.contains(&claim.hash))
            .map(asked)
            .collect();
        let found = self.probe(&asked, NOWHERE).await?;
        let in_ledger = |hash| in_flight.contains(&hash) || found.ordinals.contains_key(&hash);
        let missing: Vec<&Claim> = claims.iter().filter(|one| !in_ledger(one.hash)).collect();
        let held = self.held_among(missing.iter().map(|one| one.hash)).await?;
        let mut below = Below::default();
        for claim in missing {
            let held = held.contains(&claim.hash);
            if self.explain_missing(claim, held).await? == Answer::Duplicate {
                below.add(claim.end_lsn);
            }
        }
        let flow = &self.options.flow;
        self.status
            .count_duplicate_transactions(flow, claims.len() as u64);
        self.status
            .dedup()
            .below_watermark(flow, below.transactions);
        self.dedup.say_below(flow, below);
        Ok(())
    }

    /// A transaction that ends at or below the checkpoint and is not in the ledger. Where its row
    /// may have been pruned its place answers for it, and nobody can tell it from another.
    /// One that is or was held is answered for by quarantine alone (C42).
    async fn explain_missing(&mut self, claim: &Claim, held: bool) -> Result<Answer, Trouble> {
        let known = |watermark: Option<Watermark>| Known {
            at_or_below_checkpoint: true,
            in_ledger: false,
            held,
            at_or_below_watermark: watermark.is_some_and(|mark| claim.end_lsn <= mark.end_lsn),
        };
        let system = claim.identity.source.system;
        let mut answer = verdict(known(self.watermark(system, false).await?));
        if matches!(answer, Answer::Halt(_)) {
            // Never halt over what was pruned a moment ago.
            answer = verdict(known(self.watermark(system, true).await?));
        }
        match answer {
            Answer::Duplicate | Answer::Held => Ok(answer),
            Answer::Apply => Err(contradiction(claim, HaltCode::State, None).into()),
            Answer::Halt(code) => Err(contradiction(claim, code, None).into()),
        }
    }

    async fn held_among(
        &self,
        hashes: impl Iterator<Item = TransactionHash>,
    ) -> Result<HashSet<TransactionHash>, Trouble> {
        let lane = (&self.options.flow, self.options.lane);
        let hashes: Vec<TransactionHash> = hashes.collect();
        Ok(store::held_among(self.target.client(), lane, &hashes).await?)
    }

    /// Makes sure that the lane has moved past none of these by setting it aside. It is asked where
    /// something is held that ends beyond the checkpoint, which nothing of ours leaves behind.
    async fn prove_not_held(&self, fresh: &[Claim]) -> Result<(), Trouble> {
        if !self.quarantine.beyond {
            return Ok(());
        }
        let held = self.held_among(fresh.iter().map(|one| one.hash)).await?;
        match fresh.iter().find(|one| held.contains(&one.hash)) {
            Some(one) => Err(passed_before(one).into()),
            None => Ok(()),
        }
    }

    async fn watermark(
        &mut self,
        system: SystemId,
        anew: bool,
    ) -> Result<Option<Watermark>, Trouble> {
        if let Some((of, watermark)) = self.dedup.watermark
            && of == system
            && !anew
        {
            return Ok(watermark);
        }
        let (flow, lane) = (&self.options.flow, self.options.lane);
        let read = watermark::read(self.target.client(), flow, lane, system).await?;
        self.dedup.watermark = Some((system, read));
        Ok(read)
    }

    /// Makes sure that none of the batch's transactions was applied: the cache vouches, or the
    /// ledger is asked.
    pub(super) async fn prove_batch_new(&mut self) -> Result<(), Trouble> {
        let claims: Vec<Claim> = self.batch.units().iter().map(|unit| unit.claim()).collect();
        self.prove_new(&claims).await
    }

    pub(super) async fn prove_new(&mut self, fresh: &[Claim]) -> Result<(), Trouble> {
        let Some(lowest) = fresh.iter().map(|one| one.end_lsn).min() else {
            return Ok(());
        };
        self.prove_not_held(fresh).await?;
        let hashes = fresh.iter().map(|one| one.hash);
        let vouch = self.dedup.cache.vouch(hashes, lowest, &self.durable);
        self.dedup.vouched = vouch == Vouch::None;
        let (behind, hits) = match vouch {
            Vouch::None => return Ok(()),
            Vouch::Probe(behind) => (behind, Vec::new()),
            Vouch::Hits(hits) => (NOWHERE, hits),
        };
        let all: Vec<Asked> = fresh.iter().map(asked).collect();
        let mut found = self.probe(&all, behind).await?;
        if found.ordinals.is_empty() && !hits.is_empty() {
            // The cache knows it and the index does not find it: do its rows lie about their ends?
            let known: Vec<Asked> = hits.iter().map(|index| all[*index]).collect();
            found = self
                .dedup
                .prober
                .search(self.target.client(), &known)
                .await?;
            self.count_probe(&found);
            self.dedup.forget(self.options, self.status);
        }
        for one in fresh {
            let known = Known {
                at_or_below_checkpoint: false,
                in_ledger: found.ordinals.contains_key(&one.hash),
                held: false,
                at_or_below_watermark: false,
            };
            match verdict(known) {
                Answer::Apply => {}
                Answer::Duplicate | Answer::Held => {
                    return Err(contradiction(one, HaltCode::State, None).into());
                }
                Answer::Halt(code) => {
                    let ordinal = found.ordinals.get(&one.hash).copied();
                    return Err(contradiction(one, code, ordinal).into());
                }
            }
        }
        Ok(())
    }

    async fn probe(&self, asked: &[Asked], behind: LedgerOrdinal) -> Result<Found, Trouble> {
        if asked.is_empty() {
            return Ok(Found::default());
        }
        let found = self
            .dedup
            .prober
            .probe(self.target.client(), asked, behind)
            .await?;
        self.count_probe(&found);
        Ok(found)
    }

    fn count_probe(&self, found: &Found) {
        self.status
            .dedup()
            .probed(&self.options.flow, found.rows, found.ordinals.len() as u64);
    }

    /// What was committed behind the checkpoint is known from here on.
    pub(super) fn learn(&mut self, committed: &Committed) {
        // Progress without transactions takes one ordinal as well.
        let taken = committed.identities.len().max(1) as i64;
        self.dedup.cache.learn(
            LedgerOrdinal(committed.checkpoint.ordinal.0 - taken),
            &committed.identities,
            &committed.checkpoint,
            committed.applied_at_us,
        );
        self.status.dedup().applied(
            &self.options.flow,
            committed.transactions,
            self.dedup.vouched,
        );
    }

    /// Fills the cache again where it lost something, and prunes the ledger when it is time.
    pub(super) async fn keep_dedup(&mut self) -> Result<(), Trouble> {
        let cache = &mut self.dedup.cache;
        let hydrating = hydrate(
            cache,
            &self.target,
            self.options,
            &self.durable,
            self.status,
        );
        let every = self.options.report_interval;
        tokio::select! {
            biased;
            hydrated = reporting(hydrating, &self.reporter, &self.durable, every) => hydrated?,
            () = self.cancel.cancelled() => return Err(Trouble::Cancelled),
        }
        self.prune().await
    }
}

fn asked(claim: &Claim) -> Asked {
    Asked {
        hash: claim.hash,
        end_lsn: claim.end_lsn,
        system: claim.identity.source.system,
    }
}

/// What is held and the source's order disagree about a transaction.
fn passed_before(claim: &Claim) -> Halt {
    Halt::new(
        HaltCode::State,
        format!(
            "transaction {} ends at {}, beyond the checkpoint, and yet trellara.held says that the \
             lane has moved past it",
            claim.identity, claim.end_lsn
        ),
        "was trellara.held or trellara.applied changed by hand, or restored in part? Restore the \
         whole target, or copy the tables anew",
    )
}

/// The ledger and the source's order disagree about a transaction.
fn contradiction(claim: &Claim, code: HaltCode, ordinal: Option<LedgerOrdinal>) -> Halt {
    let (identity, end) = (claim.identity, claim.end_lsn);
    match ordinal {
        Some(ordinal) => Halt::new(
            code,
            format!(
                "transaction {identity} ends at {end}, beyond the checkpoint, and yet the ledger \
                 says that it was applied (ordinal {ordinal})"
            ),
            "was trellara.applied changed by hand, or restored in part? Restore the whole target, \
             or copy the tables anew",
        ),
        None => Halt::new(
            code,
            format!(
                "transaction {identity} ends at {end}, which the target has passed, but it was \
                 never applied: another course of events was applied in its place"
            ),
            "source and broker were set back together and the target was not? Set it back with \
             them, or copy the tables anew",
        ),
    }
}
