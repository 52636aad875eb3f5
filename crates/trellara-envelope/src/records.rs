//! Records: pgoutput messages one after another, each behind its length.
//!
//! `length: u32 big-endian, message: length bytes`. A transaction's records in commit order are
//! its *bytes*; chunks cut them anywhere, bundles hold them whole.

use crate::DecodeError;

/// Bytes in front of each message.
pub const LENGTH_BYTES: usize = 4;

/// Appends one record.
///
/// # Panics
/// When the message is longer than 4 GiB, which PostgreSQL's protocol cannot send.
pub fn push(records: &mut Vec<u8>, message: &[u8]) {
    let length = u32::try_from(message.len()).expect("a protocol message is below 4 GiB");
    records.extend_from_slice(&length.to_be_bytes());
    records.extend_from_slice(message);
}

/// Walks over complete records.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Over `bytes`, which hold complete records.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What was not walked over yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next record if all of it is there; `None` leaves `rest` as it is. For readers that get
    /// a transaction's bytes in chunks.
    pub fn next_complete(&mut self) -> Option<&'a [u8]> {
        let (length, after) = self.rest.split_first_chunk::<LENGTH_BYTES>()?;
        let length = u32::from_be_bytes(*length) as usize;
        let message = after.get(..length)?;
        self.rest = &after[length..];
        Some(message)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<&'a [u8], DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match self.next_complete() {
            Some(message) => Some(Ok(message)),
            None => {
                self.rest = &[];
                Some(Err(DecodeError::TruncatedRecord))
            }
        }
    }
}
