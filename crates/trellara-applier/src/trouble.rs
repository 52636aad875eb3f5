//! What ends an attempt, and what follows from it: the one place where an error becomes a retry,
//! a probe or a halt.

use trellara_crashpoints::{self as crashpoints, Point};
use trellara_envelope::{Halt, HaltCode};
use trellara_jetstream::{BrokerError, BrokerErrorKind};
use trellara_postgres::sqlstate::{self, ErrorClass};
use trellara_postgres::{ConnectError, ConnectErrorKind, Fault, fault};

use crate::disposition::{self, Disposition};
use crate::execute::{ApplyError, ApplyErrorKind};
use crate::ledger::LedgerError;
use crate::quarantine::footprint::LoadError;
use crate::schema::SchemaError;

/// Why the running attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Trouble {
    /// Passes by itself: everything is taken up anew after a back-off, for ever (A5).
    Passing(String),
    /// The same, but somebody does it to us: named under an alarm.
    Disturbed {
        /// What happened, and what that code means.
        reason: String,
        /// Five characters.
        sqlstate: String,
    },
    /// Stopped for cause.
    Halted {
        /// Code, reason, hint.
        halt: Halt,
        /// Who can end it.
        cure: Cure,
    },
    /// A shutdown was asked for.
    Cancelled,
}

/// Who can end a halt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cure {
    /// A change of rights, tables or settings: tried again by itself.
    Probe,
    /// Room on a disk, or another primary: tried again by itself, every 5 to 30 seconds.
    ProbeSlowly,
    /// An operator at the desk: the lane is held meanwhile.
    Desk,
    /// Only an operator.
    Operator,
}

impl Trouble {
    /// What a test wanted to go wrong.
    pub(crate) fn crash_point() -> Self {
        Trouble::passing("a crash point")
    }

    /// Comes by a crash point at which what follows may fail.
    pub(crate) fn come_by(point: Point) -> Result<(), Self> {
        match crashpoints::reached(point) {
            true => Err(Self::crash_point()),
            false => Ok(()),
        }
    }

    pub(crate) fn passing(reason: impl Into<String>) -> Self {
        Trouble::Passing(reason.into())
    }

    /// Somebody ended our work on the target.
    pub(crate) fn disturbed(reason: impl Into<String>, sqlstate: &str) -> Self {
        Trouble::Disturbed {
            reason: format!("{}: {}", reason.into(), sqlstate::describe(sqlstate)),
            sqlstate: sqlstate.to_owned(),
        }
    }

    /// The target takes no writes.
    fn cannot_write(reason: String) -> Self {
        Trouble::Halted {
            halt: Halt::new(
                HaltCode::Config,
                reason,
                "the target takes no writes: look at its disk and at default_transaction_read_only",
            ),
            cure: Cure::ProbeSlowly,
        }
    }

    pub(crate) fn operator(halt: Halt) -> Self {
        Trouble::Halted {
            halt,
            cure: Cure::Operator,
        }
    }

    /// The lane stands in front of a held transaction.
    pub(crate) fn held(halt: Halt) -> Self {
        Trouble::Halted {
            halt,
            cure: Cure::Desk,
        }
    }

    pub(crate) fn probe(halt: Halt) -> Self {
        Trouble::Halted {
            halt,
            cure: Cure::Probe,
        }
    }
}

impl From<Halt> for Trouble {
    fn from(halt: Halt) -> Self {
        Trouble::operator(halt)
    }
}

impl From<ConnectError> for Trouble {
    fn from(error: ConnectError) -> Self {
        if error.is_passing() {
            return Trouble::passing(format!("the target is not reachable: {error}"));
        }
        let code = match error.kind {
            ConnectErrorKind::Refused => HaltCode::Rights,
            ConnectErrorKind::Tls
            | ConnectErrorKind::Protocol
            | ConnectErrorKind::Server
            | ConnectErrorKind::Unreachable
            | ConnectErrorKind::ServerStarting
            | ConnectErrorKind::TooManyConnections
            | ConnectErrorKind::NoSuitableServer => HaltCode::Config,
        };
        let reason = format!("the target refuses us: {error}");
        Trouble::probe(Halt::new(code, reason, error.hint))
    }
}

impl From<tokio_postgres::Error> for Trouble {
    /// An error of one of our own statements, never of a row.
    fn from(error: tokio_postgres::Error) -> Self {
        Trouble::from(fault(&error))
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        let reason = format!("the target: {} [{}]", fault.message, fault.sqlstate);
        let (code, hint) = match fault.class {
            ErrorClass::Configuration if fault.sqlstate == "42501" => (
                HaltCode::Rights,
                "run the statements of trellara setup --print-sql on the target",
            ),
            ErrorClass::Configuration => {
                (HaltCode::Config, "run trellara setup against this target")
            }
            ErrorClass::DataFault => (
                HaltCode::State,
                "our own tables refused our own row: was the schema trellara changed by hand?",
            ),
            ErrorClass::Passing
            | ErrorClass::Suspicious
            | ErrorClass::TargetCannotWrite
            | ErrorClass::NotMyPredecessor
            | ErrorClass::Unknown => (HaltCode::State, "the target's own log says more"),
        };
        match disposition::of_statement(&fault) {
            Disposition::Retry => Trouble::passing(reason),
            Disposition::RetryNamed => Trouble::disturbed(reason, &fault.sqlstate),
            Disposition::AskLedger => {
                Trouble::passing("another applier's row was first on this lane")
            }
            Disposition::Probe => Trouble::cannot_write(reason),
            Disposition::HaltAndProbe => Trouble::probe(Halt::new(code, reason, hint)),
            Disposition::Quarantine | Disposition::Stop | Disposition::Operator => {
                Trouble::operator(Halt::new(code, reason, hint))
            }
        }
    }
}

impl From<LedgerError> for Trouble {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Server(error) => error.into(),
            LedgerError::Inconsistent(halt) => halt.into(),
        }
    }
}

impl From<LoadError> for Trouble {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Ledger(error) => error.into(),
            LoadError::Catalog(error) => of_reason(
                &error,
                format!("looking at tables of what is held: {error}"),
            ),
        }
    }
}

impl From<SchemaError> for Trouble {
    fn from(error: SchemaError) -> Self {
        let hint = match &error {
            SchemaError::Server(fault) => return Trouble::from(fault.clone()),
            SchemaError::Missing | SchemaError::Older { .. } => "run trellara setup",
            SchemaError::Newer { .. } => "run the newer trellara that made it",
        };
        Trouble::probe(Halt::new(HaltCode::Config, error.to_string(), hint))
    }
}

impl From<BrokerError> for Trouble {
    fn from(error: BrokerError) -> Self {
        let hint = error.hint().unwrap_or_default().to_owned();
        if error.is_rewound() {
            // The next start looks for the marker that heals it, or says that there is none.
            return Trouble::passing(error.to_string());
        }
        match error.kind() {
            BrokerErrorKind::Passing => Trouble::passing(error.to_string()),
            BrokerErrorKind::Permission { subject } => Trouble::probe(Halt::new(
                HaltCode::Rights,
                error.to_string(),
                if hint.is_empty() {
                    format!("let the applier's NATS user use {subject:?}")
                } else {
                    hint
                },
            )),
            BrokerErrorKind::Missing => Trouble::probe(Halt::new(
                HaltCode::NoStream,
                error.to_string(),
                "the stream is gone: restore it, or trellara setup --new-stream",
            )),
            BrokerErrorKind::Refused { .. } | BrokerErrorKind::Configuration => {
                Trouble::probe(Halt::new(HaltCode::Broker, error.to_string(), hint))
            }
        }
    }
}

/// What follows from a change that the target did not take, when it failed alone and is not set
/// aside.
pub(crate) fn of_apply(error: &ApplyError, transaction: &str) -> Trouble {
    of_reason(error, format!("transaction {transaction}: {error}"))
}

fn of_reason(error: &ApplyError, reason: String) -> Trouble {
    let code = match error.kind {
        ApplyErrorKind::Schema => HaltCode::Schema,
        ApplyErrorKind::Rights => HaltCode::Rights,
        ApplyErrorKind::Corrupt => HaltCode::Corrupt,
        ApplyErrorKind::Passing
        | ApplyErrorKind::Data
        | ApplyErrorKind::Count
        | ApplyErrorKind::Unknown => HaltCode::ApplyFailed,
    };
    match disposition::of_change(error.kind, &error.sqlstate) {
        Disposition::Retry | Disposition::AskLedger => Trouble::passing(reason),
        Disposition::RetryNamed => Trouble::disturbed(reason, &error.sqlstate),
        Disposition::Probe => Trouble::cannot_write(reason),
        Disposition::HaltAndProbe => Trouble::probe(Halt::new(code, reason, &error.hint)),
        Disposition::Quarantine | Disposition::Stop | Disposition::Operator => {
            Trouble::operator(Halt::new(code, reason, &error.hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cure(sqlstate: &str) -> Option<Cure> {
        let fault = Fault {
            class: trellara_postgres::sqlstate::classify(sqlstate),
            sqlstate: sqlstate.to_owned(),
            severity: "ERROR".to_owned(),
            message: "x".to_owned(),
            schema: None,
            table: None,
            column: None,
            constraint: None,
        };
        match Trouble::from(fault) {
            Trouble::Halted { cure, .. } => Some(cure),
            Trouble::Passing(_) | Trouble::Disturbed { .. } | Trouble::Cancelled => None,
        }
    }

    #[test]
    fn what_our_own_statements_meet_without_fault_is_tried_again() {
        for passing in ["26000", "25P02", "40P01", "57014", ""] {
            assert_eq!(cure(passing), None, "{passing}");
        }
        for probed in ["XX000", "XX001", "XX002", "58P01", "54001", "42501"] {
            assert_eq!(cure(probed), Some(Cure::Probe), "{probed}");
        }
        for full in ["25006", "53100", "58030"] {
            assert_eq!(cure(full), Some(Cure::ProbeSlowly), "{full}");
        }
        assert_eq!(cure("23514"), Some(Cure::Operator));
    }
}
