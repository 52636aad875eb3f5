//! Whether somebody still shows signs of life, by our own clock.
//!
//! A sign is any value that the living change: the time of the last word as the server wrote it
//! down, say. Only whether it changed counts, never what it says, so that neither a clock that
//! jumps nor two clocks that differ make anybody look dead or alive.

use std::time::Duration;

/// Watches one sign.
#[derive(Debug, Clone)]
pub struct Silence<T> {
    last: Option<(T, Duration)>,
}

impl<T> Default for Silence<T> {
    fn default() -> Self {
        Self { last: None }
    }
}

impl<T: PartialEq> Silence<T> {
    /// Takes what is seen at `now` (since any fixed moment); for how long it has been the same.
    pub fn observe(&mut self, now: Duration, sign: T) -> Duration {
        match &self.last {
            Some((last, since)) if *last == sign => now.saturating_sub(*since),
            _ => {
                self.last = Some((sign, now));
                Duration::ZERO
            }
        }
    }

    /// Forgets what was seen: nobody is there, or it could not be looked.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_that_changes_is_never_silent_for_long() {
        let mut silence = Silence::default();
        for second in 0..100 {
            let silent = silence.observe(Duration::from_secs(second), second / 3);
            assert!(silent < Duration::from_secs(3), "{silent:?}");
        }
    }

    #[test]
    fn a_sign_that_stays_is_silent_since_it_was_seen_first() {
        let mut silence = Silence::default();
        silence.observe(Duration::from_secs(10), 'a');
        assert_eq!(silence.observe(Duration::from_secs(17), 'a').as_secs(), 7);
        // Back to an earlier value is a change as well.
        silence.observe(Duration::from_secs(18), 'b');
        assert_eq!(silence.observe(Duration::from_secs(19), 'a').as_secs(), 0);
    }

    #[test]
    fn what_was_forgotten_begins_anew() {
        let mut silence = Silence::default();
        silence.observe(Duration::from_secs(1), 'a');
        silence.forget();
        assert_eq!(silence.observe(Duration::from_secs(60), 'a').as_secs(), 0);
    }
}
