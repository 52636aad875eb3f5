//! Whether the flow carries what is to be compared: its publication, out of this very database.
//!
//! Two databases of one cluster share their identity and their positions, and a smaller publication
//! is as good a publication: neither shows in a position, and both would make "equal" mean less than
//! the flow is for.

use trellara_envelope::FlowName;
use trellara_postgres::{Session, fault};

use crate::error::{Failure, Side, VerifyError};
use crate::freeze::FreezeError;

/// Why the flow does not carry what is to be compared.
pub(crate) enum Untied {
    /// What is configured is not what the flow was set up with.
    Other {
        side: Side,
        reason: String,
        hint: &'static str,
    },
    /// A server could not tell.
    Server(Side, tokio_postgres::Error),
}

/// Refuses where the flow's lanes carry another publication, or decode another database.
pub(crate) async fn check(
    (source, target): (&Session, &Session),
    flow: &FlowName,
    publication: &str,
) -> Result<(), Untied> {
    const LANES: &str = "SELECT slot, publication FROM trellara.lane \
                          WHERE flow = $1 AND state = 'ready' ORDER BY lane";
    const DATABASE: &str = "SELECT database::text, database = current_database() \
                              FROM pg_catalog.pg_replication_slots WHERE slot_name = $1";
    let lanes = target.client.query(LANES, &[&flow.as_str()]).await;
    for lane in lanes.map_err(|error| Untied::Server(Side::Target, error))? {
        let (slot, set_up): (&str, &str) = (lane.get(0), lane.get(1));
        if set_up != publication {
            return Err(Untied::Other {
                side: Side::Source,
                reason: format!(
                    "the flow was set up with publication {set_up:?}, not {publication:?}"
                ),
                hint: "name it as source.publication: what the flow carries is what is compared",
            });
        }
        let found = source.client.query_opt(DATABASE, &[&slot]).await;
        let found = found.map_err(|error| Untied::Server(Side::Source, error))?;
        let Some(found) = found else {
            return Err(Untied::Other {
                side: Side::Source,
                reason: format!("the source has no replication slot {slot:?}, the flow's own"),
                hint: "is source.url the flow's source? trellara status shows the slot",
            });
        };
        if found.get::<_, Option<bool>>(1) != Some(true) {
            let decoded = found.get::<_, Option<&str>>(0).unwrap_or_default();
            return Err(Untied::Other {
                side: Side::Source,
                reason: format!(
                    "the flow's slot {slot:?} decodes database {decoded:?}, another one"
                ),
                hint: "source.url must name the database that the flow replicates",
            });
        }
    }
    Ok(())
}

impl From<Untied> for FreezeError {
    fn from(untied: Untied) -> Self {
        match untied {
            Untied::Other { reason, hint, .. } => FreezeError::Untied { reason, hint },
            Untied::Server(side, error) => FreezeError::Server {
                side,
                fault: Box::new(fault(&error)),
            },
        }
    }
}

impl From<Untied> for Failure {
    fn from(untied: Untied) -> Self {
        match untied {
            Untied::Other { side, reason, hint } => {
                VerifyError::unusable(side, reason, hint).into()
            }
            Untied::Server(side, error) => VerifyError::server(side, &fault(&error)).into(),
        }
    }
}
