-- The secondary indexes and unique constraints of a table and its partitions that may be dropped and
-- made again by whoever asks: one row for each, the partitions' before those they belong to, with the
-- statements that make it; what is dropped is the uppermost, and the others go with it.
-- Left alone is what finds rows (the primary key, the replica identity, any unique index on columns
-- that are never NULL, as it may be the source's replica identity, and any at all of a table that has
-- neither of the first two), what a foreign key refers to, what belongs to a table above, and what an
-- extension owns or ties.
WITH RECURSIVE tree (oid, depth) AS (
    SELECT c.oid, 0 FROM pg_catalog.pg_class AS c
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')
    UNION ALL
    SELECT i.inhrelid, tree.depth + 1 FROM tree
      JOIN pg_catalog.pg_class AS c ON c.oid = tree.oid AND c.relkind = 'p'
      JOIN pg_catalog.pg_inherits AS i ON i.inhparent = tree.oid
), mine AS (
    -- Somebody else's partition is nobody's to touch.
    SELECT coalesce(bool_and(pg_catalog.pg_has_role(c.relowner, 'USAGE')
           AND pg_catalog.has_schema_privilege(c.relnamespace, 'CREATE')), false) AS whole
      FROM tree JOIN pg_catalog.pg_class AS c ON c.oid = tree.oid
), family (top, oid, depth) AS (
    SELECT i.indexrelid, i.indexrelid, tree.depth FROM tree
      JOIN pg_catalog.pg_index AS i ON i.indrelid = tree.oid
     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_inherits AS h WHERE h.inhrelid = i.indexrelid)
    UNION ALL
    SELECT family.top, h.inhrelid, family.depth + 1 FROM family
      JOIN pg_catalog.pg_inherits AS h ON h.inhparent = family.oid
), judged AS (
    SELECT f.top, bool_and(
           i.indisvalid AND i.indisready AND i.indislive
           AND NOT i.indisprimary AND NOT i.indisreplident
           AND NOT (i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
                    AND (NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS a
                                      WHERE a.attrelid = i.indrelid AND NOT a.attnotnull
                                        AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
                         OR NOT EXISTS (SELECT FROM pg_catalog.pg_index AS k
                                         WHERE k.indrelid = i.indrelid
                                           AND (k.indisprimary OR k.indisreplident))))
           AND (x.reltablespace = 0
                OR pg_catalog.has_tablespace_privilege(x.reltablespace, 'CREATE'))
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS r
                            WHERE r.contype = 'f' AND r.conindid = f.oid)
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d
                            WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = f.oid
                              AND d.deptype IN ('e', 'x'))) AS may
      FROM family AS f
      JOIN pg_catalog.pg_index AS i ON i.indexrelid = f.oid
      JOIN pg_catalog.pg_class AS x ON x.oid = f.oid
     GROUP BY f.top
), known AS (
    SELECT f.top, f.oid, f.depth, x.relname::text AS name, n.nspname::text AS schema,
           t.relname::text AS relation, con.oid AS constraint_oid,
           pg_catalog.format('%I.%I', n.nspname, t.relname) AS on_table,
           pg_catalog.format('%I.%I', n.nspname, x.relname) AS qualified,
           i.indisunique, i.indisclustered, x.relkind, x.reloptions, x.reltablespace, i.indexrelid
      FROM family AS f
      JOIN judged AS j ON j.top = f.top AND j.may
      JOIN mine ON mine.whole
      JOIN pg_catalog.pg_index AS i ON i.indexrelid = f.oid
      JOIN pg_catalog.pg_class AS x ON x.oid = f.oid
      JOIN pg_catalog.pg_class AS t ON t.oid = i.indrelid
      JOIN pg_catalog.pg_namespace AS n ON n.oid = t.relnamespace
      LEFT JOIN pg_catalog.pg_constraint AS con
             ON con.conindid = f.oid AND con.conrelid = i.indrelid AND con.contype IN ('u', 'x')
), made AS (
    SELECT k.*,
           CASE WHEN k.constraint_oid IS NOT NULL
                THEN pg_catalog.format('ALTER TABLE %s ADD CONSTRAINT %I %s', k.on_table, k.name,
                                       pg_catalog.pg_get_constraintdef(k.constraint_oid))
                -- Without ONLY, so that the partitions' take part, and one that was added meanwhile
                -- gets its own.
                WHEN k.relkind = 'I'
                THEN overlay(
                       pg_catalog.pg_get_indexdef(k.oid) PLACING ' ON '
                       FROM pg_catalog.length(head.text) + 1 FOR pg_catalog.length(' ON ONLY '))
                ELSE pg_catalog.pg_get_indexdef(k.oid) END AS statement
      FROM known AS k
     CROSS JOIN LATERAL (SELECT CASE WHEN k.indisunique THEN 'CREATE UNIQUE INDEX '
                                     ELSE 'CREATE INDEX ' END || pg_catalog.quote_ident(k.name)) AS head (text)
)
SELECT CASE WHEN m.constraint_oid IS NULL THEN 'index' ELSE 'constraint' END,
       m.schema, m.relation, m.name,
       CASE WHEN m.oid <> m.top THEN NULL
            WHEN m.constraint_oid IS NULL THEN 'DROP INDEX ' || m.qualified
            ELSE pg_catalog.format('ALTER TABLE %s DROP CONSTRAINT %I', m.on_table, m.name) END,
       pg_catalog.concat_ws('; ',
           pg_catalog.format('SET LOCAL default_tablespace = %L',
               coalesce((SELECT s.spcname FROM pg_catalog.pg_tablespace AS s
                          WHERE s.oid = m.reltablespace), '')),
           m.statement,
           -- A constraint's definition says nothing of how its index is stored.
           (SELECT pg_catalog.format('ALTER INDEX %s SET (%s)', m.qualified,
                       pg_catalog.string_agg(pg_catalog.format('%I = %L', o.option_name, o.option_value), ', '))
              FROM pg_catalog.pg_options_to_table(m.reloptions) AS o
             WHERE m.constraint_oid IS NOT NULL HAVING count(*) > 0),
           (SELECT pg_catalog.string_agg(pg_catalog.format(
                       'ALTER INDEX %s ALTER COLUMN %s SET STATISTICS %s',
                       m.qualified, a.attnum, a.attstattarget), '; ')
              FROM pg_catalog.pg_attribute AS a
             WHERE a.attrelid = m.oid AND a.attstattarget >= 0 HAVING count(*) > 0),
           CASE WHEN m.indisclustered
                THEN pg_catalog.format('ALTER TABLE %s CLUSTER ON %I', m.on_table, m.name) END,
           pg_catalog.format('COMMENT ON INDEX %s IS %L', m.qualified, d.of_index)
               || CASE WHEN d.of_index IS NULL THEN NULL ELSE '' END,
           pg_catalog.format('COMMENT ON CONSTRAINT %I ON %s IS %L', m.name, m.on_table, d.of_constraint)
               || CASE WHEN d.of_constraint IS NULL THEN NULL ELSE '' END)
  FROM made AS m
 CROSS JOIN LATERAL (SELECT pg_catalog.obj_description(m.oid, 'pg_class'),
                            pg_catalog.obj_description(m.constraint_oid, 'pg_constraint'))
         AS d (of_index, of_constraint)
 -- Those that are dropped later refer to nothing that is dropped before; partitions are made first.
 ORDER BY m.top, m.depth DESC, m.name
