//! `conflicts.tables` as written: tables, each with rules of its own.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use super::file::{Node, TableConflictsSection};

/// Rules by table, in the order in which they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WrittenRules {
    pub(crate) tables: Vec<(String, TableConflictsSection)>,
    /// An override of the environment was no such map.
    pub(crate) unreadable: bool,
}

impl Node for WrittenRules {
    /// An override carries the whole map, as the file would.
    fn set(&mut self, path: &[&str], value: &str) -> bool {
        *self = serde_saphyr::from_str(value).unwrap_or(Self {
            tables: Vec::new(),
            unreadable: !value.trim().is_empty(),
        });
        path.is_empty()
    }

    #[cfg(test)]
    fn keys(prefix: &str, keys: &mut Vec<String>) {
        keys.push(prefix.to_owned());
    }

    fn unknown(&self, prefix: &str, keys: &mut Vec<String>) {
        for (table, rules) in &self.tables {
            rules.unknown(&format!("{prefix}.{table}"), keys);
        }
    }

    /// Each rule under the name of the whole map: the names of tables are nobody's keys.
    fn visit<E>(
        &mut self,
        key: &str,
        each: &mut dyn FnMut(&str, &mut String) -> Result<(), E>,
    ) -> Result<(), E> {
        for (_, rules) in &mut self.tables {
            rules.visit("", &mut |_, text| each(key, text))?;
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for WrittenRules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tables;
        impl<'de> Visitor<'de> for Tables {
            type Value = WrittenRules;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tables with their rules")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut written = WrittenRules::default();
                while let Some(entry) = map.next_entry()? {
                    written.tables.push(entry);
                }
                Ok(written)
            }
        }
        deserializer.deserialize_map(Tables)
    }
}
