//! Prepared statements of a session.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Statement};

/// Prepared at once on one session; with 3000 tables in use the least recently used ones are
/// closed and prepared again when needed (B120).
const PREPARED: usize = 512;

/// Statements by their text. The first use goes without preparation, in the same round trip; from
/// the second on it is prepared.
#[derive(Debug, Default)]
pub(crate) struct Statements {
    known: HashMap<Arc<str>, Known>,
    clock: u64,
}

#[derive(Debug)]
struct Known {
    used: u64,
    statement: Option<Statement>,
}

impl Statements {
    /// The prepared statement for `sql`; `None` when it is better sent as text.
    ///
    /// # Errors
    /// When the server refuses to prepare it.
    pub(crate) async fn get(
        &mut self,
        client: &Client,
        sql: &Arc<str>,
        types: &[Type],
    ) -> Result<Option<Statement>, Error> {
        self.clock += 1;
        if let Some(known) = self.known.get_mut(sql) {
            known.used = self.clock;
            if known.statement.is_none() {
                known.statement = Some(client.prepare_typed(sql, types).await?);
            }
            return Ok(known.statement.clone());
        }
        if self.known.len() >= PREPARED {
            self.close_oldest();
        }
        self.known.insert(
            Arc::clone(sql),
            Known {
                used: self.clock,
                statement: None,
            },
        );
        Ok(None)
    }

    /// Closes them all; none is valid after the catalogue changed or a pooler discarded them.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }

    fn close_oldest(&mut self) {
        let oldest = self.known.iter().min_by_key(|(_, known)| known.used);
        if let Some(sql) = oldest.map(|(sql, _)| Arc::clone(sql)) {
            self.known.remove(&sql);
        }
    }
}
