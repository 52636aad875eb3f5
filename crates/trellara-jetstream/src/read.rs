//! Reading single messages and whole subjects.

mod subject;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use trellara_envelope::StreamSequence;

use crate::error::{ApiError, code};
use crate::{Broker, BrokerError, topology};

pub use subject::SubjectReader;

/// A message as the stream holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFrameBytes {
    /// Its sequence in the stream.
    pub sequence: StreamSequence,
    /// Its subject.
    pub subject: String,
    /// Its bytes.
    pub payload: Bytes,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// When the server stored it, by the server's clock.
    pub time: SystemTime,
}

/// Where a stream ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEnd {
    /// The sequence that the next publish has to expect; of a message that may be gone.
    pub last_sequence: StreamSequence,
    /// The last message that is there; `None` when the stream is empty.
    pub message: Option<StoredFrameBytes>,
}

/// Reads single messages of one stream. Always asks the leader (STREAM.MSG.GET): a direct get may
/// be answered by a replica that lags.
#[derive(Clone, Debug)]
pub struct Reader {
    broker: Broker,
    stream: Arc<str>,
}

impl Reader {
    /// A reader of `stream`; nothing is asked yet.
    pub fn new(broker: &Broker, stream: &str) -> Self {
        Reader {
            broker: broker.clone(),
            stream: stream.into(),
        }
    }

    /// The last message that is there; `None` when the stream is empty.
    ///
    /// # Errors
    /// Missing when there is no stream; permission; passing.
    pub async fn tail(&self) -> Result<Option<StoredFrameBytes>, BrokerError> {
        Ok(self.end().await?.message)
    }

    /// Where the stream ends: its last sequence, and its last message if that is another.
    ///
    /// A deposed leader may answer with an older end; only an acknowledged publish proves it.
    ///
    /// # Errors
    /// As [`Reader::tail`].
    pub async fn end(&self) -> Result<StreamEnd, BrokerError> {
        let facts = topology::facts(&self.broker, &self.stream).await?;
        let mut last_sequence = facts.last_sequence;
        let mut message = None;
        if facts.messages > 0 {
            message = self.get(last_sequence).await?;
            if message.is_none() {
                // Purged by subject: the last one that is there lies before it.
                let filter = facts.subjects.first().map_or(">", String::as_str);
                message = self.last_on(filter).await?;
            }
        }
        if let Some(message) = &message {
            // Something may have been stored in between.
            last_sequence = last_sequence.max(message.sequence);
        }
        Ok(StreamEnd {
            last_sequence,
            message,
        })
    }

    /// The message with this sequence; `None` when it is not there (any more, or yet).
    ///
    /// # Errors
    /// As [`Reader::tail`].
    pub async fn get(
        &self,
        sequence: StreamSequence,
    ) -> Result<Option<StoredFrameBytes>, BrokerError> {
        // The server reads 0 as "no sequence given".
        if sequence.0 == 0 {
            return Ok(None);
        }
        self.ask(json!({"seq": sequence.0})).await
    }

    /// The last message on a subject or filter (wildcards allowed).
    ///
    /// # Errors
    /// As [`Reader::tail`].
    pub async fn last_on(&self, filter: &str) -> Result<Option<StoredFrameBytes>, BrokerError> {
        self.ask(json!({"last_by_subj": filter})).await
    }

    /// The first message on a subject or filter at or behind `from`.
    ///
    /// # Errors
    /// As [`Reader::tail`].
    pub async fn next_on(
        &self,
        filter: &str,
        from: StreamSequence,
    ) -> Result<Option<StoredFrameBytes>, BrokerError> {
        self.ask(json!({"seq": from.0.max(1), "next_by_subj": filter}))
            .await
    }

    async fn ask(&self, what: Value) -> Result<Option<StoredFrameBytes>, BrokerError> {
        let doing = format!("read {what} of stream {}", self.stream);
        let endpoint = format!("STREAM.MSG.GET.{}", self.stream);
        let answer = self.broker.api_bytes(&endpoint, &what, &doing).await?;
        Got::parse(&answer, &doing)
    }
}

#[derive(Deserialize)]
struct Got<'a> {
    #[serde(borrow)]
    message: Option<Raw<'a>>,
    error: Option<ApiError>,
}

impl Got<'_> {
    fn parse(answer: &[u8], doing: &str) -> Result<Option<StoredFrameBytes>, BrokerError> {
        // Never with the answer's text: it holds a message.
        let unreadable = |what: &dyn std::fmt::Display| {
            BrokerError::passing(doing, format_args!("unreadable answer: {what}"))
        };
        let got: Got<'_> = serde_json::from_slice(answer).map_err(|error| unreadable(&error))?;
        match (got.message, got.error) {
            (Some(message), None) => message.into_stored(doing).map(Some),
            (_, Some(error)) if error.err_code == code::MESSAGE_NOT_FOUND => Ok(None),
            (_, Some(error)) => Err(error.into_error(doing)),
            (None, None) => Err(unreadable(&"neither a message nor an error")),
        }
    }
}

/// A message as MSG.GET writes it: bytes and headers in base64.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    subject: Cow<'a, str>,
    seq: u64,
    #[serde(borrow, default)]
    hdrs: Cow<'a, str>,
    #[serde(borrow, default)]
    data: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
}

impl Raw<'_> {
    fn into_stored(self, doing: &str) -> Result<StoredFrameBytes, BrokerError> {
        let unreadable =
            |what: &str| BrokerError::passing(doing, format_args!("unreadable {what}"));
        let data = STANDARD
            .decode(self.data.as_bytes())
            .map_err(|_| unreadable("data"))?;
        let headers = STANDARD
            .decode(self.hdrs.as_bytes())
            .map_err(|_| unreadable("headers"))?;
        let time = async_nats::datetime::parse_rfc3339(&self.time);
        Ok(StoredFrameBytes {
            sequence: StreamSequence(self.seq),
            subject: self.subject.into_owned(),
            payload: data.into(),
            headers: parse_headers(&headers),
            time: time.map_err(|_| unreadable("time"))?.into(),
        })
    }
}

/// Reads `NATS/1.0` and the `name: value` lines behind it.
fn parse_headers(bytes: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text
        .split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'));
    let mut headers: Vec<(String, String)> = lines
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    headers.sort_unstable();
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_not_there_is_no_error() {
        let gone = br#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#;
        assert_eq!(Got::parse(gone, "test").expect("it is an answer"), None);
        let no_stream = br#"{"error":{"code":404,"err_code":10059,"description":"not found"}}"#;
        assert!(
            Got::parse(no_stream, "test")
                .expect_err("no stream")
                .is_missing()
        );
        assert!(Got::parse(b"{}", "test").is_err());
    }

    #[test]
    fn a_stored_message_is_read_from_its_base64() {
        let answer = br#"{"type":"t","message":{"subject":"a.b","seq":3,
            "hdrs":"TkFUUy8xLjANCmI6IDINCmE6IHg6eQ0KDQo=","data":"AAEC",
            "time":"1970-01-01T00:00:01.5Z"}}"#;
        let stored = Got::parse(answer, "test")
            .expect("it is readable")
            .expect("it is there");
        assert_eq!(stored.payload.as_ref(), [0, 1, 2]);
        let headers = [
            ("a".to_owned(), "x:y".to_owned()),
            ("b".to_owned(), "2".to_owned()),
        ];
        assert_eq!(stored.headers, headers);
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1500);
        assert_eq!(stored.time, time);
    }

    #[test]
    fn damaged_base64_is_an_error_without_the_data() {
        let answer = br#"{"message":{"subject":"a","seq":3,"data":"s3cret!","time":""}}"#;
        let error = Got::parse(answer, "test").expect_err("it is not base64");
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}
