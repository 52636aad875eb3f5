//! The configuration as written: every key optional, unknown keys kept by name so that one run can
//! tell all of them, nothing interpreted.
//!
//! A scalar stays the text that was written, so that `${VAR}` works in every place and the next
//! step alone decides what is a size, a duration or a name.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::rules::WrittenRules;

/// A scalar as written. Its `Debug` shows nothing, because any of them may hold a secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Written(pub(crate) String);

/// A list of scalars; one scalar alone is a list of one.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct WrittenList(pub(crate) Vec<Written>);

/// What every part of the file can do, scalars and sections alike.
pub(crate) trait Node: Default {
    /// Puts `value` at `path`; false when there is no such key.
    fn set(&mut self, path: &[&str], value: &str) -> bool;
    /// Lists the keys below, each behind `prefix`.
    #[cfg(test)]
    fn keys(prefix: &str, keys: &mut Vec<String>);
    /// Lists what was written and is no key, each behind `prefix`.
    fn unknown(&self, _prefix: &str, _keys: &mut Vec<String>) {}
    /// Shows each written scalar with its key.
    fn visit<E>(
        &mut self,
        key: &str,
        each: &mut dyn FnMut(&str, &mut String) -> Result<(), E>,
    ) -> Result<(), E>;
}

impl Node for Written {
    fn set(&mut self, path: &[&str], value: &str) -> bool {
        self.0 = value.to_owned();
        path.is_empty()
    }

    #[cfg(test)]
    fn keys(prefix: &str, keys: &mut Vec<String>) {
        keys.push(prefix.to_owned());
    }

    fn visit<E>(
        &mut self,
        key: &str,
        each: &mut dyn FnMut(&str, &mut String) -> Result<(), E>,
    ) -> Result<(), E> {
        each(key, &mut self.0)
    }
}

impl Node for WrittenList {
    fn set(&mut self, path: &[&str], value: &str) -> bool {
        let parts = value
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        self.0 = parts.map(|part| Written(part.to_owned())).collect();
        path.is_empty()
    }

    #[cfg(test)]
    fn keys(prefix: &str, keys: &mut Vec<String>) {
        keys.push(prefix.to_owned());
    }

    fn visit<E>(
        &mut self,
        key: &str,
        each: &mut dyn FnMut(&str, &mut String) -> Result<(), E>,
    ) -> Result<(), E> {
        self.0
            .iter_mut()
            .try_for_each(|written| each(key, &mut written.0))
    }
}

/// One level of the file: a struct of optional nodes.
macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub(crate) struct $name {
            $(pub(crate) $field: Option<$kind>,)*
            unknown: Vec<String>,
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Keys;
                impl<'de> Visitor<'de> for Keys {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("keys with their values")
                    }

                    fn visit_map<A: MapAccess<'de>>(
                        self,
                        mut map: A,
                    ) -> Result<Self::Value, A::Error> {
                        let mut section = $name::default();
                        while let Some(key) = map.next_key::<String>()? {
                            match key.as_str() {
                                $(stringify!($field) => section.$field = map.next_value()?,)*
                                _ => {
                                    map.next_value::<IgnoredAny>()?;
                                    section.unknown.push(key);
                                }
                            }
                        }
                        Ok(section)
                    }
                }
                deserializer.deserialize_map(Keys)
            }
        }

        impl Node for $name {
            fn set(&mut self, path: &[&str], value: &str) -> bool {
                let Some((first, rest)) = path.split_first() else {
                    return false;
                };
                match *first {
                    $(stringify!($field) => {
                        self.$field.get_or_insert_default().set(rest, value)
                    })*
                    _ => false,
                }
            }

            #[cfg(test)]
            fn keys(prefix: &str, keys: &mut Vec<String>) {
                $(<$kind as Node>::keys(&join(prefix, stringify!($field)), keys);)*
            }

            fn unknown(&self, prefix: &str, keys: &mut Vec<String>) {
                keys.extend(self.unknown.iter().map(|key| join(prefix, key)));
                $(if let Some(node) = &self.$field {
                    node.unknown(&join(prefix, stringify!($field)), keys);
                })*
            }

            fn visit<E>(
                &mut self,
                key: &str,
                each: &mut dyn FnMut(&str, &mut String) -> Result<(), E>,
            ) -> Result<(), E> {
                $(if let Some(node) = &mut self.$field {
                    node.visit(&join(key, stringify!($field)), each)?;
                })*
                Ok(())
            }
        }
    };
}

fn join(prefix: &str, field: &str) -> String {
    if prefix.is_empty() {
        field.to_owned()
    } else {
        format!("{prefix}.{field}")
    }
}

section!(
    /// The whole file.
    FileConfig {
        flow: Written,
        source: SourceSection,
        target: TargetSection,
        nats: NatsSection,
        ops: OpsSection,
        backfill: BackfillSection,
        apply: ApplySection,
        quarantine: QuarantineSection,
        conflicts: ConflictsSection,
        schema: SchemaSection,
        dedup: DedupSection,
        lanes: Written,
        stall_timeout: Written,
        shutdown_timeout: Written,
        halt: Written,
    }
);
section!(
    /// `source:`
    SourceSection {
        url: Written,
        password_file: Written,
        tables: WrittenList,
        publication: Written,
        slot: Written,
        acknowledge: Written,
        partitions: Written,
        messages: Written,
        binary: Written,
        insert_only: WrittenList,
        shutdown_grace: Written,
    }
);
section!(
    /// `target:`
    TargetSection {
        url: Written,
        password_file: Written,
        connections: Written,
        trusted_owners: WrittenList,
    }
);
section!(
    /// `nats:`
    NatsSection {
        url: Written,
        password_file: Written,
        credentials_file: Written,
        tls_ca: Written,
        tls_cert: Written,
        tls_key: Written,
        server: Written,
        store_dir: Written,
        max_bytes: Written,
        open_bytes: Written,
        history: Written,
        replicas: Written,
        durable: Written,
        monitor_url: Written,
    }
);
section!(
    /// `ops:`
    OpsSection { listen: Written, }
);
section!(
    /// `backfill:`
    BackfillSection {
        mode: Written,
        workers: Written,
        existing: Written,
        ddl: Written,
        indexes: Written,
        max_bytes: Written,
    }
);
section!(
    /// `apply:`
    ApplySection {
        batch_bytes: Written,
        speculative: Written,
        role_replica: Written,
        as_owner: Written,
    }
);
section!(
    /// `quarantine:`
    QuarantineSection {
        policy: Written,
        max_bytes: Written,
        max_keys: Written,
        max_transactions: Written,
        max_age: Written,
    }
);
section!(
    /// `conflicts:`
    ConflictsSection {
        missing_row: Written,
        duplicate_key: Written,
        tables: WrittenRules,
    }
);
section!(
    /// One table of `conflicts.tables:`
    TableConflictsSection {
        missing_row: Written,
        duplicate_key: Written,
    }
);
section!(
    /// `schema:`
    SchemaSection { apply: Written, }
);
section!(
    /// `dedup:`
    DedupSection {
        memory: Written,
        window: Written,
    }
);

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(as written)")
    }
}

impl fmt::Debug for WrittenList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} as written)", self.0.len())
    }
}

impl<'de> Deserialize<'de> for Written {
    /// As text, because a parser left to guess reads `off` as false and `010` as eight.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Written)
    }
}

impl<'de> Deserialize<'de> for WrittenList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Written>::deserialize(deserializer).map(WrittenList)
    }
}
