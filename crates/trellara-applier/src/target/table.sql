-- One table by name: its kind, its partition tree's root, and what fires on it or its partitions.
WITH tree AS (
    SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid = $1::pg_catalog.oid
    UNION
    SELECT p.relid FROM pg_catalog.pg_partition_tree($1::pg_catalog.oid) p
), firing AS (
    SELECT t.tgenabled AS enabled, t.tgisinternal AS internal
    FROM pg_catalog.pg_trigger t WHERE t.tgrelid IN (SELECT oid FROM tree)
    UNION ALL
    SELECT r.ev_enabled, false
    FROM pg_catalog.pg_rewrite r WHERE r.ev_class IN (SELECT oid FROM tree) AND r.ev_type <> '1'
)
SELECT c.relkind::text,
       coalesce(pg_catalog.pg_partition_root(c.oid)::pg_catalog.oid, c.oid),
       pg_catalog.row_security_active(c.oid),
       EXISTS (SELECT FROM firing WHERE enabled IN ('R', 'A')),
       EXISTS (SELECT FROM firing WHERE enabled IN ('O', 'A') AND NOT internal)
FROM pg_catalog.pg_class c
WHERE c.oid = $1::pg_catalog.oid
