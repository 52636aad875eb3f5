//! What an SQLSTATE says about the way on: one table.
//!
//! It states what kind of trouble a code is; the rules crates decide what follows. What passes is
//! never a reason to give up, however long it takes, and what somebody did to us (a cancelled
//! statement, a session timeout) passes too: it is only named.

/// What kind of trouble an SQLSTATE is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Passes by itself: lost connection, deadlock, lock timeout, shutdown, too many connections.
    Passing,
    /// Passes, but somebody did it: a cancelled statement, a session timeout of the server. Retried
    /// for ever, and named.
    Suspicious,
    /// The server cannot take writes now: read-only, disk full, I/O error. Probed every few seconds.
    TargetCannotWrite,
    /// A right, a table, a type or a setting is missing or of another shape.
    Configuration,
    /// The row itself is refused: by a type, a constraint, or a trigger.
    DataFault,
    /// 23502 or 23505 on `trellara.applied`: another applier's row was there first. Connect again
    /// and read the checkpoint.
    NotMyPredecessor,
    /// Anything else; [`describe`] has a name for what can be expected.
    Unknown,
}

impl ErrorClass {
    /// The class as it appears in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorClass::Passing => "passing",
            ErrorClass::Suspicious => "suspicious",
            ErrorClass::TargetCannotWrite => "target_cannot_write",
            ErrorClass::Configuration => "configuration",
            ErrorClass::DataFault => "data_fault",
            ErrorClass::NotMyPredecessor => "not_my_predecessor",
            ErrorClass::Unknown => "unknown",
        }
    }
}

/// The class of an SQLSTATE. It cannot see the table, so [`ErrorClass::NotMyPredecessor`] comes
/// only from [`crate::fault`]. An empty code (no answer at all) is [`ErrorClass::Passing`].
pub fn classify(code: &str) -> ErrorClass {
    use ErrorClass::*;
    match code {
        "" => Passing,
        // Single codes that differ from their class.
        "25006" | "53100" | "58000" | "58030" => TargetCannotWrite,
        "25P03" | "25P04" | "57000" | "57014" | "57P05" => Suspicious,
        "40002" => DataFault,
        "53400" | "57P04" => Configuration,
        "55P03" | "55006" | "72000" => Passing,
        "57P01" | "57P02" | "57P03" => Passing,
        _ => match code.get(..2).unwrap_or_default() {
            // Connection, transaction rollback, resources.
            "08" | "40" | "53" => Passing,
            // Feature, authorization, catalogue, syntax and access, object state.
            "0A" | "28" | "3D" | "3F" | "42" | "55" => Configuration,
            // Trigger, cardinality, data, integrity, triggered change, routines, check option, PL.
            "09" | "21" | "22" | "23" | "27" | "38" | "39" | "44" | "P0" => DataFault,
            _ => Unknown,
        },
    }
}

/// A name for people, where the class alone would not say enough.
pub fn describe(code: &str) -> &'static str {
    match code {
        "57014" => "an administrator or a timeout cancelled the statement",
        "25P03" => "the server's idle_in_transaction_session_timeout ended the session",
        "25P04" => "the server's transaction_timeout ended the session",
        "57P05" => "the server's idle_session_timeout ended the session",
        "57P01" => "an administrator ended the session, or the server is shutting down",
        "57P02" => "another backend crashed, and the server restarts",
        "57P03" => "the server is starting, stopping or in recovery",
        "25006" => "the server is read-only (a standby?)",
        "53100" => "the server's disk is full",
        "53200" => "the server is out of memory",
        "53300" => "the server has no place for another connection",
        "XX001" => "the server found a damaged page",
        "XX002" => "the server found a damaged index",
        _ => match code.get(..2).unwrap_or_default() {
            "" => "the connection was lost",
            "54" => "the statement exceeds a limit of the server",
            "58" => "the server's operating system failed",
            "F0" => "the server's configuration file is in error",
            "XX" => "an internal error of the server",
            _ => "",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorClass::*;
    use super::*;

    #[test]
    fn the_table_of_the_fault_matrix_holds() {
        let table = [
            (
                Passing,
                "08000 08006 40001 40P01 55P03 57P01 57P02 57P03 53000 53200 53300",
            ),
            (Suspicious, "57014 25P03 25P04 57P05"),
            (TargetCannotWrite, "25006 53100 58030"),
            (
                Configuration,
                "42501 42P01 42703 42804 3F000 28000 28P01 0A000 3D000",
            ),
            (DataFault, "22P02 22001 23502 23503 23505 23514 23P01 P0001"),
            (Unknown, "XX000 XX001 54000 54023 25P02"),
        ];
        for (class, codes) in table {
            for code in codes.split(' ') {
                assert_eq!(classify(code), class, "{code}");
            }
        }
    }

    #[test]
    fn what_is_retried_or_unknown_has_a_name() {
        for code in ["57014", "25P03", "57P05", "XX000", "XX001", "54001", ""] {
            assert!(!describe(code).is_empty(), "{code}");
        }
    }
}
