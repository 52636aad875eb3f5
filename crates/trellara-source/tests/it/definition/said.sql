WITH ours AS (
    SELECT oid, nspname FROM pg_catalog.pg_namespace
     WHERE nspname <> 'information_schema' AND nspname !~ '^pg_'
), rel AS (
    SELECT c.*, format('%I.%I', o.nspname, c.relname) AS name
      FROM pg_catalog.pg_class AS c JOIN ours AS o ON o.oid = c.relnamespace
)
SELECT format('%s %s ri %s part %s bound %s parents %s', relkind, name, relreplident,
              pg_catalog.pg_get_partkeydef(oid), pg_catalog.pg_get_expr(relpartbound, oid),
              ARRAY(SELECT inhparent::regclass FROM pg_catalog.pg_inherits WHERE inhrelid = rel.oid ORDER BY inhseqno))
  FROM rel WHERE relkind IN ('r', 'p', 'S')
UNION ALL
SELECT format('column %s %s: %I %s %s null %s identity %s generated %s default %s local %s', rel.name,
              (SELECT count(*) FROM pg_catalog.pg_attribute AS b WHERE b.attrelid = a.attrelid
                  AND b.attnum BETWEEN 1 AND a.attnum AND NOT b.attisdropped), a.attname,
              pg_catalog.format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation,
              a.attnotnull, a.attidentity, a.attgenerated,
              pg_catalog.pg_get_expr(d.adbin, d.adrelid), pg_catalog.pg_get_serial_sequence(rel.name, a.attname))
  FROM rel JOIN pg_catalog.pg_attribute AS a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = rel.oid AND d.adnum = a.attnum
 WHERE rel.relkind IN ('r', 'p')
UNION ALL
SELECT format('constraint %s %I %s %s valid %s', rel.name, k.conname, k.contype, pg_catalog.pg_get_constraintdef(k.oid), k.convalidated)
  FROM rel JOIN pg_catalog.pg_constraint AS k ON k.conrelid = rel.oid
UNION ALL
SELECT format('index %s %s identity %s valid %s', rel.name, pg_catalog.pg_get_indexdef(i.indexrelid), i.indisreplident, i.indisvalid)
  FROM rel JOIN pg_catalog.pg_index AS i ON i.indrelid = rel.oid
UNION ALL
SELECT format('sequence %s %s %s %s %s %s %s %s', rel.name, s.seqtypid::regtype, s.seqstart, s.seqincrement,
              s.seqmin, s.seqmax, s.seqcache, s.seqcycle)
  FROM rel JOIN pg_catalog.pg_sequence AS s ON s.seqrelid = rel.oid
UNION ALL
SELECT format('enum %s %s', t.oid::regtype, array_agg(e.enumlabel ORDER BY e.enumsortorder))
  FROM pg_catalog.pg_type AS t JOIN ours AS o ON o.oid = t.typnamespace
  JOIN pg_catalog.pg_enum AS e ON e.enumtypid = t.oid GROUP BY t.oid
UNION ALL
SELECT format('domain %s %s null %s default %s %s %s', t.oid::regtype, pg_catalog.format_type(t.typbasetype, t.typtypmod),
              t.typnotnull, t.typdefault, t.typcollation::regcollation,
              ARRAY(SELECT k.conname || ' ' || pg_catalog.pg_get_constraintdef(k.oid) FROM pg_catalog.pg_constraint AS k
                     WHERE k.contypid = t.oid ORDER BY k.conname))
  FROM pg_catalog.pg_type AS t JOIN ours AS o ON o.oid = t.typnamespace WHERE t.typtype = 'd'
 ORDER BY 1
