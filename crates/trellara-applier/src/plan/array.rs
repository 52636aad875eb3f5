//! Statement parameters: values as PostgreSQL printed them, kept in the form in which they leave.

use std::error::Error;
use std::fmt;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{IsNull, ToSql, Type};

const TEXT_OID: u32 = 25;
const NULL_LENGTH: i32 = -1;

/// A one-dimensional text array under construction: its elements already as they go on the wire.
///
/// An element is never looked into, so the text of an array or a composite is one element and
/// nothing is flattened (C39).
#[derive(Default, Clone, PartialEq, Eq)]
pub(crate) struct TextArray {
    elements: Vec<u8>,
    count: u32,
    nulls: bool,
}

impl TextArray {
    pub(crate) fn push(&mut self, value: Option<&[u8]>) {
        match value {
            None => {
                self.elements.extend_from_slice(&NULL_LENGTH.to_be_bytes());
                self.nulls = true;
            }
            Some(text) => {
                // A protocol message, and so any value in it, is below 1 GiB.
                self.elements
                    .extend_from_slice(&(text.len() as u32).to_be_bytes());
                self.elements.extend_from_slice(text);
            }
        }
        self.count += 1;
    }

    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.elements.len()
    }

    /// The only element of an array of one.
    fn single(&self) -> Option<&[u8]> {
        let (length, text) = self.elements.split_first_chunk::<4>()?;
        (i32::from_be_bytes(*length) != NULL_LENGTH).then_some(text)
    }

    fn encode(&self, out: &mut BytesMut) {
        out.reserve(20 + self.elements.len());
        out.put_i32(1);
        out.put_i32(i32::from(self.nulls));
        out.put_u32(TEXT_OID);
        out.put_u32(self.count);
        out.put_i32(1);
        out.put_slice(&self.elements);
    }

    /// Its elements, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let mut rest = self.elements.as_slice();
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(i32::from_be_bytes(*length)).ok();
            let (text, after) = after.split_at_checked(length.unwrap_or(0))?;
            rest = after;
            Some(length.map(|_| text))
        })
    }

    #[cfg(test)]
    pub(crate) fn texts(&self) -> Vec<Option<String>> {
        self.values()
            .map(|text| text.map(|text| String::from_utf8_lossy(text).into_owned()))
            .collect()
    }
}

/// One parameter of a statement.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Parameter<'a> {
    /// One value for each row of a run; `text[]`.
    Rows(TextArray),
    /// The value of a single row, out of an array of one; `text`.
    Row(TextArray),
    /// The value of a single row too large to be copied; `text`.
    Borrowed(Option<&'a [u8]>),
}

impl Parameter<'_> {
    pub(crate) fn sql_type(&self) -> Type {
        match self {
            Parameter::Rows(_) => Type::TEXT_ARRAY,
            Parameter::Row(_) | Parameter::Borrowed(_) => Type::TEXT,
        }
    }
}

impl ToSql for Parameter<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let value = match self {
            Parameter::Rows(array) => {
                array.encode(out);
                return Ok(IsNull::No);
            }
            Parameter::Row(array) => array.single(),
            Parameter::Borrowed(value) => *value,
        };
        match value {
            None => Ok(IsNull::Yes),
            Some(text) => {
                out.reserve(text.len());
                out.put_slice(text);
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TEXT_ARRAY || *ty == Type::TEXT
    }

    tokio_postgres::types::to_sql_checked!();
}

/// Values never reach a log, and the client library prints parameters at level DEBUG.
impl fmt::Debug for Parameter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parameter::Rows(array) => fmt::Debug::fmt(array, f),
            Parameter::Row(array) => write!(f, "value of {} bytes", array.bytes()),
            Parameter::Borrowed(value) => {
                write!(f, "value of {} bytes", value.map_or(0, <[u8]>::len))
            }
        }
    }
}

impl fmt::Debug for TextArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values of {} bytes", self.count, self.elements.len())
    }
}
