//! The statements that would make the target fit, for hints (B100).

use tokio_postgres::types::Type;
use trellara_pgoutput::{Column, Relation, RelationMap, ReplicaIdentity};
use trellara_postgres::quote;

/// `CREATE TABLE …` as far as a RELATION message tells: columns, types and the key.
pub(crate) fn create_table(relation: &Relation, relations: &RelationMap) -> String {
    let mut lines: Vec<String> = relation
        .columns
        .iter()
        .map(|c| format!("{} {}", quote::identifier(&c.name), type_name(c, relations)))
        .collect();
    let key: Vec<String> = relation
        .columns
        .iter()
        .filter(|c| c.key)
        .map(|c| quote::identifier(&c.name))
        .collect();
    // Under FULL every column is marked as key.
    if !key.is_empty() && relation.replica_identity != ReplicaIdentity::Full {
        lines.push(format!("PRIMARY KEY ({})", key.join(", ")));
    }
    let name = quote::qualified(&relation.namespace, &relation.name);
    format!("CREATE TABLE {name} ({});", lines.join(", "))
}

/// `ALTER TABLE … ADD COLUMN …`.
pub(crate) fn add_column(relation: &Relation, column: &Column, relations: &RelationMap) -> String {
    let table = quote::qualified(&relation.namespace, &relation.name);
    let name = quote::identifier(&column.name);
    format!(
        "ALTER TABLE {table} ADD COLUMN {name} {};",
        type_name(column, relations)
    )
}

/// The source's type as it would be written on the target.
pub(crate) fn type_name(column: &Column, relations: &RelationMap) -> String {
    if let Some(name) = relations.type_name(column.type_oid) {
        return quote::qualified(&name.namespace, &name.name);
    }
    let Some(known) = Type::from_oid(column.type_oid.0) else {
        return "...".to_owned();
    };
    let modifier = modifier(known.name().trim_start_matches('_'), column.type_modifier);
    match known.name().strip_prefix('_') {
        Some(element) => format!("{}{modifier}[]", plain(element)),
        None => format!("{}{modifier}", plain(known.name())),
    }
}

fn plain(name: &str) -> &str {
    match name {
        // Both bare words mean something else in SQL.
        "char" => "\"char\"",
        "bpchar" => "char",
        other => other,
    }
}

fn modifier(name: &str, modifier: i32) -> String {
    if modifier < 0 {
        return String::new();
    }
    match name {
        "varchar" | "bpchar" if modifier >= 4 => format!("({})", modifier - 4),
        "bit" | "varbit" | "time" | "timetz" | "timestamp" | "timestamptz" => {
            format!("({modifier})")
        }
        "numeric" if modifier >= 4 => {
            let packed = modifier - 4;
            // Eleven bits of signed scale, as PostgreSQL 15 and later pack it.
            let scale = ((packed & 0x7ff) ^ 1024) - 1024;
            format!("({},{scale})", (packed >> 16) & 0xffff)
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::modifier;

    #[test]
    fn modifiers_are_written_as_they_were_declared() {
        assert_eq!(modifier("varchar", 3 + 4), "(3)");
        assert_eq!(modifier("numeric", ((10 << 16) | 2) + 4), "(10,2)");
        assert_eq!(
            modifier("numeric", ((3 << 16) | (0x7ff & -2)) + 4),
            "(3,-2)"
        );
        assert_eq!(modifier("int4", -1), "");
    }
}
