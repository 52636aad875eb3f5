//! Which columns are hashed by themselves, and in what form. Pure.

use crate::inventory::Column;

/// The columns of a row, or of its key, in the forms they are hashed in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Those that are hashed by themselves: their types' hashes lose nothing.
    pub(crate) apart: Vec<String>,
    /// Those that are hashed as the text of one row.
    pub(crate) as_text: Vec<String>,
}

/// How a column is hashed by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Apart {
    /// As it is.
    Itself,
    /// As the bytes that it is sent as.
    Sent(&'static str),
    /// As its text, by bytes.
    Text,
}

impl Apart {
    /// `None` where the hash of the type takes different values for one, on either side: 1.0 and
    /// 1.00, `1 day` and `24:00`, arrays with other bounds, padding. The hash of an int8 and of
    /// what is stored as one folds 64 bits into 32: 1 and 4294967296 are one to it, so their bytes
    /// are hashed. Only types of PostgreSQL's own are known well enough.
    pub(crate) fn of(source: &Column, target: &Column) -> Option<Self> {
        if !(source.builtin && target.builtin) {
            return None;
        }
        match (source.base.as_str(), target.base.as_str()) {
            ("int2", "int2") | ("int4", "int4") => Some(Self::Itself),
            ("int2" | "int4" | "int8", "int2" | "int4" | "int8") => Some(Self::Sent("int8send")),
            ("text" | "varchar", "text" | "varchar") => Some(Self::Text),
            _ if source.declared != target.declared => None,
            (base, _) => match base {
                "uuid" | "bool" | "date" | "bytea" => Some(Self::Itself),
                // With the scale, which is part of what it prints.
                "numeric" => Some(Self::Sent("numeric_send")),
                "timestamp" => Some(Self::Sent("timestamp_send")),
                "timestamptz" => Some(Self::Sent("timestamptz_send")),
                "time" => Some(Self::Sent("time_send")),
                // Not sent: every NaN is one value, with whatever bits.
                "float4" | "float8" | "json" | "jsonb" => Some(Self::Text),
                _ => None,
            },
        }
    }

    fn form(self, value: &str) -> String {
        match self {
            Self::Itself => value.to_owned(),
            Self::Sent("int8send") => format!("int8send(({value})::bigint)"),
            Self::Sent(function) => format!("{function}({value})"),
            Self::Text => format!("({value})::text COLLATE \"C\""),
        }
    }
}

/// Columns in their forms: those that are hashed by themselves, and the rest.
pub(crate) fn parts(columns: impl Iterator<Item = (String, Option<Apart>)>) -> Parts {
    let mut parts = Parts::default();
    for (value, apart) in columns {
        match apart {
            Some(apart) => parts.apart.push(apart.form(&value)),
            None => parts.as_text.push(value),
        }
    }
    parts
}
