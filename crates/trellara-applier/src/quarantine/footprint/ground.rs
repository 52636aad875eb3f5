//! What a footprint rests on: the tables' ties as they were when it was gathered.
//!
//! An index, a foreign key or a trigger that the target was given later compares values which the
//! footprint does not have. They are not to be had any more without reading the transaction again,
//! so what the new tie touches is held as a whole.

use std::collections::{BTreeMap, HashMap};

use tokio_postgres::Client;
use trellara_postgres::quote;

use super::{Footprints, Touch};
use crate::execute::{ApplyError, ApplyErrorKind};
use crate::target::{Catalog, ForeignTie, TableName, TargetTable, Ties};

/// What is held as a whole when the tie is new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Widened {
    /// Nothing: rows of it are found under the tree's root as it is now.
    Nothing,
    /// The table itself.
    Own,
    /// The other side of a foreign key.
    Other(TableName),
    /// All tables.
    Everything,
}

/// A table as its changes are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ground {
    pub(super) root: TableName,
    /// Ties by the text in which they are written down.
    pub(super) ties: BTreeMap<String, Widened>,
}

impl Ground {
    /// Of a table that fires or does not under the role that applies.
    pub(super) fn new(name: &TableName, ties: &Ties, fires: bool) -> Self {
        let root = ties.root.clone().unwrap_or_else(|| name.clone());
        let mut known = BTreeMap::new();
        known.insert(format!("tree {}", text(&root)), Widened::Nothing);
        if fires {
            known.insert("fires".to_owned(), Widened::Everything);
        }
        if ties.partition_alone {
            known.insert("unique of a partition".to_owned(), Widened::Own);
        }
        for unique in &ties.uniques {
            let kind = match (unique.plain, unique.nulls_not_distinct) {
                (true, false) => "unique",
                (true, true) => "unique nulls not distinct",
                (false, _) => "unique in part",
            };
            let tie = format!("{kind} {}", columns(&unique.columns));
            known.insert(tie, Widened::Own);
        }
        let foreign = |direction: &str, tie: &ForeignTie| {
            let by_text = if tie.by_text { "" } else { " not by text" };
            let acts = if tie.acts { " acting" } else { "" };
            let own = columns(&tie.own_columns);
            let (other, theirs) = (text(&tie.other), columns(&tie.other_columns));
            let tie_text = format!("{direction} {own} {other} {theirs}{by_text}{acts}");
            (tie_text, Widened::Other(tie.other.clone()))
        };
        known.extend(ties.references.iter().map(|tie| foreign("to", tie)));
        known.extend(ties.referenced_by.iter().map(|tie| foreign("from", tie)));
        Self { root, ties: known }
    }

    /// As the catalogue knows the table; `None` when there is none by that name.
    pub(super) async fn read(
        client: &Client,
        catalog: &mut Catalog,
        role_replica: bool,
        name: &TableName,
    ) -> Result<Option<Self>, ApplyError> {
        let table = match catalog.table(client, &name.schema, &name.name).await {
            Ok(Some(table)) => table,
            Ok(None) => return Ok(None),
            // A view stands where the table was.
            Err(error) if error.kind == ApplyErrorKind::Schema => return Ok(None),
            Err(error) => return Err(error),
        };
        let ties = catalog.ties(client, &table).await?;
        Ok(Some(Self::of(&table, &ties, role_replica)))
    }

    pub(super) fn of(table: &TargetTable, ties: &Ties, role_replica: bool) -> Self {
        let name = TableName::new(&table.schema, &table.name);
        Self::new(&name, ties, table.fires(role_replica))
    }
}

fn text(table: &TableName) -> String {
    quote::qualified(&table.schema, &table.name)
}

fn columns(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| quote::identifier(name)).collect();
    format!("({})", names.join(", "))
}

/// What the footprints in memory rest on.
#[derive(Debug, Default)]
pub(super) struct Grounds {
    /// By table; `None` where there was none by that name.
    tables: HashMap<TableName, Option<Known>>,
    /// How often the catalogue had been read again when all of it was as here.
    as_of: Option<u64>,
}

#[derive(Debug)]
struct Known {
    root: TableName,
    /// Only of tables that a held transaction writes.
    ground: Option<Ground>,
}

impl Grounds {
    /// A held transaction writes the table.
    pub(super) fn writes(&mut self, table: &TableName, ground: Option<&Ground>) {
        self.as_of = None;
        let known = self.tables.entry(table.clone()).or_insert_with(|| {
            ground.map(|ground| Known {
                root: ground.root.clone(),
                ground: None,
            })
        });
        if let (Some(known), Some(ground)) = (known, ground) {
            known.ground.get_or_insert_with(|| ground.clone());
        }
    }

    /// A held transaction touches the table.
    pub(super) fn touches(&mut self, table: &TableName, root: Option<&TableName>) {
        self.as_of = None;
        if !self.tables.contains_key(table) {
            let known = root.map(|root| Known {
                root: root.clone(),
                ground: None,
            });
            self.tables.insert(table.clone(), known);
        }
    }

    /// Whether the catalogue tells something else of the tables by now.
    async fn moved(
        &mut self,
        client: &Client,
        catalog: &mut Catalog,
        role_replica: bool,
    ) -> Result<bool, ApplyError> {
        if self.as_of == Some(catalog.forgotten()) {
            return Ok(false);
        }
        for (name, known) in &self.tables {
            let now = Ground::read(client, catalog, role_replica, name).await?;
            let same = match (known, &now) {
                (None, None) => true,
                (Some(known), Some(now)) => {
                    known.root == now.root && known.ground.as_ref().is_none_or(|was| was == now)
                }
                (None, Some(_)) | (Some(_), None) => false,
            };
            if !same {
                return Ok(true);
            }
        }
        self.as_of = Some(catalog.forgotten());
        Ok(false)
    }
}

impl Footprints {
    /// Whether tables are tied differently from how they were when these were read or added, so that
    /// they have to be read again. Costs nothing while the catalogue has forgotten nothing.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub async fn moved(
        &mut self,
        client: &Client,
        catalog: &mut Catalog,
        role_replica: bool,
    ) -> Result<bool, ApplyError> {
        if self.is_empty() {
            return Ok(false);
        }
        self.grounds.moved(client, catalog, role_replica).await
    }

    /// The tie was not there when the slot's transaction was looked at.
    pub(super) fn widen(&mut self, slot: u32, ground: &Ground, tie: &Widened) {
        match tie {
            Widened::Nothing => {}
            Widened::Own => self.add_whole(slot, &ground.root, Touch::Table),
            Widened::Other(table) => self.add_whole(slot, table, Touch::Table),
            Widened::Everything => self.add_whole(slot, &ground.root, Touch::Everything),
        }
    }
}
