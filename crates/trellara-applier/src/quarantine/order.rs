//! In which order held transactions may be applied, and which of them an order is about.

use tokio_postgres::Client;
use trellara_envelope::{FlowName, Lane, LaneEpoch};

use super::request::Order;
use super::{Held, HeldId};
use crate::ledger::lane as lane_number;
use crate::trouble::Trouble;

/// What an earlier epoch left behind in the middle of a replay.
const RELEASE: &str = "\
UPDATE trellara.held \
   SET state = CASE WHEN closed_at IS NULL THEN 'held' ELSE 'discarded' END, \
       claimed_epoch = NULL, claimed_at = NULL \
 WHERE flow = $1 AND lane = $2 AND state = 'replaying' AND claimed_epoch < $3";
/// The open ones that it waits behind. Only the nearest are written down: behind one of those that
/// was discarded it waits for what that one waited behind.
const WAITS_BEHIND: &str = "\
WITH RECURSIVE behind (id) AS ( \
    SELECT d.on_id FROM trellara.held_dependency AS d WHERE d.held_id = $1 \
    UNION \
    SELECT d.on_id FROM behind AS b \
      JOIN trellara.held AS o ON o.id = b.id AND o.closed_at IS NOT NULL AND o.state <> 'replayed' \
      JOIN trellara.held_dependency AS d ON d.held_id = o.id) \
SELECT o.id FROM behind AS b JOIN trellara.held AS o ON o.id = b.id \
 WHERE o.state IN ('held', 'replaying') ORDER BY o.id";
const OPEN: &str = "\
SELECT id FROM trellara.held \
 WHERE flow = $1 AND lane = $2 AND state IN ('held', 'replaying') ORDER BY id";

/// Lets go of what an earlier epoch of the lane was replaying when it ended.
pub(crate) async fn release_stale(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
    epoch: LaneEpoch,
) -> Result<u64, tokio_postgres::Error> {
    client
        .execute(RELEASE, &[&flow.as_str(), &lane_number(lane), &epoch.0])
        .await
}

/// Which ones an order is about, in order of commit.
pub(crate) async fn listed(
    client: &Client,
    (flow, lane): (&FlowName, Lane),
    order: &Order,
) -> Result<Vec<HeldId>, Trouble> {
    let Some(ids) = &order.ids else {
        let rows = client
            .query(OPEN, &[&flow.as_str(), &lane_number(lane)])
            .await?;
        return Ok(rows.iter().map(|row| HeldId(row.get(0))).collect());
    };
    let mut ids = ids.clone();
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// The open ones that one waits behind.
pub(crate) async fn waits_behind(client: &Client, id: HeldId) -> Result<Vec<HeldId>, Trouble> {
    let rows = client.query(WAITS_BEHIND, &[&id.0]).await?;
    Ok(rows.iter().map(|row| HeldId(row.get(0))).collect())
}

/// Why one must not be applied now, and what to do instead.
pub(crate) fn out_of_order(
    held: &Held,
    behind: &[HeldId],
    force: bool,
) -> Option<(String, String)> {
    if let Some(first) = behind.first() {
        let all: Vec<String> = behind.iter().map(HeldId::to_string).collect();
        return Some((
            format!("it waits behind {}: they touch the same", all.join(", ")),
            format!("trellara quarantine replay {first} first, or all of them with --all"),
        ));
    }
    let overtaken = held.overtaken.as_ref().filter(|_| !force)?;
    Some((
        format!(
            "a later transaction that touches the same is in: {}, which ends at {}",
            overtaken.transaction, overtaken.end_lsn
        ),
        "look at it with trellara quarantine show; --force --reason applies it all the same, and \
         may put older values over newer ones"
            .to_owned(),
    ))
}
