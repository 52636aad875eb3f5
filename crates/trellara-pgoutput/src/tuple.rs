//! Rows as pgoutput prints them.

use std::fmt;

use crate::Error;
use crate::cursor::Cursor;

/// One column of a tuple.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// NULL; also every column that is not part of the key in an old key tuple.
    Null,
    /// A TOASTed value that the update did not touch and that is not sent.
    Unchanged,
    /// The text that the type's output function printed.
    Text(&'a [u8]),
    /// What the type's send function gave; only with the option `binary`, which we never set.
    Binary(&'a [u8]),
}

/// Row values never reach a log: only shape and length are shown.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("Null"),
            Value::Unchanged => f.write_str("Unchanged"),
            Value::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Value::Binary(bytes) => write!(f, "Binary({} bytes)", bytes.len()),
        }
    }
}

/// A row, borrowed; its lengths were checked when the message was decoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TupleRef<'a> {
    columns: u16,
    body: &'a [u8],
}

impl<'a> TupleRef<'a> {
    pub(crate) fn decode(cursor: &mut Cursor<'a>) -> Result<Self, Error> {
        let columns = cursor.u16("number of columns")?;
        let start = *cursor;
        for _ in 0..columns {
            value(cursor)?;
        }
        Ok(TupleRef {
            columns,
            body: cursor.since(start),
        })
    }

    /// Number of columns.
    pub fn len(&self) -> usize {
        usize::from(self.columns)
    }

    /// Whether there are no columns, as in a table without any.
    pub fn is_empty(&self) -> bool {
        self.columns == 0
    }

    /// The columns in the order of the relation.
    pub fn iter(&self) -> Values<'a> {
        Values {
            left: self.columns,
            cursor: Cursor::new(self.body),
        }
    }

    /// Bytes that the columns take on the wire, without the column count.
    pub fn wire_bytes(&self) -> usize {
        self.body.len()
    }
}

impl fmt::Debug for TupleRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> IntoIterator for TupleRef<'a> {
    type Item = Value<'a>;
    type IntoIter = Values<'a>;

    fn into_iter(self) -> Values<'a> {
        self.iter()
    }
}

/// The columns of a tuple, in order.
#[derive(Debug, Clone)]
pub struct Values<'a> {
    left: u16,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        // Checked by `TupleRef::decode`; an error here cannot happen and would end the row early.
        value(&mut self.cursor).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for Values<'_> {}

fn value<'a>(cursor: &mut Cursor<'a>) -> Result<Value<'a>, Error> {
    match cursor.u8("column kind")? {
        b'n' => Ok(Value::Null),
        b'u' => Ok(Value::Unchanged),
        b't' => {
            let length = cursor.length("column length")?;
            cursor.take(length, "column value").map(Value::Text)
        }
        b'b' => {
            let length = cursor.length("column length")?;
            cursor.take(length, "column value").map(Value::Binary)
        }
        other => Err(Error::Undefined {
            what: "column kind",
            value: u32::from(other),
        }),
    }
}
