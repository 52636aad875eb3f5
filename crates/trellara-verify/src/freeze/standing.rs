//! Whether the ledger in the target's snapshot says what the snapshot has to stand at. Pure.

use trellara_envelope::{Lane, Lsn};

use super::FreezeError;
use crate::ledger::{Newest, Position};

/// The lanes' positions, when the snapshot shows exactly the lanes that were asked to stand still,
/// and each of them at the point. A lane that came, or went, in between stands nowhere known.
pub(super) fn all_at(
    point: Lsn,
    asked: &[Lane],
    seen: &[Newest],
) -> Result<Vec<Position>, FreezeError> {
    let elsewhere = |lane, found: Option<Position>| FreezeError::Elsewhere {
        lane,
        found: found.map(|position| position.end),
        wanted: point,
    };
    if let Some(other) = seen.iter().find(|newest| !asked.contains(&newest.lane)) {
        return Err(elsewhere(other.lane, other.at));
    }
    let position = |lane: &Lane| {
        let newest = seen.iter().find(|newest| newest.lane == *lane);
        match newest.and_then(|newest| newest.at) {
            Some(position) if position.end == point => Ok(position),
            other => Err(elsewhere(*lane, other)),
        }
    };
    asked.iter().map(position).collect()
}

#[cfg(test)]
mod tests {
    use trellara_envelope::{SystemId, Timeline};

    use super::*;

    #[test]
    fn exactly_the_lanes_that_were_asked_stand_at_the_point() {
        let newest = |lane, end: Option<u64>| Newest {
            lane: Lane(lane),
            at: end.map(|end| Position {
                end: Lsn(end),
                source: (SystemId(1), Timeline(1)),
            }),
        };
        let stands = |asked: &[u32], seen: &[Newest]| {
            let asked: Vec<Lane> = asked.iter().copied().map(Lane).collect();
            all_at(Lsn(7), &asked, seen).map(|all| all.len())
        };
        let both = [newest(0, Some(7)), newest(1, Some(7))];
        assert!(matches!(stands(&[0, 1], &both), Ok(2)));
        for (asked, seen) in [
            (&[0, 1][..], &[][..]),
            (&[0, 1], &both[..1]),
            (&[0], &both),
            (&[0], &[newest(0, Some(6))]),
            (&[0], &[newest(0, Some(8))]),
            (&[0], &[newest(0, None)]),
        ] {
            let got = stands(asked, seen);
            let elsewhere = matches!(got, Err(FreezeError::Elsewhere { .. }));
            assert!(elsewhere, "{asked:?} {seen:?}: {got:?}");
        }
    }
}
