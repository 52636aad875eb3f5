//! Messages, records and the walsender's envelope under damage; see `tests/fuzz/README.md` of the
//! repository.

mod support;

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;

use bytes::Bytes;
use mutate::{Random, fuzz};
use support::encode::encode;
use support::{VERSIONS, in_stream_flags, scenario, scenario_names};
use trellara_envelope::{AbortedRange, AbortedSet, CommitTime, Lsn, Xid, records};
use trellara_pgoutput::{ChangeReader, Error, Kind, Message, Walsender, decode, peek, walsender};

/// Every captured message, with a byte in front that says whether it stands in a stream block.
fn captured() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for version in VERSIONS {
        for name in scenario_names(version) {
            let messages = scenario(version, &name);
            for (message, in_stream) in messages.iter().zip(in_stream_flags(&messages)) {
                all.push([&[u8::from(in_stream)], message.as_slice()].concat());
            }
        }
    }
    all
}

#[test]
fn decode_survives_damage() {
    fuzz("decode", captured(), |input, _| {
        let Some((flag, message)) = input.split_first() else {
            return false;
        };
        let in_stream = flag & 1 == 1;
        let glance = peek(message, in_stream);
        let Ok(decoded) = decode(message, in_stream) else {
            return false;
        };
        // The protocol says everything once, so what was understood leaves nothing out.
        assert_eq!(encode(&decoded), message);
        assert_eq!(glance.expect("peek reads less").kind, decoded.kind());
        assert!(!format!("{decoded:?}").is_empty());
        true
    });
}

/// The records of each captured transaction, in a stream block or not.
fn transactions() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for version in VERSIONS {
        for name in scenario_names(version) {
            let messages = scenario(version, &name);
            let flags = in_stream_flags(&messages);
            for streamed in [false, true] {
                let mut bytes = vec![u8::from(streamed)];
                for (message, in_stream) in messages.iter().zip(&flags) {
                    if *in_stream == streamed && Kind::of(message[0]).is_ok_and(Kind::is_record) {
                        records::push(&mut bytes, message);
                    }
                }
                all.push(bytes);
            }
        }
    }
    all
}

/// What a reader gave: kind, total order and the message's bytes.
type Seen = (Kind, Option<u64>, Vec<u8>);

fn read(streamed: bool, aborted: &AbortedSet, pieces: &[Bytes]) -> (Vec<Seen>, Result<u64, Error>) {
    let mut reader = ChangeReader::new(streamed, aborted);
    let mut seen = Vec::new();
    for piece in pieces {
        reader.feed(piece.clone());
        loop {
            match reader.next_change() {
                Ok(Some(change)) => seen.push((
                    change.message.kind(),
                    change.total_order,
                    encode(&change.message),
                )),
                Ok(None) => break,
                Err(error) => return (seen, Err(error)),
            }
        }
    }
    (seen, reader.finish())
}

fn cut(bytes: &Bytes, random: &mut Random) -> Vec<Bytes> {
    let mut rest = bytes.clone();
    let mut pieces = Vec::new();
    while !rest.is_empty() && pieces.len() < 64 {
        pieces.push(rest.split_to(random.below(rest.len() / 4 + 8).min(rest.len())));
    }
    pieces.push(rest);
    pieces
}

#[test]
fn reader_survives_damage() {
    fuzz("reader", transactions(), |input, random| {
        let Some((flag, bytes)) = input.split_first() else {
            return false;
        };
        let streamed = flag & 1 == 1;
        let first = Xid(700 + random.below(300) as u32);
        let last = Xid(first.0 + random.below(3) as u32);
        let aborted = AbortedSet::from_iter([AbortedRange { first, last }]);
        let bytes = Bytes::copy_from_slice(bytes);
        let whole = read(streamed, &aborted, std::slice::from_ref(&bytes));
        assert_eq!(read(streamed, &aborted, &cut(&bytes, random)), whole);
        let orders: Vec<_> = whole.0.iter().filter_map(|(_, order, _)| *order).collect();
        assert!(orders.iter().copied().eq(1..=orders.len() as u64));
        whole.1.is_ok()
    });
}

#[test]
fn walsender_survives_damage() {
    let fields = |kind: u8, count: usize| [&[kind][..], &vec![7; count * 8]].concat();
    let seeds = vec![
        [fields(b'w', 3), b"E".to_vec()].concat(),
        [fields(b'k', 2), vec![1]].concat(),
        [fields(b'k', 2), vec![0]].concat(),
    ];
    fuzz("walsender", seeds, |input, _| {
        let field = |Lsn(lsn)| lsn.to_be_bytes();
        let time = |CommitTime(time)| time.to_be_bytes();
        let again = match walsender(input) {
            Err(_) => return false,
            Ok(Walsender::XLogData {
                start,
                end,
                send_time,
                payload,
            }) => [
                &b"w"[..],
                &field(start),
                &field(end),
                &time(send_time),
                payload,
            ]
            .concat(),
            Ok(Walsender::Keepalive {
                wal_end,
                send_time,
                reply_requested,
            }) => {
                let reply = [u8::from(reply_requested)];
                [&b"k"[..], &field(wal_end), &time(send_time), &reply].concat()
            }
        };
        assert_eq!(again, input);
        true
    });
}

/// The encoder that the fuzz tests compare with is right about what servers send.
#[test]
fn every_captured_message_encodes_to_itself() {
    let mut streams = 0;
    for seed in captured() {
        let (flag, message) = seed.split_first().expect("a flag");
        let decoded = decode(message, *flag == 1).expect("a real message");
        streams += usize::from(matches!(decoded, Message::StreamStart { .. }));
        assert_eq!(encode(&decoded), message);
    }
    assert!(streams > 10);
}
