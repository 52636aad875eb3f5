//! The rows in a frame.

use bytes::Bytes;
use trellara_applier::machine::Delivered;
use trellara_envelope::{Body, Frame, Manifest, RunningDigest};

use super::super::broker::Stream;
use super::super::counters::{Counters, Sometimes};
use super::super::relay::flow;
use super::super::source::rows_of;
use super::super::target::Effect;

/// The rows of the transactions `range` of a frame; `None` when chunks are not there.
pub(super) fn effects_of(
    opened: &Delivered,
    range: std::ops::Range<usize>,
    stream: &Stream,
    counters: &mut Counters,
) -> Result<Option<Vec<Effect>>, String> {
    if let Body::Manifest(manifest) = &opened.frame.body {
        counters.count(Sometimes::Chunked);
        let Some(bytes) = chunks(opened, manifest, stream) else {
            return Ok(None);
        };
        return Ok(Some(vec![(manifest.identity(), rows_of(bytes)?)]));
    }
    // Descriptions of a table stand with the first transaction of a bundle that needs them.
    let none = trellara_envelope::AbortedSet::EMPTY;
    let mut reader = trellara_pgoutput::ChangeReader::new(false, &none);
    let mut effects = Vec::new();
    for (number, (entry, records)) in opened.frame.transactions().enumerate() {
        reader.feed(records);
        let mut rows = Vec::new();
        while let Some(change) = reader.next_change().map_err(|error| error.to_string())? {
            let trellara_pgoutput::Message::Insert { new, .. } = change.message else {
                // Descriptions come by as well.
                continue;
            };
            for value in new.iter() {
                if let trellara_pgoutput::Value::Text(text) = value {
                    rows.push(String::from_utf8_lossy(text).into_owned());
                }
            }
        }
        if range.contains(&number) {
            effects.push((entry.identity(), rows));
        }
    }
    Ok(Some(effects))
}

/// The bytes of a chunked transaction, when every digest fits (C16).
fn chunks(opened: &Delivered, manifest: &Manifest, stream: &Stream) -> Option<Vec<Bytes>> {
    let subject = flow().open_subject(opened.frame.header.incarnation, manifest.xid);
    let mut running = RunningDigest::new();
    let mut pieces = Vec::new();
    let mut from = manifest.first_sequence.0;
    while let Some((at, message)) = stream.next_from(from, |other| other == subject) {
        if at >= opened.sequence.0 {
            break;
        }
        let frame = Frame::decode(&message.payload).ok()?;
        if let Body::Chunk(chunk) = &frame.body {
            running.update(&frame.payload);
            if chunk.running != running.current() {
                return None;
            }
            pieces.push(frame.payload.clone());
        }
        from = at + 1;
    }
    let whole = pieces.len() as u64 == manifest.chunks && running.current() == manifest.running;
    whole.then_some(pieces)
}
