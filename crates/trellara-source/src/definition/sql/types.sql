-- Types of columns that are not PostgreSQL's own: what others are made of first.
WITH RECURSIVE used (oid, depth) AS (
    SELECT a.atttypid, 0
      FROM pg_catalog.pg_attribute AS a
     WHERE a.attrelid = ANY ($1) AND a.attnum > 0 AND NOT a.attisdropped
     UNION
    SELECT x.oid, u.depth + 1
      FROM used AS u
      JOIN pg_catalog.pg_type AS t ON t.oid = u.oid
     CROSS JOIN LATERAL (VALUES (t.typelem), (t.typbasetype)) AS x(oid)
     WHERE x.oid <> 0 AND u.depth < 100
)
SELECT n.nspname::text, t.typname::text, t.typtype::text,
       ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum AS e
              WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder),
       pg_catalog.format_type(t.typbasetype, t.typtypmod)
         || coalesce((SELECT format(' COLLATE %I.%I', cn.nspname, co.collname)
                        FROM pg_catalog.pg_collation AS co
                        JOIN pg_catalog.pg_namespace AS cn ON cn.oid = co.collnamespace
                        JOIN pg_catalog.pg_type AS b ON b.oid = t.typbasetype
                       WHERE co.oid = t.typcollation AND co.oid <> b.typcollation), '')
         || coalesce(' DEFAULT ' || pg_catalog.pg_get_expr(t.typdefaultbin, 0), '')
         || CASE WHEN t.typnotnull THEN ' NOT NULL' ELSE '' END
         || coalesce((SELECT string_agg(format(' CONSTRAINT %I %s', k.conname, pg_catalog.pg_get_constraintdef(k.oid)), '' ORDER BY k.conname)
                        FROM pg_catalog.pg_constraint AS k
                       WHERE k.contypid = t.oid AND k.contype = 'c'), '')
  FROM (SELECT oid, max(depth) AS depth FROM used GROUP BY oid) AS u
  JOIN pg_catalog.pg_type AS t ON t.oid = u.oid
  JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
 WHERE t.oid >= 16384 AND t.typsubscript <> 'pg_catalog.array_subscript_handler'::regproc
 ORDER BY u.depth DESC, n.nspname, t.typname
