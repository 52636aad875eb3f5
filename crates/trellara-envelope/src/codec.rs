//! The bytes of a frame. Only this module knows bincode.
//!
//! ```text
//! offset  size  field
//!      0     4  magic "TRLF"
//!      4     1  format version (1)
//!      5     1  kind
//!      6     2  flags, big-endian; none defined in version 1, all must be zero
//!      8     4  head length in bytes, big-endian
//!     12     4  payload length in bytes, big-endian
//!     16     8  xxh3-64 of bytes 0..16 and of everything behind byte 24, big-endian
//!     24     …  head: bincode 2 "standard" encoding of (header, body)
//!      …     …  payload: pgoutput records or a run of a transaction's bytes
//! ```
//!
//! Golden bytes pin version 1; see `docs/reference/wire-format.md`.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::Xxh3;

use crate::copy::{CopyEvent, CopyHeader};
use crate::{Body, Frame, FrameDigest, FrameKind, Header};

/// The version this build writes and reads.
pub const FORMAT_VERSION: u8 = 1;
/// Bytes in front of the head.
pub const FRAME_PREFIX_BYTES: usize = 24;
/// A longer head is refused before anything is allocated for it.
pub const MAX_HEAD_BYTES: usize = 1 << 20;

const MAGIC: &[u8; 4] = b"TRLF";
/// Of the copy stream's frames, so that neither stream's can be taken for the other's.
const COPY_MAGIC: &[u8; 4] = b"TRLC";
const COPY_KIND: u8 = 1;
const CHECKED_PREFIX_BYTES: usize = 16;

/// The bytes are not a frame that this build can read, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too short, or its lengths disagree with its size.
    #[error("truncated: {have} bytes where {need} are announced")]
    Truncated {
        /// Bytes present.
        have: usize,
        /// Bytes announced.
        need: usize,
    },
    /// Not one of ours.
    #[error("foreign: it does not begin with a Trellara magic number")]
    Foreign,
    /// Written by another version.
    #[error("format version {0}; this build reads {FORMAT_VERSION}")]
    Version(u8),
    /// A flag or kind that version 1 does not define.
    #[error("undefined {what} {value}")]
    Undefined {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// The checksum differs: the bytes were damaged.
    #[error("damaged: the checksum does not match")]
    Checksum,
    /// The head announces more than [`MAX_HEAD_BYTES`].
    #[error("the head has {0} bytes, more than {MAX_HEAD_BYTES}")]
    HeadTooLarge(usize),
    /// The head is not valid bincode of its kind.
    #[error("malformed head: {0}")]
    Head(String),
    /// Head and payload do not belong together, although the checksum matches.
    #[error("inconsistent: {0}")]
    Inconsistent(&'static str),
    /// A record's length runs beyond its payload.
    #[error("a record runs beyond the end of its payload")]
    TruncatedRecord,
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<MAX_HEAD_BYTES>()
}

impl Frame {
    /// The frame as bytes.
    ///
    /// # Panics
    /// When head or payload exceed their limits; the relay cuts both far below.
    pub fn encode(&self) -> Bytes {
        encode(&self.header, &self.body, &self.payload)
    }

    /// A frame from bytes; the payload is a slice of them, not a copy.
    pub fn decode(bytes: &Bytes) -> Result<Frame, DecodeError> {
        let (number, head, payload_at) = check_prefix(bytes, MAGIC)?;
        let kind = FrameKind::ALL
            .into_iter()
            .find(|kind| *kind as u8 == number)
            .ok_or(undefined_kind(number))?;
        let (header, body): (Header, Body) = decode_head(head)?;
        if body.kind() != kind {
            return Err(DecodeError::Head(
                "the kind differs from the prefix".to_owned(),
            ));
        }
        let frame = Frame {
            header,
            body,
            payload: bytes.slice(payload_at..),
        };
        frame.check_payload()?;
        Ok(frame)
    }

    /// What every reader relies on when it cuts the payload: a writer that got it wrong is found
    /// here, before anything is read from it.
    fn check_payload(&self) -> Result<(), DecodeError> {
        match &self.body {
            Body::Bundle(entries) => {
                let announced: u64 = entries.iter().map(|entry| u64::from(entry.bytes)).sum();
                if entries.is_empty() {
                    return Err(DecodeError::Inconsistent("a bundle without transactions"));
                }
                if announced != self.payload.len() as u64 {
                    return Err(DecodeError::Inconsistent(
                        "the entries' bytes do not add up to the payload",
                    ));
                }
            }
            Body::Chunk(_) => {
                if self.payload.is_empty() {
                    return Err(DecodeError::Inconsistent("a chunk without bytes"));
                }
            }
            Body::Genesis(_)
            | Body::Marker(_)
            | Body::Heartbeat(_)
            | Body::Abort(_)
            | Body::Manifest(_) => {
                if !self.payload.is_empty() {
                    return Err(DecodeError::Inconsistent("a payload where none belongs"));
                }
            }
        }
        Ok(())
    }

    /// The digest that the next frame names as `previous`.
    pub fn digest_of(encoded: &[u8]) -> FrameDigest {
        FrameDigest::of(encoded)
    }
}

fn encode(header: &Header, body: &Body, payload: &[u8]) -> Bytes {
    encode_as(MAGIC, body.kind() as u8, &(header, body), payload)
}

/// A frame of the copy stream: its kind says nothing, the event in its head does.
pub(crate) fn encode_copy(header: &CopyHeader, event: &CopyEvent, payload: &[u8]) -> Bytes {
    encode_as(COPY_MAGIC, COPY_KIND, &(header, event), payload)
}

/// The counterpart of [`encode_copy`].
pub(crate) fn decode_copy(bytes: &Bytes) -> Result<((CopyHeader, CopyEvent), Bytes), DecodeError> {
    let (kind, head, payload_at) = check_prefix(bytes, COPY_MAGIC)?;
    if kind != COPY_KIND {
        return Err(undefined_kind(kind));
    }
    Ok((decode_head(head)?, bytes.slice(payload_at..)))
}

fn decode_head<T: DeserializeOwned>(head: &[u8]) -> Result<T, DecodeError> {
    let (value, used) = bincode::serde::decode_from_slice(head, config())
        .map_err(|error| DecodeError::Head(error.to_string()))?;
    if used != head.len() {
        return Err(DecodeError::Head(format!(
            "{} bytes left over",
            head.len() - used
        )));
    }
    Ok(value)
}

fn undefined_kind(kind: u8) -> DecodeError {
    DecodeError::Undefined {
        what: "kind",
        value: u32::from(kind),
    }
}

fn encode_as<H: Serialize>(magic: &[u8; 4], kind: u8, head: &H, payload: &[u8]) -> Bytes {
    let head = bincode::serde::encode_to_vec(head, config())
        .expect("a head within its limits always encodes");
    assert!(
        head.len() <= MAX_HEAD_BYTES,
        "the head must stay below its limit"
    );
    let payload_len =
        u32::try_from(payload.len()).expect("the relay cuts payloads far below 4 GiB");
    let mut out = Vec::with_capacity(FRAME_PREFIX_BYTES + head.len() + payload.len());
    out.extend_from_slice(magic);
    out.push(FORMAT_VERSION);
    out.push(kind);
    out.extend_from_slice(&0u16.to_be_bytes());
    out.extend_from_slice(&(head.len() as u32).to_be_bytes());
    out.extend_from_slice(&payload_len.to_be_bytes());
    let mut checksum = Xxh3::new();
    checksum.update(&out);
    checksum.update(&head);
    checksum.update(payload);
    out.extend_from_slice(&checksum.digest().to_be_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(payload);
    out.into()
}

/// Kind, head, and where the payload begins.
fn check_prefix<'b>(
    bytes: &'b [u8],
    magic: &[u8; 4],
) -> Result<(u8, &'b [u8], usize), DecodeError> {
    if bytes.len() < magic.len() || &bytes[..magic.len()] != magic {
        return Err(DecodeError::Foreign);
    }
    let truncated = |need| DecodeError::Truncated {
        have: bytes.len(),
        need,
    };
    if bytes.len() < FRAME_PREFIX_BYTES {
        return Err(truncated(FRAME_PREFIX_BYTES));
    }
    if bytes[4] != FORMAT_VERSION {
        return Err(DecodeError::Version(bytes[4]));
    }
    let head_len = u32::from_be_bytes(bytes[8..12].try_into().expect("four bytes")) as usize;
    let payload_len = u32::from_be_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
    if head_len > MAX_HEAD_BYTES {
        return Err(DecodeError::HeadTooLarge(head_len));
    }
    let payload_at = FRAME_PREFIX_BYTES + head_len;
    if bytes.len() != payload_at + payload_len {
        return Err(truncated(payload_at + payload_len));
    }
    let announced = u64::from_be_bytes(bytes[16..24].try_into().expect("eight bytes"));
    let mut checksum = Xxh3::new();
    checksum.update(&bytes[..CHECKED_PREFIX_BYTES]);
    checksum.update(&bytes[FRAME_PREFIX_BYTES..]);
    if checksum.digest() != announced {
        return Err(DecodeError::Checksum);
    }
    let flags = u16::from_be_bytes(bytes[6..8].try_into().expect("two bytes"));
    if flags != 0 {
        return Err(DecodeError::Undefined {
            what: "flags",
            value: u32::from(flags),
        });
    }
    Ok((bytes[5], &bytes[FRAME_PREFIX_BYTES..payload_at], payload_at))
}

/// A small value that is not a frame: magic, version, checksum, bincode.
pub(crate) fn encode_plain<T: Serialize>(magic: &[u8; 4], value: &T) -> Vec<u8> {
    let body =
        bincode::serde::encode_to_vec(value, config()).expect("a small value always encodes");
    let mut out = Vec::with_capacity(13 + body.len());
    out.extend_from_slice(magic);
    out.push(FORMAT_VERSION);
    out.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&body).to_be_bytes());
    out.extend_from_slice(&body);
    out
}

/// The counterpart of [`encode_plain`].
pub(crate) fn decode_plain<T: DeserializeOwned>(
    magic: &[u8; 4],
    bytes: &[u8],
) -> Result<T, DecodeError> {
    if bytes.len() < 13 || &bytes[..4] != magic {
        return Err(DecodeError::Foreign);
    }
    if bytes[4] != FORMAT_VERSION {
        return Err(DecodeError::Version(bytes[4]));
    }
    let body = &bytes[13..];
    if body.len() > MAX_HEAD_BYTES {
        return Err(DecodeError::HeadTooLarge(body.len()));
    }
    if xxhash_rust::xxh3::xxh3_64(body).to_be_bytes() != bytes[5..13] {
        return Err(DecodeError::Checksum);
    }
    decode_head(body)
}
