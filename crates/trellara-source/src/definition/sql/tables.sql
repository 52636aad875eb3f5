-- The tables named, what they are partitions of, and their partitions: outer ones first.
WITH RECURSIVE named AS (
    SELECT c.oid
      FROM unnest($1::text[], $2::text[]) AS t(s, n)
      JOIN pg_catalog.pg_namespace AS ns ON ns.nspname = t.s
      JOIN pg_catalog.pg_class AS c ON c.relnamespace = ns.oid AND c.relname = t.n
     WHERE c.relkind IN ('r', 'p')
), tree AS (
    SELECT oid FROM named
     UNION SELECT a.relid FROM named CROSS JOIN LATERAL pg_catalog.pg_partition_ancestors(oid) AS a
     UNION SELECT p.relid FROM named CROSS JOIN LATERAL pg_catalog.pg_partition_tree(oid) AS p
), up (oid, above, depth) AS (
    SELECT oid, oid::oid, 0 FROM tree
     UNION ALL
    SELECT up.oid, i.inhparent, up.depth + 1
      FROM up JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = up.above
)
SELECT c.oid, n.nspname::text, c.relname::text,
       pg_catalog.pg_get_partkeydef(c.oid),
       ARRAY(SELECT pn.nspname::text FROM pg_catalog.pg_inherits AS i
               JOIN pg_catalog.pg_class AS p ON p.oid = i.inhparent
               JOIN pg_catalog.pg_namespace AS pn ON pn.oid = p.relnamespace
              WHERE i.inhrelid = c.oid ORDER BY i.inhseqno),
       ARRAY(SELECT p.relname::text FROM pg_catalog.pg_inherits AS i
               JOIN pg_catalog.pg_class AS p ON p.oid = i.inhparent
              WHERE i.inhrelid = c.oid ORDER BY i.inhseqno),
       pg_catalog.pg_get_expr(c.relpartbound, c.oid),
       c.relreplident::text
  FROM tree
  JOIN pg_catalog.pg_class AS c USING (oid)
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 ORDER BY (SELECT max(depth) FROM up WHERE up.oid = c.oid), n.nspname, c.relname
