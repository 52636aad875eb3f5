//! The whole applier: frames made by hand in a real stream, rows in a real target.

use bytes::Bytes;
use trellara_applier::lane::{self, Claimant};
use trellara_applier::ledger::{Ledger, LedgerIdentity};
use trellara_applier::{CHECKPOINT_NOW, HaltPolicy, Standby, channel};
use trellara_envelope::{FrameDigest, HaltCode, Lane, LaneEpoch, Lsn, StreamSequence};
use trellara_jetstream::consume;
use trellara_jetstream::read::Reader;
use trellara_jetstream::topology;

use crate::flow::{Flow, identity_of};

#[tokio::test]
async fn transactions_arrive_whole_in_order_and_once_on_15() {
    arrives(15).await;
}

#[tokio::test]
async fn transactions_arrive_whole_in_order_and_once_on_18() {
    arrives(18).await;
}

async fn arrives(version: u32) {
    let (mut flow, applier) = Flow::applied(version, &[&[1, 2], &[3]]).await;
    flow.bundle(&[&[4]]).await;
    flow.large(&[5, 6, 7, 8, 9], |_| {}).await;
    flow.bundle(&[&[10]]).await;
    flow.caught_up().await;
    assert_eq!(
        flow.target.rows().await,
        "1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1 9:1 10:1"
    );
    let status = applier.status.snapshot();
    assert_eq!(status.transactions, 5);
    assert_eq!(status.replica_role, Some(true));
    applier.stop().await;

    // A restart reads on behind the checkpoint.
    let applier = flow.start();
    flow.bundle(&[&[11]]).await;
    flow.caught_up().await;
    assert_eq!(applier.status.snapshot().duplicate_frames, 0);
    applier.stop().await;
    assert!(flow.target.rows().await.ends_with("10:1 11:1"));
}

#[tokio::test]
async fn c21_checkpoint_inside_a_bundle() {
    let mut flow = Flow::new(18).await;
    let marker = flow.marker().await;
    flow.bundle(&[&[1], &[2], &[3]]).await;
    // Somebody applied the first two transactions of the bundle, and only those.
    let who = Claimant {
        flow: &flow.name,
        lane: Lane(0),
        instance: "11111111-2222-4333-8444-555555555555",
        name: "a test",
    };
    let client = &flow.target.client;
    let held = lane::fence(client, who).await.unwrap();
    let ledger = Ledger::prepare(client, &flow.name, Lane(0), held.epoch)
        .await
        .unwrap();
    let from = flow.target.checkpoint(&flow.name).await;
    let mut to = from.clone();
    to.end_lsn = Lsn(0x120);
    to.transaction_end_lsn = Lsn(0x120);
    to.transport.sequence = StreamSequence(2);
    to.transport.ordinal.0 = 1;
    to.transport.incarnation.0 = 1;
    to.transport.digest = marker;
    let identities: Vec<LedgerIdentity> = [0x110, 0x120]
        .map(|end: u64| LedgerIdentity {
            hash: identity_of(end).hash(),
            end_lsn: Lsn(end),
        })
        .to_vec();
    client
        .batch_execute("BEGIN; INSERT INTO public.t VALUES (1, 'x'), (2, 'x')")
        .await
        .unwrap();
    ledger
        .record(client, &from, &to, &identities)
        .await
        .unwrap();
    client.batch_execute("COMMIT").await.unwrap();

    let applier = flow.start();
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    assert_eq!(applier.status.snapshot().duplicate_transactions, 2);
    applier.stop().await;
}

#[tokio::test]
async fn c25_the_transport_half_moves_when_only_duplicates_arrive() {
    let (mut flow, applier) = Flow::applied(18, &[&[1], &[2]]).await;
    applier.stop().await;

    // A relay without memory publishes the same transactions again.
    flow.go_back_to(0x100);
    flow.marker().await;
    let again = flow.bundle(&[&[1], &[2]]).await;
    let applier = flow.start();
    let sequence = StreamSequence(flow.sequence);
    // Duplicates alone are written down when somebody asks, or lazily.
    flow.reported(|_| applier.status.snapshot().duplicate_frames == 1)
        .await;
    flow.target
        .client
        .execute(
            "SELECT pg_notify($1, $2)",
            &[&channel(&flow.name), &CHECKPOINT_NOW],
        )
        .await
        .unwrap();
    let report = flow.reported(|report| report.sequence == sequence).await;
    assert_eq!(report.digest, again);
    assert_eq!(report.end_lsn, Lsn(0x120), "the position did not go back");
    applier.stop().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1");
    let checkpoint = flow.target.checkpoint(&flow.name).await;
    assert_eq!(checkpoint.transport.digest, again);
    assert_eq!(checkpoint.end_lsn, Lsn(0x120));
}

#[tokio::test]
async fn a_heartbeat_is_written_down_at_once_for_whoever_waits() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    let applier = flow.start();
    flow.reported(|report| report.sequence.0 == 2).await;
    flow.target
        .client
        .execute(
            "SELECT pg_notify($1, $2)",
            &[&channel(&flow.name), &CHECKPOINT_NOW],
        )
        .await
        .unwrap();
    flow.heartbeat(0x180).await;
    flow.caught_up().await;
    let checkpoint = flow.target.checkpoint(&flow.name).await;
    assert_eq!(checkpoint.end_lsn, Lsn(0x180));
    assert_eq!(checkpoint.transaction_end_lsn, Lsn(0x100));
    applier.stop().await;
}

#[tokio::test]
async fn b22_a_change_that_fails_is_named_and_everything_before_it_is_in() {
    let mut flow = Flow::new(18).await;
    flow.target
        .client
        .batch_execute("ALTER TABLE public.t ADD CHECK (id <> 3)")
        .await
        .unwrap();
    flow.marker().await;
    flow.bundle(&[&[1], &[2, 3], &[4]]).await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::ApplyFailed, "{halt}");
    assert!(
        halt.reason.contains(":0/118:"),
        "names the transaction: {halt}"
    );
    assert!(halt.reason.contains("23514"), "{halt}");
    assert_eq!(flow.target.rows().await, "1:1");

    // Cured, it goes on where it stood.
    flow.target
        .client
        .batch_execute("ALTER TABLE public.t DROP CONSTRAINT t_id_check")
        .await
        .unwrap();
    let applier = flow.start();
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1");
    applier.stop().await;
}

#[tokio::test]
async fn c16_nothing_of_a_transaction_with_another_digest_is_committed() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    flow.large(&[2, 3, 4, 5], |manifest| {
        manifest.running = FrameDigest([1; 16]);
    })
    .await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Corrupt, "{halt}");
    assert_eq!(flow.target.rows().await, "1:1");
}

#[tokio::test]
async fn a_chunk_that_is_not_in_the_stream_is_a_gap() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.large(&[2, 3, 4, 5], |manifest| manifest.chunks += 1)
        .await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Gap, "{halt}");
    assert_eq!(flow.target.rows().await, "");
}

#[tokio::test]
async fn a_damaged_frame_is_named_and_what_came_before_it_is_applied() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    let subject = flow.name.transactions_subject(Lane(0));
    flow.store(&subject, Bytes::from_static(b"not a frame"))
        .await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Corrupt, "{halt}");
    assert!(halt.reason.contains("sequence 4"), "{halt}");
    assert_eq!(flow.target.rows().await, "1:1");
}

#[tokio::test]
async fn a_frame_that_is_not_in_the_stream_is_a_gap() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    flow.go_back_to(0x130);
    flow.bundle(&[&[2]]).await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Gap, "{halt}");
    assert_eq!(flow.target.rows().await, "1:1");
}

/// The broker lost the frame that a marker continues, and has another one in its place: the relay
/// publishes nothing behind that marker and begins again from where the stream stands.
#[tokio::test]
async fn a_marker_that_another_takes_back_is_passed_over() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    flow.go_back_to(0x130);
    flow.marker().await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Gap, "nothing takes it back: {halt}");
    flow.marker().await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Gap, "nor does this one: {halt}");
    flow.go_back_to(0x110);
    flow.marker().await;
    flow.bundle(&[&[2], &[3]]).await;
    let applier = flow.start();
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    applier.stop().await;
}

#[tokio::test]
async fn c24_another_targets_stream_is_refused() {
    let flow = Flow::new(18).await;
    topology::register_target(&flow.broker, &flow.name.stream(), "somebody@1")
        .await
        .unwrap();
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Config, "{halt}");
    assert!(halt.reason.contains("somebody@1"), "{halt}");
}

#[tokio::test]
async fn c26_a_new_stream_goes_on_where_it_continues_at_or_below_the_checkpoint() {
    let (mut flow, applier) = Flow::applied(18, &[&[1], &[2]]).await;
    applier.stop().await;

    flow.replace_stream(0x110).await;
    flow.marker().await;
    flow.bundle(&[&[2], &[3]]).await;
    let applier = flow.start();
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    applier.stop().await;

    flow.replace_stream(0x140).await;
    flow.marker().await;
    flow.bundle(&[&[5]]).await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::StreamReplaced, "{halt}");
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
}

#[tokio::test]
async fn a_schema_halt_ends_by_itself_when_it_is_cured() {
    let mut flow = Flow::new(18).await;
    flow.target
        .client
        .batch_execute("ALTER TABLE public.t RENAME COLUMN v TO w")
        .await
        .unwrap();
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Schema, "{halt}");
    let mut options = flow.options();
    options.halt = HaltPolicy::Stay;
    let applier = flow.start_with(options);
    flow.target
        .client
        .batch_execute("ALTER TABLE public.t RENAME COLUMN w TO v")
        .await
        .unwrap();
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1");
    applier.stop().await;
}

#[tokio::test]
async fn a_stream_without_the_checkpoints_frame_or_a_marker_halts() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.target
        .client
        .execute(
            "UPDATE trellara.applied SET frame_digest = decode(repeat('ab', 16), 'hex'), \
                    end_lsn = '0/90', transaction_end_lsn = '0/90'",
            &[],
        )
        .await
        .unwrap();
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Gap, "{halt}");
}

#[tokio::test]
async fn b52_a_second_applier_waits_and_takes_over() {
    let (mut flow, first) = Flow::applied(18, &[&[1]]).await;

    let mut impatient = flow.options();
    impatient.standby = Standby::GiveUpAfter(std::time::Duration::ZERO);
    let halt = flow.start_with(impatient).halt().await;
    assert_eq!(halt.code, HaltCode::Fenced, "{halt}");

    let second = flow.start();
    first.stop().await;
    flow.bundle(&[&[2]]).await;
    let report = flow.caught_up().await;
    assert_eq!(report.epoch, LaneEpoch(2));
    assert_eq!(flow.target.rows().await, "1:1 2:1");
    second.stop().await;
}

#[tokio::test]
async fn a_lost_target_session_is_taken_up_anew() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    flow.target
        .client
        .execute(
            "SELECT pg_terminate_backend(holder_pid) FROM trellara.lane",
            &[],
        )
        .await
        .unwrap();
    flow.bundle(&[&[2]]).await;
    let report = flow.caught_up().await;
    assert!(report.epoch > LaneEpoch(1));
    assert_eq!(flow.target.rows().await, "1:1 2:1");
    applier.stop().await;
}

#[tokio::test]
async fn chunks_of_an_applied_transaction_are_purged_and_the_history_stays() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.large(&[1, 2, 3, 4], |_| {}).await;
    let applier = flow.start();
    flow.caught_up().await;
    // The tick that reports also trims, first: wait for the next one.
    let epoch = flow.reported(|_| true).await.epoch;
    flow.reported(|report| report.epoch == epoch).await;
    applier.stop().await;
    let reader = Reader::new(&flow.broker, &flow.name.stream());
    let open = format!("trellara.{}.open.>", flow.name);
    let left = reader.next_on(&open, StreamSequence(1)).await.unwrap();
    assert!(left.is_none(), "{left:?}");
    assert!(reader.get(StreamSequence(1)).await.unwrap().is_some());
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1");
}

/// The broker loses what the applier has read while it runs, and the relay writes it anew, in other
/// bundles and beyond the place where the applier reads on.
#[tokio::test]
async fn c26_a_running_applier_goes_back_to_the_marker_of_a_rewritten_stream() {
    // A frame of a newer writer without its marker looks like a gap; one of the same number like a
    // fork.
    for newer in [true, false] {
        let mut flow = Flow::new(18).await;
        flow.marker().await;
        flow.bundle(&[&[1]]).await;
        let mut options = flow.options();
        // The consumer looks soon why nothing comes.
        options.stall_timeout = std::time::Duration::from_secs(1);
        let applier = flow.start_with(options);
        flow.caught_up().await;
        // It all happens while a target transaction takes long.
        let client = &flow.target.client;
        client
            .batch_execute("BEGIN; LOCK TABLE public.t")
            .await
            .unwrap();
        flow.bundle(&[&[2]]).await;
        flow.target.blocked().await;
        flow.replace_stream(0x100).await;
        flow.marker().await;
        if newer {
            flow.marker().await;
            flow.bundle(&[&[1], &[2]]).await;
        } else {
            flow.bundle(&[&[1], &[2]]).await;
            flow.heartbeat(0x120).await;
        }
        flow.bundle(&[&[3]]).await;
        flow.target.client.batch_execute("COMMIT").await.unwrap();
        flow.caught_up().await;
        assert_eq!(flow.target.rows().await, "1:1 2:1 3:1", "newer {newer}");
        applier.stop().await;
    }
}

/// While somebody's lock holds up a target transaction, the position is still reported.
#[tokio::test]
async fn the_position_is_reported_while_a_transaction_takes_long() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    let applier = flow.start();
    let before = flow.caught_up().await;
    for large in [false, true] {
        flow.target
            .client
            .batch_execute("BEGIN; LOCK TABLE public.t")
            .await
            .unwrap();
        if large {
            flow.large(&[3, 4], |_| {}).await;
        } else {
            flow.bundle(&[&[2]]).await;
        }
        flow.target.blocked().await;
        // The first may have been sent before the wait began.
        for _ in 0..3 {
            let report = flow.reported(|_| true).await;
            assert!(report.end_lsn < Lsn(flow.position) && report.epoch == before.epoch);
        }
        flow.target.client.batch_execute("COMMIT").await.unwrap();
        flow.caught_up().await;
    }
    applier.stop().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1");
}

/// A frame that was delivered and found to be nobody's is not the one that is missing behind it.
#[tokio::test]
async fn a_gap_behind_a_frame_that_was_passed_over_is_still_a_gap() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    flow.marker().await;
    flow.incarnation = 1;
    flow.bundle(&[&[9]]).await;
    flow.incarnation = 2;
    // Follows the frame of the old writer by its position: that of this one's own was never stored.
    flow.bundle(&[&[3]]).await;
    flow.marker().await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Gap, "{halt}");
    assert_eq!(flow.target.rows().await, "1:1");
}

/// The consumer is moved back to a frame that was passed over, and to nothing that tells why.
#[tokio::test]
async fn what_was_passed_over_is_passed_over_when_it_comes_again() {
    let ends_beyond: &[&[i32]] = &[&[8], &[8], &[9]];
    let ends_below: &[&[i32]] = &[&[9]];
    for garbage in [ends_beyond, ends_below] {
        let mut flow = Flow::new(18).await;
        let overtaken = flow.overtaken(garbage).await;
        let applier = flow.start();
        flow.caught_up().await;
        let stream = flow.name.stream();
        consume::move_back(&flow.broker, &stream, "applier", overtaken)
            .await
            .unwrap();
        applier.shows(|seen| seen.duplicate_frames == 1).await;
        flow.bundle(&[&[3]]).await;
        flow.caught_up().await;
        let seen = applier.status.snapshot();
        assert_eq!((seen.retries, seen.duplicate_transactions), (0, 1));
        applier.stop().await;
        assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    }
}

#[tokio::test]
async fn a_trigger_that_drops_prepared_statements_only_delays() {
    let mut flow = Flow::new(18).await;
    flow.target
        .client
        .batch_execute(
            "CREATE SEQUENCE public.times;
             CREATE FUNCTION public.forget() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN IF nextval(''public.times'') = 1 THEN DEALLOCATE ALL; END IF; RETURN NEW; END';
             CREATE TRIGGER forget BEFORE INSERT ON public.t
                 FOR EACH ROW EXECUTE FUNCTION public.forget();
             ALTER TABLE public.t ENABLE ALWAYS TRIGGER forget",
        )
        .await
        .unwrap();
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    let applier = flow.start();
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1");
    assert_eq!(applier.status.snapshot().retries, 1);
    applier.stop().await;
}
