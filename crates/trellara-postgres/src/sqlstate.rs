//! What an SQLSTATE says about the way on: one table.

/// What kind of trouble an SQLSTATE is. The rules crates decide what follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Passes by itself: lost connection, deadlock, lock timeout, shutdown, too many connections.
    Passing,
    /// Passes, but somebody did it: a cancelled statement, a session timeout of the server.
    Suspicious,
    /// The server cannot take writes now: read-only, disk full, I/O error.
    TargetCannotWrite,
    /// A right, a table or a setting is missing or of another shape.
    Configuration,
    /// The row itself is refused.
    DataFault,
    /// 23502 or 23505 on `trellara.applied`: another applier's row was first.
    NotMyPredecessor,
    /// Anything else.
    Unknown,
}

/// The class of an SQLSTATE; see [`ErrorClass`]. It cannot see the table, so
/// [`ErrorClass::NotMyPredecessor`] comes only from [`crate::fault`].
pub fn classify(code: &str) -> ErrorClass {
    use ErrorClass::*;
    match code {
        "40001" | "40P01" | "55P03" | "57P01" | "57P02" | "57P03" | "53000" | "53200" | "53300" => {
            Passing
        }
        "57014" | "25P03" | "25P04" | "57P05" => Suspicious,
        "25006" | "53100" | "58030" => TargetCannotWrite,
        "42501" | "42P01" | "42703" | "42804" | "3F000" | "0A000" => Configuration,
        _ if code.starts_with("08") => Passing,
        _ if code.starts_with("28") => Configuration,
        _ if code.starts_with("22") || code.starts_with("23") || code.starts_with("P0") => {
            DataFault
        }
        _ => Unknown,
    }
}
