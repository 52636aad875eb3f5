//! From messages to footprints: names the tables as the target knows them.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_postgres::Client;
use trellara_envelope::Oid;
use trellara_pgoutput::{ChangeReader, Message, Relation, RelationMap};

use super::collect::Gathering;
use super::hits::Comparing;
use super::reach::Reach;
use super::{Footprints, Hits, TooManyKeys, Touches};
use crate::backfill::sieve::Sieve;
use crate::execute::{ApplyError, ApplyErrorKind};
use crate::plan::Change;
use crate::target::{Catalog, Mapping};

/// Why a transaction's changes cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// Its bytes are damaged.
    #[error(transparent)]
    Records(#[from] trellara_pgoutput::Error),
    /// They do not fit the target's tables, or those cannot be read.
    #[error("{0}")]
    Change(ApplyError),
}

impl From<ApplyError> for Unreadable {
    fn from(error: ApplyError) -> Self {
        Unreadable::Change(error)
    }
}

/// Gathers what one transaction touches, message by message.
pub struct Collector<'c> {
    tables: Tables<'c>,
    gathering: Gathering,
}

/// Tests one transaction against what is held, message by message.
pub struct Tester<'c, 'f> {
    tables: Tables<'c>,
    comparing: Comparing<'f>,
}

impl<'c> Collector<'c> {
    /// For one transaction; `role_replica` says under which role it is applied.
    pub fn new(
        client: &'c Client,
        catalog: &'c mut Catalog,
        role_replica: bool,
        max_keys: u64,
    ) -> Self {
        Self {
            tables: Tables::new(client, catalog),
            gathering: Gathering::new(role_replica, max_keys),
        }
    }

    /// Passes over what a copy has already.
    #[must_use]
    pub(crate) fn sifting(mut self, sieve: Option<Sieve>) -> Self {
        self.tables.sieve = sieve;
        self
    }

    /// Takes one surviving message.
    ///
    /// # Errors
    /// When the target's tables do not fit it or cannot be read.
    pub async fn message(
        &mut self,
        message: &Message<'_>,
        relations: &RelationMap,
    ) -> Result<(), ApplyError> {
        if let Message::Truncate {
            relations: oids, ..
        } = message
        {
            for oid in *oids {
                if !self.tables.applies(oid, relations) {
                    continue;
                }
                let relation = described(oid, relations)?;
                let Tables {
                    client, catalog, ..
                } = &mut self.tables;
                let table = catalog.existing(client, relation, relations).await?;
                let ties = catalog.ties(client, &table).await?;
                self.gathering.truncate(&table, &ties);
            }
        } else if let Some((relation, change)) = change(message)
            && self.tables.applies(relation, relations)
        {
            let reach = self.tables.reach(relation, relations).await?;
            self.gathering.change(&reach, &change);
        }
        Ok(())
    }

    /// Takes everything that was fed to `reader`.
    ///
    /// # Errors
    /// As [`Collector::message`], and damaged records.
    pub async fn read(&mut self, reader: &mut ChangeReader<'_>) -> Result<(), Unreadable> {
        while let Some(change) = reader.next_change()? {
            self.message(&change.message, change.relations).await?;
        }
        Ok(())
    }

    /// What it touches.
    ///
    /// # Errors
    /// When that is more than may be kept.
    pub fn finish(self) -> Result<Touches, TooManyKeys> {
        self.gathering.finish()
    }
}

impl<'c, 'f> Tester<'c, 'f> {
    /// For one transaction; `role_replica` says under which role it is applied.
    pub fn new(
        client: &'c Client,
        catalog: &'c mut Catalog,
        role_replica: bool,
        footprints: &'f Footprints,
    ) -> Self {
        Self {
            tables: Tables::new(client, catalog),
            comparing: Comparing::new(footprints, role_replica),
        }
    }

    /// Passes over what a copy has already.
    #[must_use]
    pub(crate) fn sifting(mut self, sieve: Option<Sieve>) -> Self {
        self.tables.sieve = sieve;
        self
    }

    /// Takes one surviving message.
    ///
    /// # Errors
    /// When the target's tables do not fit it or cannot be read.
    pub async fn message(
        &mut self,
        message: &Message<'_>,
        relations: &RelationMap,
    ) -> Result<(), ApplyError> {
        if let Message::Truncate {
            relations: oids, ..
        } = message
        {
            for oid in *oids {
                if !self.tables.applies(oid, relations) {
                    continue;
                }
                let relation = described(oid, relations)?;
                let Tables {
                    client, catalog, ..
                } = &mut self.tables;
                let table = catalog.existing(client, relation, relations).await?;
                let ties = catalog.ties(client, &table).await?;
                let own = crate::target::TableName::new(&table.schema, &table.name);
                let root = ties.root.as_ref().unwrap_or(&own);
                self.comparing.truncate(root, &table);
            }
        } else if let Some((relation, change)) = change(message)
            && self.tables.applies(relation, relations)
        {
            let reach = self.tables.reach(relation, relations).await?;
            self.comparing.change(&reach, &change);
        }
        Ok(())
    }

    /// Takes everything that was fed to `reader`.
    ///
    /// # Errors
    /// As [`Tester::message`], and damaged records.
    pub async fn read(&mut self, reader: &mut ChangeReader<'_>) -> Result<(), Unreadable> {
        while let Some(change) = reader.next_change()? {
            self.message(&change.message, change.relations).await?;
        }
        Ok(())
    }

    /// Whom it touched.
    pub fn finish(self) -> Hits {
        self.comparing.finish()
    }
}

/// The tables that a transaction names.
struct Tables<'c> {
    client: &'c Client,
    catalog: &'c mut Catalog,
    /// By relation; a relation described anew has another mapping.
    known: HashMap<Oid, (Arc<Mapping>, Arc<Reach>)>,
    /// What a copy has already is touched by nobody.
    sieve: Option<Sieve>,
}

impl<'c> Tables<'c> {
    fn new(client: &'c Client, catalog: &'c mut Catalog) -> Self {
        Self {
            client,
            catalog,
            known: HashMap::new(),
            sieve: None,
        }
    }

    /// Whether a change of the relation is applied. One whose copy is not in counts: it will be, or
    /// it will not.
    fn applies(&mut self, oid: Oid, relations: &RelationMap) -> bool {
        let sieve = self.sieve.as_mut();
        sieve.is_none_or(|sieve| sieve.keeps(oid, relations).unwrap_or(true))
    }

    async fn reach(&mut self, oid: Oid, relations: &RelationMap) -> Result<Arc<Reach>, ApplyError> {
        let relation = described(oid, relations)?;
        let mapping = self.catalog.mapping(self.client, relation, relations);
        let mapping = mapping.await?;
        if let Some((of, reach)) = self.known.get(&oid)
            && Arc::ptr_eq(of, &mapping)
        {
            return Ok(Arc::clone(reach));
        }
        let ties = self.catalog.ties(self.client, &mapping.table).await?;
        let reach = Arc::new(Reach::new(&mapping, &ties));
        self.known.insert(oid, (mapping, Arc::clone(&reach)));
        Ok(reach)
    }
}

fn described(oid: Oid, relations: &RelationMap) -> Result<&Arc<Relation>, ApplyError> {
    relations.get(oid).ok_or_else(|| {
        let message = format!("a change of relation {oid}, which was not described before");
        ApplyError::new(ApplyErrorKind::Corrupt, message)
    })
}

fn change<'m>(message: &Message<'m>) -> Option<(Oid, Change<'m>)> {
    match *message {
        Message::Insert { relation, new, .. } => Some((relation, Change::Insert { new })),
        Message::Update {
            relation, old, new, ..
        } => Some((relation, Change::Update { old, new })),
        Message::Delete { relation, old, .. } => Some((relation, Change::Delete { old })),
        Message::Truncate { .. }
        | Message::Begin { .. }
        | Message::Commit { .. }
        | Message::Origin { .. }
        | Message::Relation(_)
        | Message::Type(_)
        | Message::Logical(_)
        | Message::StreamStart { .. }
        | Message::StreamStop
        | Message::StreamCommit { .. }
        | Message::StreamAbort { .. } => None,
    }
}
