//! The publication: which tables belong to it, identified by oid, and how it is made.

use std::collections::BTreeSet;

use trellara_envelope::{FrameDigest, Oid, PublicationMember};
use trellara_postgres::{Session, quote};

pub use self::tables::{
    ExpandError, InvalidPattern, TableName, TablePattern, expand, named_by_changes,
};

mod tables;

/// Under which name the changes of a partitioned table travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Partitions {
    /// The root's: both sides may be partitioned differently.
    #[default]
    Root,
    /// The partition's: the target has the same ones.
    Leaf,
}

/// One member of the publication.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// The table.
    pub table: TableName,
    /// Oids and digest of its definition, as the marker frame carries them.
    pub ids: PublicationMember,
}

/// What the catalogues say about a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicationFacts {
    /// `pg_publication.oid`.
    pub oid: Oid,
    /// Whether inserts are published.
    pub inserts: bool,
    /// Whether updates are published.
    pub updates: bool,
    /// Whether deletes are published.
    pub deletes: bool,
    /// Whether truncates are published.
    pub truncates: bool,
    /// Whether partitions are published under the name of their root.
    pub via_partition_root: bool,
    /// FOR ALL TABLES.
    pub all_tables: bool,
    /// Every table published, sorted by relation oid.
    pub members: Vec<Member>,
}

impl PublicationFacts {
    /// How partitions are named.
    pub fn partitions(&self) -> Partitions {
        if self.via_partition_root {
            Partitions::Root
        } else {
            Partitions::Leaf
        }
    }

    /// The flags as the marker frame carries them.
    pub fn flags(&self) -> u32 {
        [
            self.inserts,
            self.updates,
            self.deletes,
            self.truncates,
            self.via_partition_root,
            self.all_tables,
        ]
        .iter()
        .enumerate()
        .map(|(bit, set)| u32::from(*set) << bit)
        .sum()
    }

    /// The members as the marker frame carries them, in order.
    pub fn member_ids(&self) -> Vec<PublicationMember> {
        self.members
            .iter()
            .map(|member| member.ids.clone())
            .collect()
    }

    /// One digest over all members.
    pub fn members_digest(&self) -> FrameDigest {
        members_digest(&self.member_ids())
    }
}

/// One digest over members; that of [`PublicationFacts::members_digest`] when these are all.
pub fn members_digest(members: &[PublicationMember]) -> FrameDigest {
    let mut bytes = Vec::with_capacity(members.len() * 24);
    for member in members {
        bytes.extend_from_slice(&member.member.0.to_be_bytes());
        bytes.extend_from_slice(&member.relation.0.to_be_bytes());
        bytes.extend_from_slice(&member.definition.0);
    }
    FrameDigest::of(&bytes)
}

/// The publication's facts; `None` when there is none of that name.
pub async fn describe(
    session: &Session,
    name: &str,
) -> Result<Option<PublicationFacts>, tokio_postgres::Error> {
    let Some(row) = session
        .client
        .query_opt(
            "SELECT oid, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, puballtables \
             FROM pg_catalog.pg_publication WHERE pubname = $1",
            &[&name],
        )
        .await?
    else {
        return Ok(None);
    };
    let oid: u32 = row.get(0);
    // pg_publication_tables says what is published whatever made it so (table, schema, all); the
    // row that made it so has the oid that changes when a table leaves and comes back (C06). A
    // partition named by its own name may owe its place to what it is a partition of.
    let members = session
        .client
        .query(
            "SELECT t.schemaname::text, t.tablename::text, c.oid, \
                    coalesce(r.oid, v.oid, 0::oid), \
                    coalesce(pg_catalog.pg_get_expr(r.prqual, r.prrelid), ''), \
                    coalesce(r.prattrs::text, ''), coalesce(v.inherited, false) \
             FROM pg_catalog.pg_publication_tables t \
             JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname \
             JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename \
             LEFT JOIN pg_catalog.pg_publication_rel r ON r.prrelid = c.oid AND r.prpubid = $2 \
             LEFT JOIN LATERAL ( \
               SELECT w.oid, w.inherited FROM ( \
                 SELECT s.oid, false AS inherited FROM pg_catalog.pg_publication_namespace s \
                  WHERE s.pnpubid = $2 AND s.pnnspid = c.relnamespace \
                 UNION ALL \
                 SELECT ar.oid, true FROM pg_catalog.pg_partition_ancestors(c.oid) a \
                   JOIN pg_catalog.pg_publication_rel ar \
                     ON ar.prrelid = a.relid AND ar.prpubid = $2 \
                 UNION ALL \
                 SELECT s.oid, true FROM pg_catalog.pg_partition_ancestors(c.oid) a \
                   JOIN pg_catalog.pg_class ac ON ac.oid = a.relid AND ac.oid <> c.oid \
                   JOIN pg_catalog.pg_publication_namespace s \
                     ON s.pnpubid = $2 AND s.pnnspid = ac.relnamespace \
               ) w ORDER BY w.inherited, w.oid LIMIT 1 \
             ) v ON r.oid IS NULL \
             WHERE t.pubname = $1 ORDER BY c.oid",
            &[&name, &oid],
        )
        .await?;
    Ok(Some(PublicationFacts {
        oid: Oid(oid),
        inserts: row.get(1),
        updates: row.get(2),
        deletes: row.get(3),
        truncates: row.get(4),
        via_partition_root: row.get(5),
        all_tables: row.get(6),
        members: members.iter().map(member).collect(),
    }))
}

fn member(row: &tokio_postgres::Row) -> Member {
    let table = TableName {
        schema: row.get(0),
        name: row.get(1),
    };
    // Names are left out: a table that is renamed is still the same table. Without a column list
    // a new column changes nothing here; the relation's own description says so.
    let definition = if row.get(6) {
        definition(&["", "", INHERITED])
    } else {
        definition(&[row.get(4), row.get(5)])
    };
    Member {
        ids: PublicationMember {
            member: Oid(row.get(3)),
            relation: Oid(row.get(2)),
            definition,
        },
        table,
    }
}

/// In the definition of a partition that is published because what it belongs to is.
const INHERITED: &str = "partition";

fn definition(parts: &[&str]) -> FrameDigest {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    FrameDigest::of(&bytes)
}

/// Which of these former members could still have rows that nobody publishes: those that exist.
/// Not those that are published under the name of what they were attached to, nor those that were
/// published as a partition of it and are none any more.
pub async fn left_behind(
    session: &Session,
    gone: &[&PublicationMember],
    published: &[Oid],
) -> Result<BTreeSet<Oid>, tokio_postgres::Error> {
    let inherited = definition(&["", "", INHERITED]);
    let (partitions, tables): (Vec<_>, Vec<_>) = gone
        .iter()
        .partition(|member| member.definition == inherited);
    let oids = |members: Vec<&PublicationMember>| -> Vec<u32> {
        members.iter().map(|member| member.relation.0).collect()
    };
    let published: Vec<u32> = published.iter().map(|oid| oid.0).collect();
    let rows = session
        .client
        .query(
            "SELECT c.oid FROM pg_catalog.pg_class c \
             WHERE (c.oid = ANY($1) OR (c.oid = ANY($2) AND c.relispartition)) \
               AND NOT EXISTS (SELECT FROM pg_catalog.pg_partition_ancestors(c.oid) a \
                                WHERE a.relid = ANY($3))",
            &[&oids(tables), &oids(partitions), &published],
        )
        .await?;
    Ok(rows.iter().map(|row| Oid(row.get(0))).collect())
}

/// The statement that makes the publication.
pub fn create_sql(name: &str, tables: &[TableName], partitions: Partitions) -> String {
    let tables: Vec<String> = tables
        .iter()
        .map(|table| quote::qualified(&table.schema, &table.name))
        .collect();
    format!(
        "CREATE PUBLICATION {} FOR TABLE {} \
         WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = {})",
        quote::identifier(name),
        tables.join(", "),
        partitions == Partitions::Root
    )
}

/// Makes the publication. `tables` must not be empty.
pub async fn create(
    session: &Session,
    name: &str,
    tables: &[TableName],
    partitions: Partitions,
) -> Result<(), tokio_postgres::Error> {
    session
        .client
        .batch_execute(&create_sql(name, tables, partitions))
        .await
}

/// Drops the publication; true when there was one.
pub async fn drop(session: &Session, name: &str) -> Result<bool, tokio_postgres::Error> {
    let existed = session
        .client
        .query_opt(
            "SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = $1",
            &[&name],
        )
        .await?
        .is_some();
    if existed {
        let sql = format!("DROP PUBLICATION IF EXISTS {}", quote::identifier(name));
        session.client.batch_execute(&sql).await?;
    }
    Ok(existed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        let table = TableName {
            schema: "public".into(),
            name: "x\"; DROP TABLE y; --".into(),
        };
        let sql = create_sql("My-Pub", &[table], Partitions::Leaf);
        assert!(
            sql.starts_with("CREATE PUBLICATION \"My-Pub\" FOR TABLE "),
            "{sql}"
        );
        assert!(sql.contains("\"x\"\"; DROP TABLE y; --\""), "{sql}");
        assert!(sql.contains("publish_via_partition_root = false"), "{sql}");
    }
}
