//! What does not continue the frame before: the stream is asked why.

use trellara_applier::machine::Delivered;
use trellara_envelope::{Body, Frame, Halt, HaltCode};

use super::super::broker::Stream;
use super::super::counters::{Counters, Sometimes};
use super::{Goes, Session, positional, stands};

impl Session {
    pub(super) fn missing(
        &mut self,
        opened: &Delivered,
        stream: &Stream,
        counters: &mut Counters,
    ) -> Goes {
        let mut from = self.machine.sequence().0 + 1;
        if self.void < opened.sequence.0 {
            from = from.max(self.void + 1);
        }
        loop {
            match stream.next_from(from, positional) {
                Some((at, _)) if self.passed_over.contains(&at) => from = at + 1,
                Some((at, _)) if at < opened.sequence.0 => {
                    counters.count(Sometimes::NotDelivered);
                    self.next = at;
                    return Goes::On;
                }
                _ => {
                    let halt = stands(HaltCode::Gap, "the stream holds nothing between");
                    return self.unless_void(opened, halt, stream, counters);
                }
            }
        }
    }

    pub(super) fn unless_void(
        &mut self,
        opened: &Delivered,
        halt: Halt,
        stream: &Stream,
        counters: &mut Counters,
    ) -> Goes {
        let opens = halt.code == HaltCode::Gap && matches!(opened.frame.body, Body::Marker(_));
        if opens && self.is_void(opened, stream) {
            self.void = opened.sequence.0;
            return Goes::On;
        }
        if matches!(
            halt.code,
            HaltCode::Gap | HaltCode::Fork | HaltCode::Diverged
        ) {
            let seen = self.machine.sequence().0;
            let ours = self.pending.as_ref().map_or_else(
                || self.durable.transport.digest,
                |transport| transport.digest,
            );
            if !stream.holds(seen, ours) {
                counters.count(Sometimes::Rewritten);
                return Goes::Anew;
            }
        }
        Goes::Stands(halt)
    }

    /// Whether nothing but markers stands between it and one that continues at or below our place.
    fn is_void(&self, opened: &Delivered, stream: &Stream) -> bool {
        let mut before = (opened.sequence.0, opened.frame.header.incarnation);
        while let Some((at, message)) = stream.next_from(before.0 + 1, positional) {
            let Ok(frame) = Frame::decode(&message.payload) else {
                return false;
            };
            let Body::Marker(marker) = &frame.body else {
                return false;
            };
            if frame.header.incarnation <= before.1 {
                return false;
            }
            if marker.continues_at <= self.machine.end_lsn() {
                return true;
            }
            before = (at, frame.header.incarnation);
        }
        false
    }
}
