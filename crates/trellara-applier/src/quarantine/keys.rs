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

/// The statement for keys over these columns; at most 32 of them, as an index has.
fn insert(columns: &[String]) -> String {
    let arrays: Vec<String> = (0..columns.len()).map(|n| format!("${}", n + 5)).collect();
    let names: Vec<String> = (0..columns.len()).map(|n| format!("c{n}")).collect();
    let pairs: Vec<String> = columns
        .iter()
        .zip(&names)
        .map(|(column, name)| format!("{}, u.{name}", quote::literal(column)))
        .collect();
    format!(
        "INSERT INTO trellara.held_key (held_id, schema, \"table\", touch, key) \
         SELECT $1, $2, $3, $4, pg_catalog.jsonb_build_object({}) FROM unnest({}) AS u({})",
        pairs.join(", "),
        arrays.join(", "),
        names.join(", ")
    )
}
