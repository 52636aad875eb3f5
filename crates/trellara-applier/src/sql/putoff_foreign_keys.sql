-- The foreign keys of tables that are not in, of their own and of their partitions: how each is
-- dropped, made again without a look at the rows, and looked at then. Those of partitioned tables are
-- made as a whole.
WITH RECURSIVE tree (top, oid) AS (
    SELECT c.oid, c.oid FROM trellara.backfill AS b
      JOIN pg_catalog.pg_namespace AS n ON n.nspname = b.schema_name
      JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = b.table_name
     WHERE b.flow = $1 AND c.relkind IN ('r', 'p')
       AND (b.state = 'wanted' OR (b.state = 'copying' AND b.parts IS NULL))
    UNION
    SELECT tree.top, i.inhrelid FROM tree
      JOIN pg_catalog.pg_class AS c ON c.oid = tree.oid AND c.relkind = 'p'
      JOIN pg_catalog.pg_inherits AS i ON i.inhparent = tree.oid
)
SELECT wn.nspname::text, w.relname::text, n.nspname::text, t.relname::text, con.conname::text,
       rn.nspname::text, r.relname::text,
       pg_catalog.format('ALTER TABLE %I.%I DROP CONSTRAINT %I', n.nspname, t.relname, con.conname),
       pg_catalog.concat_ws('; ',
           pg_catalog.format('ALTER TABLE %I.%I ADD CONSTRAINT %I %s', n.nspname, t.relname,
               con.conname, pg_catalog.pg_get_constraintdef(con.oid))
               || CASE WHEN con.convalidated AND t.relkind = 'r' THEN ' NOT VALID' ELSE '' END,
           CASE WHEN d.comment IS NOT NULL
                THEN pg_catalog.format('COMMENT ON CONSTRAINT %I ON %I.%I IS %L',
                         con.conname, n.nspname, t.relname, d.comment) END),
       CASE WHEN con.convalidated AND t.relkind = 'r'
            THEN pg_catalog.format('ALTER TABLE %I.%I VALIDATE CONSTRAINT %I', n.nspname, t.relname,
                     con.conname) END
  FROM tree
  JOIN pg_catalog.pg_constraint AS con
    ON con.conrelid = tree.oid AND con.contype = 'f' AND con.conparentid = 0
  JOIN pg_catalog.pg_class AS t ON t.oid = con.conrelid
  JOIN pg_catalog.pg_namespace AS n ON n.oid = t.relnamespace
  JOIN pg_catalog.pg_class AS w ON w.oid = tree.top
  JOIN pg_catalog.pg_namespace AS wn ON wn.oid = w.relnamespace
  JOIN pg_catalog.pg_class AS r ON r.oid = con.confrelid
  JOIN pg_catalog.pg_namespace AS rn ON rn.oid = r.relnamespace
 CROSS JOIN LATERAL (SELECT pg_catalog.obj_description(con.oid, 'pg_constraint')) AS d (comment)
 WHERE pg_catalog.pg_has_role(t.relowner, 'USAGE')
   AND pg_catalog.has_table_privilege(r.oid, 'REFERENCES')
 ORDER BY con.oid
