//! What a delivered message says about itself, in its reply subject.

use std::time::{Duration, SystemTime};

use async_nats::{HeaderMap, Message};
use bytes::Bytes;
use trellara_envelope::StreamSequence;

/// A message that a consumer delivered.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) sequence: StreamSequence,
    /// The consumer's own number: +1 with every delivery, redeliveries included.
    pub(crate) number: u64,
    /// How many times this message was delivered by now.
    pub(crate) times: u64,
    /// Messages waiting behind it that match the consumer's filters.
    pub(crate) pending: u64,
    pub(crate) time: SystemTime,
    pub(crate) subject: String,
    /// Where its acknowledgement goes.
    pub(crate) ack: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: Bytes,
}

/// Reads a delivery; `None` when the reply subject is not one of JetStream's.
pub(crate) fn read(message: Message) -> Option<Delivered> {
    let ack = message.reply?.into_string();
    let numbers = Numbers::parse(&ack)?;
    Some(Delivered {
        sequence: StreamSequence(numbers.sequence),
        number: numbers.number,
        times: numbers.times,
        pending: numbers.pending,
        time: SystemTime::UNIX_EPOCH + Duration::from_nanos(numbers.nanos),
        subject: message.subject.into_string(),
        headers: message.headers.as_ref().map(headers).unwrap_or_default(),
        payload: message.payload,
        ack,
    })
}

/// Headers as pairs; the order among different names is not kept by the library.
pub(crate) fn headers(map: &HeaderMap) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = map
        .iter()
        .flat_map(|(name, values)| {
            values
                .iter()
                .map(move |value| (name.to_string(), value.as_str().to_owned()))
        })
        .collect();
    pairs.sort_unstable();
    pairs
}

#[derive(Debug, PartialEq, Eq)]
struct Numbers {
    times: u64,
    sequence: u64,
    number: u64,
    nanos: u64,
    pending: u64,
}

impl Numbers {
    /// `$JS.ACK.<stream>.<consumer>.<times>.<sequence>.<number>.<nanos>.<pending>`, or the form
    /// with `<domain>.<account>` before the stream and a token more at the end.
    fn parse(reply: &str) -> Option<Self> {
        let rest = reply.strip_prefix("$JS.ACK.")?;
        let tokens: Vec<&str> = rest.split('.').collect();
        let first = match tokens.len() {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let number = |at: usize| tokens.get(first + at)?.parse().ok();
        Some(Numbers {
            times: number(0)?,
            sequence: number(1)?,
            number: number(2)?,
            nanos: number(3)?,
            pending: number(4)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_reply_subject_are_read() {
        let expected = Numbers {
            times: 1,
            sequence: 42,
            number: 7,
            nanos: 99,
            pending: 3,
        };
        let old = Numbers::parse("$JS.ACK.S.applier.1.42.7.99.3");
        let new = Numbers::parse("$JS.ACK._.hash.S.applier.1.42.7.99.3");
        let longer = Numbers::parse("$JS.ACK._.hash.S.applier.1.42.7.99.3.random");
        assert_eq!(old.as_ref(), Some(&expected));
        assert_eq!(new.as_ref(), Some(&expected));
        assert_eq!(longer.as_ref(), Some(&expected));
        for nonsense in ["", "_INBOX.x", "$JS.ACK.S.c.1.2", "$JS.ACK.S.c.x.42.7.99.3"] {
            assert_eq!(Numbers::parse(nonsense), None, "{nonsense}");
        }
    }
}
