//! Whether a transaction was applied: the table of C33 as a pure function.
//!
//! Two authorities could answer: the source's order (everything that ends at or below the
//! checkpoint is done) and the ledger (its identity is there). Where they disagree nobody guesses.

use trellara_envelope::HaltCode;

/// What is known of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// It ends at or below the lane's checkpoint.
    pub at_or_below_checkpoint: bool,
    /// Its identity is in the lane's ledger.
    pub in_ledger: bool,
    /// It is, or was, in quarantine (C42): only those who hold it may answer for it.
    pub held: bool,
    /// It ends at or below the ledger's watermark: its row may have been pruned.
    pub at_or_below_watermark: bool,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is new.
    Apply,
    /// It was applied: skip it, and say so.
    Duplicate,
    /// It was held: skip it, whatever the watermark says.
    Held,
    /// Stop with this code.
    Halt(HaltCode),
}

/// The table of C33.
pub fn verdict(known: Known) -> Answer {
    let Known {
        at_or_below_checkpoint,
        in_ledger,
        held,
        at_or_below_watermark,
    } = known;
    match (
        at_or_below_checkpoint,
        in_ledger,
        held,
        at_or_below_watermark,
    ) {
        (true, true, true | false, true | false) => Answer::Duplicate,
        (true, false, true, true | false) => Answer::Held,
        (true, false, false, true) => Answer::Duplicate,
        // Below the checkpoint another history was applied in its place.
        (true, false, false, false) => Answer::Halt(HaltCode::Diverged),
        (false, false, false, true | false) => Answer::Apply,
        // The checkpoint was set back, or a row belongs to another target.
        (false, true, true | false, true | false) => Answer::Halt(HaltCode::State),
        // Held, and yet the checkpoint has not passed it: it was set back as well.
        (false, false, true, true | false) => Answer::Halt(HaltCode::State),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(checkpoint: bool, ledger: bool, held: bool, watermark: bool) -> Answer {
        verdict(Known {
            at_or_below_checkpoint: checkpoint,
            in_ledger: ledger,
            held,
            at_or_below_watermark: watermark,
        })
    }

    const BOTH: [bool; 2] = [true, false];

    #[test]
    fn c33_applied_and_in_the_ledger_is_a_duplicate() {
        for held in BOTH {
            for watermark in BOTH {
                assert_eq!(of(true, true, held, watermark), Answer::Duplicate);
            }
        }
    }

    #[test]
    fn c33_c42_what_is_held_is_never_answered_by_the_watermark() {
        for watermark in BOTH {
            assert_eq!(of(true, false, true, watermark), Answer::Held);
        }
    }

    #[test]
    fn c33_below_the_watermark_the_source_order_answers() {
        assert_eq!(of(true, false, false, true), Answer::Duplicate);
    }

    #[test]
    fn c33_applied_by_its_place_but_not_in_the_ledger_has_diverged() {
        let diverged = Answer::Halt(HaltCode::Diverged);
        assert_eq!(of(true, false, false, false), diverged);
    }

    #[test]
    fn c33_above_the_checkpoint_and_unknown_is_applied() {
        for watermark in BOTH {
            assert_eq!(of(false, false, false, watermark), Answer::Apply);
        }
    }

    #[test]
    fn c33_above_the_checkpoint_and_known_means_an_edited_state() {
        let state = Answer::Halt(HaltCode::State);
        for watermark in BOTH {
            for held in BOTH {
                assert_eq!(of(false, true, held, watermark), state);
            }
            assert_eq!(of(false, false, true, watermark), state);
        }
    }
}
