//! Reading a subject's chunks.

use trellara_envelope::StreamSequence;
use trellara_jetstream::read::SubjectReader;
use trellara_jetstream::trim;

use crate::rig::{Rig, message, payload, within};

const CHUNKS: &str = "trellara.shop.open.1.7";

/// Interleaves `chunks` messages of `size` bytes on the chunk subject with others.
async fn interleave(rig: &Rig, chunks: u64, size: usize) -> Vec<u64> {
    let mut waiting = Vec::new();
    let mut sequences = Vec::new();
    let mut last = 0;
    for chunk in 0..chunks {
        for (subject, size) in [("open.1.7", size), ("open.1.8", 10), ("tx.0", 20)] {
            if subject != "open.1.7" && chunk % 3 != 0 {
                continue;
            }
            waiting.push(
                rig.publisher
                    .publish(message(subject, last, payload(last + 1, size))),
            );
            last += 1;
            if subject == "open.1.7" {
                sequences.push(last);
            }
        }
        if waiting.len() > 200 {
            futures_util::future::join_all(waiting.drain(..)).await;
        }
    }
    futures_util::future::join_all(waiting).await;
    assert_eq!(rig.last_sequence().await, last);
    sequences
}

async fn read_all(reader: &mut SubjectReader) -> Vec<u64> {
    let mut found = Vec::new();
    while let Some(message) = within(reader.next()).await.expect("read") {
        assert_eq!(message.subject, CHUNKS);
        assert_eq!(message.payload[..8], message.sequence.0.to_be_bytes());
        found.push(message.sequence.0);
    }
    found
}

async fn open(rig: &Rig, first: u64, last: u64) -> SubjectReader {
    let (first, last) = (StreamSequence(first), StreamSequence(last));
    let reader = SubjectReader::open(&rig.broker, &rig.stream, CHUNKS, first, last).await;
    reader.expect("a reader")
}

#[tokio::test]
async fn a_thousand_chunks_come_in_order() {
    let rig = Rig::start().await;
    let sequences = interleave(&rig, 1000, 20_000).await;
    let end = rig.last_sequence().await;
    let mut reader = open(&rig, 1, end).await;
    assert_eq!(read_all(&mut reader).await, sequences);
    assert_eq!(within(reader.next()).await.expect("read"), None);
}

#[tokio::test]
async fn only_the_range_asked_for_comes() {
    let rig = Rig::start().await;
    let sequences = interleave(&rig, 40, 100).await;
    let (first, last) = (sequences[5], sequences[20]);
    // Both ends on a chunk, and both ends on something else.
    for (from, to) in [(first, last), (first - 1, last + 1), (last, last)] {
        let expected: Vec<u64> = sequences
            .iter()
            .copied()
            .filter(|at| (from..=to).contains(at))
            .collect();
        assert_eq!(
            read_all(&mut open(&rig, from, to).await).await,
            expected,
            "{from}..={to}"
        );
    }
    assert_eq!(read_all(&mut open(&rig, 10, 9).await).await, [0_u64; 0]);
    let end = rig.last_sequence().await;
    trim::purge_subject(&rig.broker, &rig.stream, CHUNKS)
        .await
        .expect("purge");
    assert_eq!(read_all(&mut open(&rig, 1, end).await).await, [0_u64; 0]);
}

#[tokio::test]
async fn a_killed_server_costs_nothing_but_time() {
    let mut rig = Rig::start().await;
    let sequences = interleave(&rig, 300, 20_000).await;
    let end = rig.last_sequence().await;
    let mut reader = open(&rig, 1, end).await;
    let mut found = Vec::new();
    for crash_at in [10, 150, 290] {
        while found.len() < crash_at {
            let message = within(reader.next()).await.expect("read").expect("a chunk");
            found.push(message.sequence.0);
        }
        rig.crash().await;
    }
    found.extend(read_all(&mut reader).await);
    assert_eq!(found, sequences);
}

#[tokio::test]
async fn what_waits_unread_is_bounded_by_the_buffer() {
    let rig = Rig::start().await;
    let sequences = interleave(&rig, 400, 100_000).await;
    let end = StreamSequence(rig.last_sequence().await);
    let range = StreamSequence(1)..=end;
    let buffer = 4 << 20;
    let broker = crate::rig::connect(&rig.server).await;
    let mut reader = SubjectReader::with_buffer(&broker, &rig.stream, CHUNKS, range, buffer)
        .await
        .expect("one");
    let first = within(reader.next()).await.expect("read").expect("a chunk");
    // All that the open pulls bring has come when an answer on the same connection has, asked
    // for more often than there are pulls.
    for _ in 0..20 {
        let facts = trellara_jetstream::topology::facts(&broker, &rig.stream).await;
        facts.expect("facts");
    }
    let received = broker.received_bytes();
    assert!(
        received < buffer as u64 + (1 << 20),
        "{received} bytes came unasked"
    );
    assert_eq!(first.sequence.0, sequences[0]);
    assert_eq!(read_all(&mut reader).await, sequences[1..]);
}
