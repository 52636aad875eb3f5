//! Under which number copies are written. Pure.
//!
//! The target tells the copies of one generation by the number of their writer: under one number a
//! generation is begun once, or its parts would be those of two snapshots.

use trellara_envelope::Incarnation;

/// Numbers that this process has written under, and seen others write under.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Of the incarnation that served last.
    served: Incarnation,
    /// What is begun anew needs a higher one.
    used: Option<Incarnation>,
    /// Frames that were written under this one are gone. Until a higher one serves, the same chain
    /// goes on; but a relay that had the slot in between may have begun everything under one that is
    /// higher, and nobody would hear of it from this chain.
    lost: Option<Incarnation>,
}

/// What an incarnation may do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Numbered {
    /// Go on.
    GoOn,
    /// Begin everything anew under its own number. Then [`Numbers::restart`].
    Anew,
    /// Write nothing: this number, or a higher one, was used.
    Wait(Incarnation),
}

impl Numbers {
    pub(super) fn used(&mut self, number: Incarnation) {
        self.used = self.used.max(Some(number));
    }

    pub(super) fn lost(&mut self, writer: Incarnation) {
        self.lost = Some(writer);
    }

    pub(super) fn of(&mut self, now: Incarnation) -> Numbered {
        // With another stream of the flow the numbers begin anew.
        let began_anew = now < std::mem::replace(&mut self.served, now);
        if began_anew {
            self.used = None;
        }
        if began_anew || self.lost.is_some_and(|lost| lost < now) {
            return Numbered::Anew;
        }
        match self.used {
            Some(used) if used >= now => Numbered::Wait(used),
            Some(_) | None => Numbered::GoOn,
        }
    }

    /// Everything is begun anew under this number.
    pub(super) fn restart(&mut self, now: Incarnation) {
        self.lost = None;
        // Of a stream that is gone.
        self.used = self.used.filter(|used| *used < now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: Incarnation = Incarnation(5);

    #[test]
    fn nothing_is_begun_twice_under_one_number() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.of(FIVE), Numbered::GoOn);
        numbers.used(FIVE);
        assert_eq!(numbers.of(FIVE), Numbered::Wait(FIVE));
        numbers.used(Incarnation(6));
        assert_eq!(numbers.of(Incarnation(6)), Numbered::Wait(Incarnation(6)));
        assert_eq!(numbers.of(Incarnation(7)), Numbered::GoOn);
    }

    #[test]
    fn behind_a_loss_a_higher_number_begins_anew() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.of(FIVE), Numbered::GoOn);
        numbers.lost(FIVE);
        assert_eq!(numbers.of(FIVE), Numbered::GoOn);
        assert_eq!(numbers.of(Incarnation(7)), Numbered::Anew);
        numbers.restart(Incarnation(7));
        assert_eq!(numbers.of(Incarnation(7)), Numbered::GoOn);
    }

    #[test]
    fn numbers_begin_anew_with_another_stream() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.of(Incarnation(57)), Numbered::GoOn);
        assert_eq!(numbers.of(Incarnation(1)), Numbered::Anew);
        // What was written under the number before is of the other stream.
        numbers.used(Incarnation(57));
        numbers.restart(Incarnation(1));
        assert_eq!(numbers.of(Incarnation(1)), Numbered::GoOn);
        assert_eq!(numbers.of(Incarnation(2)), Numbered::GoOn);
    }
}
