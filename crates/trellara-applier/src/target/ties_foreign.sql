-- Foreign keys from and to a table's partition tree, the other side by its tree's root. A key of a
-- partition alone counts as one of the tree.
WITH RECURSIVE tree AS (
    SELECT $1::pg_catalog.oid AS oid
    UNION
    SELECT p.relid FROM pg_catalog.pg_partition_tree(
        coalesce(pg_catalog.pg_partition_root($1::pg_catalog.oid)::pg_catalog.oid, $1::pg_catalog.oid)) p
), keys AS (
    SELECT true AS outgoing, con.conrelid AS own, con.conkey AS own_columns,
           con.confrelid AS other, con.confkey AS other_columns, con.oid
    FROM pg_catalog.pg_constraint con
    WHERE con.contype = 'f' AND con.conrelid IN (SELECT oid FROM tree)
    UNION ALL
    SELECT false, con.confrelid, con.confkey, con.conrelid, con.conkey, con.oid
    FROM pg_catalog.pg_constraint con
    WHERE con.contype = 'f' AND con.confrelid IN (SELECT oid FROM tree)
), relations AS (
    SELECT own AS oid FROM keys UNION SELECT other FROM keys
), based AS (
    SELECT DISTINCT a.atttypid AS of, a.atttypid AS base
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid IN (SELECT oid FROM relations) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.of, t.typbasetype
    FROM based b JOIN pg_catalog.pg_type t ON t.oid = b.base WHERE t.typtype = 'd'
),
