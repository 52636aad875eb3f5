//! Writing down what a held transaction touches.

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use trellara_postgres::quote;

use super::HeldId;
use super::footprint::{Touch, Touches};
use crate::ledger::LedgerError;
use crate::plan::Parameter;

/// Writes the entries of a footprint; inside the target transaction that writes its held row, which
/// says how many they are ([`Touches::keys`]).
///
/// # Errors
/// When the server refuses.
pub async fn write(client: &Client, id: HeldId, touches: &Touches) -> Result<(), LedgerError> {
    wholes(client, id, touches).await?;
    ties(client, id, touches).await?;
    for group in touches.groups() {
        let sql = insert(&group.columns);
        for chunk in &group.chunks {
            let arrays: Vec<Parameter<'_>> = chunk.iter().cloned().map(Parameter::Rows).collect();
            let touch = group.touch.as_str();
            let (schema, table) = (&group.table.schema, &group.table.name);
            let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![
                (&id.0, Type::INT8),
                (schema, Type::TEXT),
                (table, Type::TEXT),
                (&touch, Type::TEXT),
            ];
            parameters.extend(
                arrays
                    .iter()
                    .map(|array| (array as &(dyn ToSql + Sync), Type::TEXT_ARRAY)),
            );
            let written = client.query_typed(&sql, &parameters).await;
            written.map_err(LedgerError::from)?;
        }
    }
    Ok(())
}

async fn wholes(client: &Client, id: HeldId, touches: &Touches) -> Result<(), LedgerError> {
    let wholes = touches.whole_tables();
    if wholes.is_empty() {
        return Ok(());
    }
    let schemas: Vec<&str> = wholes.iter().map(|w| w.table.schema.as_str()).collect();
    let tables: Vec<&str> = wholes.iter().map(|w| w.table.name.as_str()).collect();
    let words: Vec<&str> = wholes.iter().map(|w| w.touch.as_str()).collect();
    // Values that are not known have no columns.
    let sql = format!(
        "INSERT INTO trellara.held_key (held_id, schema, \"table\", touch, key) \
         SELECT $1, u.s, u.t, u.w, CASE u.w WHEN '{}' THEN '{{}}'::pg_catalog.jsonb END \
           FROM unnest($2, $3, $4) AS u(s, t, w)",
        Touch::Value.as_str()
    );
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&id.0, Type::INT8),
        (&schemas, Type::TEXT_ARRAY),
        (&tables, Type::TEXT_ARRAY),
        (&words, Type::TEXT_ARRAY),
    ];
    client.query_typed(&sql, &parameters).await?;
    Ok(())
}

/// What is known of the tables by now: one that they are given later is seen to be new.
async fn ties(client: &Client, id: HeldId, touches: &Touches) -> Result<(), LedgerError> {
    let mut schemas: Vec<&str> = Vec::new();
    let mut tables: Vec<&str> = Vec::new();
    let mut texts: Vec<&str> = Vec::new();
    for (table, tie) in touches.ties() {
        schemas.push(&table.schema);
        tables.push(&table.name);
        texts.push(tie);
    }
    let sql = "INSERT INTO trellara.held_tie (held_id, schema, \"table\", tie) \
               SELECT $1, u.s, u.t, u.w FROM unnest($2, $3, $4) AS u(s, t, w)";
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&id.0, Type::INT8),
        (&schemas, Type::TEXT_ARRAY),
        (&tables, Type::TEXT_ARRAY),
        (&texts, Type::TEXT_ARRAY),
    ];
    client.query_typed(sql, &parameters).await?;
    Ok(())
}

/// The statement for keys over these columns.
fn insert(columns: &[String]) -> String {
    let Keyed {
        object,
        parameters,
        names,
    } = Keyed::new(columns, 4);
    format!(
        "INSERT INTO trellara.held_key (held_id, schema, \"table\", touch, key) \
         SELECT $1, $2, $3, $4, {} FROM unnest({}) AS u({})",
        object.as_deref().unwrap_or("NULL"),
        parameters.trim_start_matches(", "),
        names.trim_start_matches(", ")
    )
}

/// SQL that makes objects of columns and values out of text arrays, one per column, in a
/// `FROM unnest(…) AS u(…)`; at most 32 of them, as an index has.
pub(super) struct Keyed {
    /// The object; `None` where there are no columns.
    pub(super) object: Option<String>,
    /// The parameters, each behind a comma.
    pub(super) parameters: String,
    /// What they are called in `u`, each behind a comma.
    pub(super) names: String,
}

impl Keyed {
    /// The arrays being the parameters behind the first `behind` of them.
    pub(super) fn new(columns: &[String], behind: usize) -> Self {
        let numbers = 1..=columns.len();
        let pairs: Vec<String> = columns
            .iter()
            .zip(numbers.clone())
            .map(|(column, n)| format!("{}, u.c{n}", quote::literal(column)))
            .collect();
        let object = format!("pg_catalog.jsonb_build_object({})", pairs.join(", "));
        Self {
            object: (!pairs.is_empty()).then_some(object),
            parameters: numbers
                .clone()
                .map(|n| format!(", ${}", n + behind))
                .collect(),
            names: numbers.map(|n| format!(", c{n}")).collect(),
        }
    }
}
