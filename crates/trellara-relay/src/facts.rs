//! Reading the facts of the resume table.

use std::collections::BTreeSet;

use bytes::Bytes;
use trellara_envelope::{
    Body, FlowName, Frame, Lane, Marker, Oid, PublicationMember, SourceHistory, StreamSequence,
};
use trellara_jetstream::read::{Reader, StoredFrameBytes};
use trellara_jetstream::topology::StreamFacts;
use trellara_jetstream::{Broker, BrokerError, BrokerErrorKind, topology};
use trellara_postgres::{Fault, Session, fault};
use trellara_source::publication::PublicationFacts;
use trellara_source::{SourceOptions, publication, slot};

use crate::ending::{self, Ending, Last};
use crate::machine::{LastTransaction, StreamSpace, Tail};
use crate::resume::{Facts, StreamEnd};

/// What the broker knows.
pub(crate) struct BrokerFacts {
    pub(crate) end: StreamEnd,
    /// Where the flow's last frame stands.
    pub(crate) tail_at: StreamSequence,
    pub(crate) stream: Option<StreamFacts>,
    pub(crate) marker: Option<Marker>,
    pub(crate) last_transaction: LastTransaction,
}

/// Reads the broker's side.
pub(crate) async fn of_broker(
    broker: &Broker,
    reader: &Reader,
    flow: &FlowName,
) -> Result<BrokerFacts, BrokerError> {
    let nothing = |end, stream| BrokerFacts {
        end,
        tail_at: StreamSequence(0),
        stream,
        marker: None,
        last_transaction: LastTransaction::None,
    };
    let stream = match topology::facts_of_flow(broker, flow).await {
        Ok(stream) => stream,
        Err(error) if *error.kind() == BrokerErrorKind::Missing => {
            return Ok(nothing(StreamEnd::Missing, None));
        }
        Err(error) => return Err(error),
    };
    let last = match ending::read(reader, flow).await? {
        Ending::Empty => return Ok(nothing(StreamEnd::Empty, Some(stream))),
        Ending::Foreign(reason) => return Ok(nothing(StreamEnd::Foreign(reason), Some(stream))),
        Ending::At(last) => *last,
    };
    let marker = newest_marker(reader, flow, &stream, &last).await?;
    let last_transaction = if last.passed_over {
        // The newest on the subject may be one of those passed over, which proves nothing.
        LastTransaction::Trimmed
    } else {
        last_transaction(reader, flow, last.at).await?
    };
    Ok(BrokerFacts {
        tail_at: last.at,
        end: StreamEnd::At(last.tail, last.frame.header.source),
        stream: Some(stream),
        marker,
        last_transaction,
    })
}

/// Reads the source's side and puts both together.
pub(crate) async fn of_source(
    session: &Session,
    options: &SourceOptions,
    history: SourceHistory,
    broker: &BrokerFacts,
) -> Result<Facts, Fault> {
    let slot = slot::read(session, &options.slot)
        .await
        .map_err(|error| fault(&error))?;
    let flush = slot::flush_position(session)
        .await
        .map_err(|error| fault(&error))?;
    let (publication, existing) = members(session, options, broker.marker.as_ref()).await?;
    Ok(Facts {
        slot,
        database: options.connect.database().to_owned(),
        history,
        flush,
        stream: broker.end.clone(),
        publication,
        marker: broker.marker.clone(),
        existing,
    })
}

/// The publication as it is now, and which relations of an earlier marker left it.
pub(crate) async fn members(
    session: &Session,
    options: &SourceOptions,
    known: Option<&Marker>,
) -> Result<(Option<PublicationFacts>, BTreeSet<Oid>), Fault> {
    let publication = publication::describe(session, &options.publication)
        .await
        .map_err(|error| fault(&error))?;
    let published: Vec<Oid> = publication
        .iter()
        .flat_map(|facts| &facts.members)
        .map(|member| member.ids.relation)
        .collect();
    let gone: Vec<&PublicationMember> = known
        .into_iter()
        .flat_map(|marker| &marker.members)
        .filter(|member| !published.contains(&member.relation))
        .collect();
    let existing = if gone.is_empty() {
        BTreeSet::new()
    } else {
        publication::left_behind(session, &gone, &published)
            .await
            .map_err(|error| fault(&error))?
    };
    Ok((publication, existing))
}

/// A stored message as the stream's tail; the error says why it is not a frame of this flow.
pub(crate) fn tail_of(
    message: &StoredFrameBytes,
    flow: &FlowName,
) -> Result<(Tail, Frame), String> {
    let frame = frame_of(&message.payload, flow)?;
    let tail = Tail {
        sequence: message.sequence,
        ordinal: frame.header.ordinal,
        digest: Frame::digest_of(&message.payload),
        position: frame.header.position,
        incarnation: frame.header.incarnation,
    };
    Ok((tail, frame))
}

pub(crate) fn frame_of(payload: &Bytes, flow: &FlowName) -> Result<Frame, String> {
    let frame = Frame::decode(payload).map_err(|error| error.to_string())?;
    if frame.header.flow != *flow {
        return Err(format!("it belongs to flow {}", frame.header.flow));
    }
    Ok(frame)
}

/// How full a stream is.
pub(crate) fn space(facts: &StreamFacts) -> StreamSpace {
    StreamSpace {
        bytes: facts.bytes,
        max_bytes: facts.max_bytes,
        last_sequence: facts.last_sequence,
    }
}

/// The marker of the tail's incarnation: the first frame of that incarnation. Incarnations never
/// go down along the stream, so it is found by halving; it may have been trimmed.
async fn newest_marker(
    reader: &Reader,
    flow: &FlowName,
    stream: &StreamFacts,
    last: &Last,
) -> Result<Option<Marker>, BrokerError> {
    let (mut low, mut high) = (stream.first_sequence.0, last.newest_at.0);
    while low < high {
        let middle = low + (high - low) / 2;
        let next = reader
            .next_on(&flow.all_subjects(), StreamSequence(middle))
            .await?;
        let Some(next) = next else {
            high = middle;
            continue;
        };
        let Ok(frame) = frame_of(&next.payload, flow) else {
            return Ok(None);
        };
        if frame.header.incarnation >= last.tail.incarnation {
            high = middle;
        } else {
            low = next.sequence.0 + 1;
        }
    }
    let first = reader
        .next_on(&flow.all_subjects(), StreamSequence(low))
        .await?;
    let frame = first.and_then(|first| frame_of(&first.payload, flow).ok());
    Ok(match frame.map(|frame| frame.body) {
        Some(Body::Marker(marker)) => Some(marker),
        _ => None,
    })
}

/// The newest transaction in the stream; one that proves nothing about what the source sends again
/// counts as trimmed.
async fn last_transaction(
    reader: &Reader,
    flow: &FlowName,
    end: StreamSequence,
) -> Result<LastTransaction, BrokerError> {
    let last = reader.last_on(&flow.transactions_subject(Lane(0))).await?;
    let (found, at) = match last {
        Some(last) => {
            let frame = frame_of(&last.payload, flow).ok();
            let known = frame.and_then(|frame| match frame.body {
                Body::Bundle(entries) => entries.last().map(|entry| entry.identity()),
                Body::Manifest(manifest) => Some(manifest.identity()),
                _ => None,
            });
            (known.map(LastTransaction::Known), last.sequence)
        }
        None => {
            let first = reader
                .next_on(&flow.all_subjects(), StreamSequence(1))
                .await?;
            let frame = first.and_then(|first| frame_of(&first.payload, flow).ok());
            // Nothing was trimmed yet, so there never was one.
            let whole = matches!(frame.map(|f| f.body), Some(Body::Genesis(_)));
            (whole.then_some(LastTransaction::None), StreamSequence(1))
        }
    };
    let Some(found) = found else {
        return Ok(LastTransaction::Trimmed);
    };
    match passed_lost(reader, flow, (at, end)).await? {
        // What the broker lost is between it and the end, and the source may send it once more.
        true => Ok(LastTransaction::Trimmed),
        false => Ok(found),
    }
}

/// Whether a marker between two places goes on further than the frame before it had come: the
/// broker had lost frames, with transactions that the target has and the stream has not (C26).
/// Where that frame is gone nobody can tell, and what the source sends is compared all the same.
async fn passed_lost(
    reader: &Reader,
    flow: &FlowName,
    (after, end): (StreamSequence, StreamSequence),
) -> Result<bool, BrokerError> {
    let marks = flow.mark_subject();
    let mut from = after.next();
    while let Some(mark) = reader.next_on(&marks, from).await? {
        if mark.sequence > end {
            break;
        }
        if let Ok(frame) = frame_of(&mark.payload, flow)
            && let Body::Marker(marker) = &frame.body
            && let Some(before) = reader.get(StreamSequence(mark.sequence.0 - 1)).await?
            && Frame::digest_of(&before.payload) == frame.header.previous
            && let Ok(before) = frame_of(&before.payload, flow)
            && before.header.position < marker.continues_at
        {
            return Ok(true);
        }
        from = mark.sequence.next();
    }
    Ok(false)
}
