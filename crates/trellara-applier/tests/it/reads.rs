//! Questions to the ledger, and its pruning.

use trellara_applier::ledger::probe::{Asked, Prober};
use trellara_applier::ledger::{LedgerError, LedgerIdentity, watermark};
use trellara_envelope::{FlowName, HaltCode, Lane, LaneEpoch, Lsn, SystemId};

use crate::flow::history;
use crate::lanes::{Lanes, NOWHERE, asked, end_of, hash, shop};

#[tokio::test]
async fn a_probe_finds_what_was_applied_and_nothing_else() {
    for version in [15, 18] {
        let mut lanes = Lanes::new(version).await;
        for count in [1, 250, 7, 120, 1] {
            lanes.apply(count).await;
            lanes.beat().await;
        }
        let all: Vec<Asked> = (0..lanes.next).map(asked).collect();
        let found = lanes.probe(&all, NOWHERE).await;
        assert_eq!(found.ordinals.len() as u64, lanes.next);
        assert_eq!(found.identities, lanes.next, "each row once");
        for one in [0, 1, 120, 250, 251, 378] {
            let found = lanes.probe(&[asked(one)], NOWHERE).await;
            assert_eq!(found.ordinals.len(), 1, "{one}");
            assert_eq!(found.rows, 1, "{one}: one row covers it");
        }
        // Beyond the newest, and at a known place under another name.
        let beyond = lanes.probe(&[asked(lanes.next)], NOWHERE).await;
        assert!(beyond.ordinals.is_empty() && beyond.rows == 0, "{beyond:?}");
        let mut other = asked(7);
        other.hash = hash(70_000);
        assert!(lanes.probe(&[other], NOWHERE).await.ordinals.is_empty());
        // Ordinals count progress, too; behind the ordinal of what is asked nothing is found.
        let ordinal = found.ordinals[&hash(0)];
        assert_eq!(ordinal.0, 1);
        assert!(lanes.probe(&[asked(0)], ordinal).await.ordinals.is_empty());
    }
}

/// C41: the same identities in another flow, another lane, or of another system, are others.
#[tokio::test]
async fn c41_a_probe_sees_its_own_lane_and_system_alone() {
    let mut lanes = Lanes::new(18).await;
    lanes.apply(200).await;
    let client = &lanes.target.client;
    let other: FlowName = "other".parse().unwrap();
    for (flow, lane) in [(other, Lane(0)), (shop(), Lane(1))] {
        let prober = Prober::prepare(client, &flow, lane).await.unwrap();
        let found = prober.probe(client, &[asked(3)], NOWHERE).await.unwrap();
        assert!(found.ordinals.is_empty() && found.rows == 0);
    }
    let elsewhere = Asked {
        system: SystemId(1),
        ..asked(3)
    };
    assert!(lanes.probe(&[elsewhere], NOWHERE).await.ordinals.is_empty());
    let watermark = watermark::read(client, &shop(), Lane(0), SystemId(1)).await;
    assert_eq!(watermark.unwrap(), None);
}

/// Replays write rows of their own, whose ends lie among those of ordinary ones.
#[tokio::test]
async fn rows_of_replays_do_not_hide_others_and_the_first_occurrence_wins() {
    let mut lanes = Lanes::new(18).await;
    for _ in 0..6 {
        lanes.apply(100).await;
    }
    // Held transactions that end between the two before and behind them, many in one place.
    let held = |at: u64, n: u64| LedgerIdentity {
        hash: hash(1_000_000 + n),
        end_lsn: Lsn(end_of(at) + 1 + n % 14),
    };
    for n in 0..14 {
        lanes.replay(held(230, n)).await;
    }
    let twice = LedgerIdentity {
        hash: hash(230),
        end_lsn: Lsn(end_of(230)),
    };
    lanes.replay(twice).await;
    for n in [0, 199, 200, 229, 230, 231, 299, 300, 599] {
        let found = lanes.probe(&[asked(n)], NOWHERE).await;
        assert_eq!(found.ordinals[&hash(n)].0, n as i64 + 1, "{n}");
        assert!(found.rows <= 2, "{n}: {found:?}");
    }
    for n in 0..14 {
        let one = held(230, n);
        let asked = Asked {
            hash: one.hash,
            end_lsn: one.end_lsn,
            system: history().system,
        };
        let found = lanes.probe(&[asked], NOWHERE).await;
        assert_eq!(found.ordinals.len(), 1, "{n}");
    }
}

#[tokio::test]
async fn a_hydration_begins_at_the_cut_and_knows_its_floor() {
    let mut lanes = Lanes::new(15).await;
    for count in [100, 50, 300] {
        lanes.apply(count).await;
        lanes.beat().await;
    }
    // Ordinals: 1-100, 101, 102-151, 152, 153-452 (three rows), 453.
    let (all, floor) = lanes.hydrate(0).await.unwrap();
    assert_eq!(all.len(), 450);
    assert_eq!((all[0], floor.ordinal.0), ((1, hash(0)), 0));
    assert_eq!(all[449], (452, hash(449)));
    let (newest, floor) = lanes.hydrate(200).await.unwrap();
    assert_eq!(newest.len(), 180, "the row at the cut is the floor");
    assert_eq!(floor.ordinal.0, 272);
    assert_eq!(newest[0].0, 273);
    assert!(newest.iter().all(|(ordinal, _)| *ordinal > floor.ordinal.0));
    // Nothing that ends above the floor stands at or below it.
    assert_eq!(floor.end_lsn, Lsn(end_of(269)));
    let (none, floor) = lanes.hydrate(453).await.unwrap();
    assert_eq!((none.len(), floor.ordinal.0), (0, 453));
}

/// What cannot be read is never "not seen".
#[tokio::test]
async fn an_inconsistent_row_is_a_named_stop() {
    for (damage, words) in [
        (
            "DELETE FROM trellara.applied WHERE first_ordinal = 11",
            "the one before it ends at 10",
        ),
        (
            "UPDATE trellara.applied SET end_lsn = '0/101', transaction_end_lsn = '0/101', \
                    lowest_end_lsn = '0/101', highest_end_lsn = '0/101' WHERE first_ordinal = 21",
            "it stands at 0/101",
        ),
        (
            "ALTER TABLE trellara.applied DROP CONSTRAINT applied_check; \
             UPDATE trellara.applied SET hashes = substr(hashes, 17) WHERE first_ordinal = 11",
            "identities have 144 bytes",
        ),
        (
            "ALTER TABLE trellara.applied DROP CONSTRAINT applied_hashes_check, \
                                          DROP CONSTRAINT applied_check; \
             UPDATE trellara.applied SET hashes = substr(hashes, 2) WHERE first_ordinal = 11",
            "identities have 159 bytes",
        ),
    ] {
        let mut lanes = Lanes::new(18).await;
        for _ in 0..3 {
            lanes.apply(10).await;
        }
        lanes.run(damage).await;
        let halt = lanes.hydrate(0).await.unwrap_err();
        assert_eq!(halt.code, HaltCode::State, "{halt}");
        assert!(halt.reason.contains(words), "{halt}");
    }
}

#[tokio::test]
async fn pruning_takes_the_oldest_and_moves_the_watermark() {
    for version in [15, 18] {
        let mut lanes = Lanes::new(version).await;
        for _ in 0..5 {
            lanes.apply(10).await;
        }
        let genesis = lanes.watermark().await.unwrap();
        assert_eq!((genesis.ordinal.0, genesis.end_lsn), (0, Lsn(0x100)));
        assert_eq!(lanes.prune(u64::MAX, lanes.epoch).await, 0, "all are young");
        lanes.age(30).await;
        let before = lanes.epoch;
        assert_eq!(lanes.prune(u64::MAX, LaneEpoch(before.0 - 1)).await, 0);
        // Never above what the stream can deliver again: transaction 9 may come once more.
        assert_eq!(
            lanes.prune(end_of(9), lanes.epoch).await,
            1,
            "genesis alone"
        );
        assert_eq!(lanes.prune(end_of(19), lanes.epoch).await, 1);
        let mark = lanes.watermark().await.unwrap();
        assert_eq!((mark.ordinal.0, mark.end_lsn), (10, Lsn(end_of(9) + 4)));
        assert_eq!(lanes.prune(u64::MAX, lanes.epoch).await, 2);
        let mark = lanes.watermark().await.unwrap();
        assert_eq!((mark.ordinal.0, mark.end_lsn), (30, Lsn(end_of(29) + 4)));
        // An old row behind a young one stays: only a prefix goes.
        lanes
            .run(
                "UPDATE trellara.applied SET applied_at = applied_at - interval '2 hours' \
                  WHERE first_ordinal = 41",
            )
            .await;
        assert_eq!(lanes.prune(u64::MAX, lanes.epoch).await, 0);
        lanes.age(50).await;
        assert_eq!(lanes.prune(u64::MAX, lanes.epoch).await, 1);
        assert_eq!(lanes.count().await, 1, "the newest row always stays");
        assert_eq!(lanes.target.checkpoint(&shop()).await, lanes.at);
        lanes.apply(1).await;
        // What is left can be read, and its floor is sound.
        let (left, floor) = lanes.hydrate(0).await.unwrap();
        assert_eq!((left.len(), floor.ordinal.0), (1, 50));
    }
}

#[tokio::test]
async fn a_ledger_without_its_beginning_is_a_named_stop() {
    let mut lanes = Lanes::new(18).await;
    lanes.apply(10).await;
    lanes.apply(10).await;
    lanes
        .run("DELETE FROM trellara.applied WHERE first_ordinal = 0")
        .await;
    let read = watermark::read(&lanes.target.client, &shop(), Lane(0), history().system).await;
    let Err(LedgerError::Inconsistent(halt)) = read else {
        panic!("{read:?}");
    };
    assert_eq!(halt.code, HaltCode::State, "{halt}");
}
