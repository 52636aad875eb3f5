//! What is done about what goes wrong: the classes of errors as one table.
//!
//! The edges say what kind of trouble an SQLSTATE is; here it is decided what follows. Whatever
//! passes by itself is never anybody's verdict, however long it takes, and what nobody knows is
//! never passed over. None of the tables has a wildcard over our own kinds: a new one does not
//! compile before somebody has said what follows from it.
#![deny(clippy::wildcard_enum_match_arm)]

use trellara_postgres::Fault;
use trellara_postgres::sqlstate::{ErrorClass, classify};

use crate::execute::ApplyErrorKind;

/// What is done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Passes by itself: roll back, back off, repeat for ever (A5).
    Retry,
    /// Passes as well, but somebody does it to us: repeated for ever, under an alarm that names it.
    RetryNamed,
    /// The target takes no writes: tried again every few seconds, and not ready meanwhile.
    Probe,
    /// Rights or tables do not fit: halt exactly in front of it, and go on by ourselves when the
    /// cause is gone.
    HaltAndProbe,
    /// The transaction is refused for cause: the flow's policy decides.
    Quarantine,
    /// Nobody knows what it is: stop in front of it, whatever the policy.
    Stop,
    /// What was sent to us cannot be used; only an operator can say what to do.
    Operator,
    /// Whether it was committed is not known: the next connection reads the ledger (B21).
    AskLedger,
}

/// What follows from a change that the target did not take.
pub fn of_change(kind: ApplyErrorKind, sqlstate: &str) -> Disposition {
    match kind {
        ApplyErrorKind::Passing => match classify(sqlstate) {
            ErrorClass::Suspicious => Disposition::RetryNamed,
            ErrorClass::TargetCannotWrite => Disposition::Probe,
            // Such as a prepared statement that a pooler threw away: its class alone would not say
            // that it passes.
            ErrorClass::Passing
            | ErrorClass::Configuration
            | ErrorClass::DataFault
            | ErrorClass::NotMyPredecessor
            | ErrorClass::Unknown => Disposition::Retry,
        },
        ApplyErrorKind::Schema | ApplyErrorKind::Rights => Disposition::HaltAndProbe,
        ApplyErrorKind::Data | ApplyErrorKind::Count => Disposition::Quarantine,
        ApplyErrorKind::Unknown => Disposition::Stop,
        ApplyErrorKind::Corrupt => Disposition::Operator,
    }
}

/// What follows from an error of one of our own statements, never of a row.
pub fn of_statement(fault: &Fault) -> Disposition {
    // A trigger or a pooler threw our prepared statements away; the next session has its own. The
    // same for what was sent behind the statement that failed.
    if matches!(fault.sqlstate.as_str(), "26000" | "25P02") {
        return Disposition::Retry;
    }
    match fault.class {
        ErrorClass::Passing => Disposition::Retry,
        ErrorClass::Suspicious => Disposition::RetryNamed,
        ErrorClass::TargetCannotWrite => Disposition::Probe,
        // Another applier's row was first: connect again and read the verdict anew.
        ErrorClass::NotMyPredecessor => Disposition::AskLedger,
        // Of the unknown: nothing in our statement is to blame, as far as anybody knows. An index
        // is damaged, or a table replaced under it; somebody may mend that without telling us.
        ErrorClass::Configuration | ErrorClass::Unknown => Disposition::HaltAndProbe,
        ErrorClass::DataFault => Disposition::Operator,
    }
}

/// What follows from a COMMIT that was not answered with success. Deferred constraints and
/// triggers speak up there: those are about a row, and [`Disposition::Quarantine`] or
/// [`Disposition::HaltAndProbe`] of it is decided by [`of_change`].
pub fn of_commit(fault: &Fault) -> Disposition {
    if fault.sqlstate.is_empty() {
        return Disposition::AskLedger;
    }
    match fault.class {
        ErrorClass::DataFault => Disposition::Quarantine,
        ErrorClass::Configuration => Disposition::HaltAndProbe,
        ErrorClass::Passing
        | ErrorClass::Suspicious
        | ErrorClass::TargetCannotWrite
        | ErrorClass::NotMyPredecessor
        | ErrorClass::Unknown => of_statement(fault),
    }
}

/// Whether a batch that failed so is worth trying transaction by transaction.
pub fn blames_a_transaction(disposition: Disposition) -> bool {
    match disposition {
        Disposition::Retry
        | Disposition::RetryNamed
        | Disposition::Probe
        | Disposition::AskLedger => false,
        Disposition::HaltAndProbe
        | Disposition::Quarantine
        | Disposition::Stop
        | Disposition::Operator => true,
    }
}

/// Whether a failure that passes by itself may come of the batch's size, so that it would come
/// again as often as the batch is repeated whole: a transaction of thousands of tables finds no
/// room for its locks, and a long one is in more people's way than a short one.
pub fn may_be_the_batch(disposition: Disposition) -> bool {
    match disposition {
        Disposition::Retry | Disposition::RetryNamed => true,
        Disposition::Probe
        | Disposition::HaltAndProbe
        | Disposition::Quarantine
        | Disposition::Stop
        | Disposition::Operator
        | Disposition::AskLedger => false,
    }
}

/// What an error of a change is, by what the server said.
pub fn kind(fault: &Fault) -> ApplyErrorKind {
    match fault.sqlstate.as_str() {
        // Our prepared statement is gone or stale: a clean repetition prepares it again (B120).
        "26000" | "0A000" if fault.message.contains("cached plan") => {
            return ApplyErrorKind::Passing;
        }
        "26000" | "25P02" => return ApplyErrorKind::Passing,
        // A table in use by our own session: checks outstanding on it, or a trigger's statement.
        // Of the same transaction it will be so again.
        "55006" => return ApplyErrorKind::Data,
        "42501" => return ApplyErrorKind::Rights,
        // A bound statement or trigger function can fail this way without any fault of a table.
        code if code.starts_with("42") || code == "3F000" || code == "428C9" => {
            return ApplyErrorKind::Schema;
        }
        _ => {}
    }
    match fault.class {
        ErrorClass::Passing | ErrorClass::Suspicious | ErrorClass::TargetCannotWrite => {
            ApplyErrorKind::Passing
        }
        ErrorClass::Configuration => ApplyErrorKind::Schema,
        ErrorClass::DataFault | ErrorClass::NotMyPredecessor => ApplyErrorKind::Data,
        ErrorClass::Unknown => ApplyErrorKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn fault(sqlstate: &str, message: &str) -> Fault {
        Fault {
            class: classify(sqlstate),
            sqlstate: sqlstate.to_owned(),
            severity: "ERROR".to_owned(),
            message: message.to_owned(),
            schema: None,
            table: None,
            column: None,
            constraint: None,
        }
    }

    fn change(sqlstate: &str) -> Disposition {
        of_change(kind(&fault(sqlstate, "x")), sqlstate)
    }

    /// The whole table of the fault matrix, as it is for a change of a row.
    #[test]
    fn every_class_of_the_fault_matrix_has_its_end() {
        let table = [
            (
                Disposition::Retry,
                "08000 08006 40001 40P01 55P03 57P01 57P02 57P03 53000 53200 53300 26000 25P02",
            ),
            (Disposition::RetryNamed, "57014 25P03 25P04 57P05"),
            (Disposition::Probe, "25006 53100 58030 58000"),
            (
                Disposition::HaltAndProbe,
                "42501 42P01 42703 42804 3F000 28000 0A000 428C9",
            ),
            (
                Disposition::Quarantine,
                "22P02 22001 22003 22021 23502 23503 23505 23514 23P01 P0001 38000 55006 40002",
            ),
            (Disposition::Stop, "XX000 XX001 54001 58P01 F0000"),
        ];
        for (wanted, codes) in table {
            for code in codes.split(' ') {
                assert_eq!(change(code), wanted, "{code}");
            }
        }
        assert_eq!(
            of_change(ApplyErrorKind::Count, ""),
            Disposition::Quarantine
        );
        assert_eq!(
            of_change(ApplyErrorKind::Corrupt, ""),
            Disposition::Operator
        );
        assert_eq!(of_change(ApplyErrorKind::Passing, ""), Disposition::Retry);
    }

    #[test]
    fn b114_passing_faults_are_never_the_rows() {
        for code in "40P01 55P03 53300 53100 57P01 25006 40001 57014 53200 57P03".split(' ') {
            assert!(!blames_a_transaction(change(code)), "{code}");
            assert_eq!(kind(&fault(code, "x")), ApplyErrorKind::Passing, "{code}");
        }
        let stale = fault("0A000", "cached plan must not change result type");
        assert_eq!(kind(&stale), ApplyErrorKind::Passing);
        assert_eq!(kind(&fault("42703", "x")), ApplyErrorKind::Schema);
    }

    #[test]
    fn what_may_come_of_a_batchs_size_is_tried_in_parts() {
        for code in "53200 40P01 55P03 57014".split(' ') {
            assert!(may_be_the_batch(change(code)), "{code}");
        }
        for code in "53100 25006 58030 55006 23505 42P01 XX000".split(' ') {
            assert!(!may_be_the_batch(change(code)), "{code}");
        }
    }

    #[test]
    fn b21_a_commit_without_an_answer_is_for_the_ledger_to_decide() {
        assert_eq!(
            of_commit(&fault("", "connection lost")),
            Disposition::AskLedger
        );
        assert_eq!(of_commit(&fault("23503", "x")), Disposition::Quarantine);
        assert_eq!(of_commit(&fault("42P01", "x")), Disposition::HaltAndProbe);
        assert_eq!(of_commit(&fault("40001", "x")), Disposition::Retry);
        assert_eq!(of_commit(&fault("53100", "x")), Disposition::Probe);
    }

    #[test]
    fn what_our_own_statements_meet_without_fault_is_tried_again() {
        let own = |code: &str| of_statement(&fault(code, "x"));
        for code in ["26000", "25P02", "40P01", ""] {
            assert_eq!(own(code), Disposition::Retry, "{code}");
        }
        assert_eq!(own("57014"), Disposition::RetryNamed);
        for code in [
            "XX000", "XX001", "XX002", "58P01", "54001", "42501", "42P01",
        ] {
            assert_eq!(own(code), Disposition::HaltAndProbe, "{code}");
        }
        assert_eq!(own("25006"), Disposition::Probe);
        assert_eq!(own("23514"), Disposition::Operator);
    }
}
