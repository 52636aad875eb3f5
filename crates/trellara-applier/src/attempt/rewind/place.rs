//! Where a rewind begins.

use trellara_envelope::{Body, Lsn, StreamSequence};

use super::super::Attempt;
use crate::ledger::writer;
use crate::position;
use crate::rewind::Place;
use crate::trouble::Trouble;

/// Where to begin, or why not; `None` when the stream holds nothing from before the lane's place.
pub(super) type Found = Result<Option<StreamSequence>, String>;

impl Attempt<'_> {
    /// The first frame of a rewind to `to`, at or before `until`, the frame where the lane stands.
    pub(super) async fn first_of(
        &self,
        to: Place,
        until: StreamSequence,
    ) -> Result<Found, Trouble> {
        let oldest = self.next_from(StreamSequence(1)).await?;
        let Some(oldest) = oldest.filter(|oldest| oldest.sequence <= until) else {
            return Ok(Ok(None));
        };
        let first = match to {
            Place::Oldest => oldest.sequence,
            Place::Sequence(wanted) if wanted > until => {
                return Ok(Err(format!(
                    "sequence {wanted} is beyond the applied place, sequence {until}"
                )));
            }
            Place::Sequence(wanted) if wanted < oldest.sequence => {
                return Ok(Err(format!(
                    "sequence {wanted} is not in the stream any more: its oldest frame is at {}",
                    oldest.sequence
                )));
            }
            // Chunks are not read here, and sequences have holes.
            Place::Sequence(wanted) => match self.next_from(wanted).await? {
                Some(first) if first.sequence <= until => first.sequence,
                Some(_) | None => until,
            },
            Place::Lsn(wanted) => {
                let applied = self.machine.end_lsn();
                if wanted > applied {
                    return Ok(Err(format!(
                        "{wanted} is beyond the applied position, {applied}"
                    )));
                }
                let frame = position::decode(&oldest.payload, oldest.sequence)?;
                let behind = frame.header.follows;
                let first_ever = matches!(frame.body, Body::Genesis(_));
                if first_ever && behind > wanted {
                    return Ok(Err(format!(
                        "{wanted} is before the flow began, at {behind}"
                    )));
                }
                if behind >= wanted && !first_ever {
                    return Ok(Err(format!(
                        "{wanted} is not in the stream any more: its oldest frame, at sequence {}, \
                         begins behind {behind}",
                        oldest.sequence
                    )));
                }
                self.reaches(wanted, oldest.sequence, until).await?
            }
        };
        Ok(Ok(Some(first)))
    }

    /// The first frame whose position is at or beyond `wanted`. Positions of frames may go back where
    /// a relay published something again; those of the lane never do, so that the ledger says behind
    /// which frame to look.
    async fn reaches(
        &self,
        wanted: Lsn,
        oldest: StreamSequence,
        until: StreamSequence,
    ) -> Result<StreamSequence, Trouble> {
        let (flow, lane) = (&self.options.flow, self.options.lane);
        let client = self.target.client();
        let before = writer::sequence_before(client, (flow, lane), &self.stream, wanted).await?;
        let mut from = before.map_or(oldest, |before| before.next().max(oldest));
        while let Some(stored) = self.next_from(from).await? {
            if stored.sequence >= until {
                break;
            }
            let frame = position::decode(&stored.payload, stored.sequence)?;
            if frame.header.position >= wanted {
                return Ok(stored.sequence);
            }
            from = stored.sequence.next();
        }
        Ok(until)
    }
}
