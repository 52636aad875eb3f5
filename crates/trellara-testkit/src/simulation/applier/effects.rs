//! The rows in a frame.

use bytes::Bytes;
use trellara_applier::machine::Delivered;
use trellara_envelope::{AbortedSet, Body, Frame, Manifest, RunningDigest};
use trellara_pgoutput::ChangeReader;

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
    let none = AbortedSet::EMPTY;
    if let Body::Manifest(manifest) = &opened.frame.body {
        counters.count(Sometimes::Chunked);
        let Some(bytes) = chunks(opened, manifest, stream) else {
            return Ok(None);
        };
        let mut reader = ChangeReader::new(manifest.streamed, &none);
        let mut rows = Vec::new();
        for piece in bytes {
            reader.feed(piece);
            rows.extend(rows_of(&mut reader)?);
        }
        reader.finish().map_err(|error| error.to_string())?;
        return Ok(Some(vec![(manifest.identity(), rows)]));
    }
    // Descriptions of a table stand with the first transaction of a bundle that needs them.
    let mut reader = ChangeReader::new(false, &none);
    let mut effects = Vec::new();
    for (number, (entry, records)) in opened.frame.transactions().enumerate() {
        reader.feed(records);
        let rows = rows_of(&mut reader)?;
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
