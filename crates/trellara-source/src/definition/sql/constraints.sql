-- Constraints of the tables' own. Those of NOT NULL come with the columns, those of partitions with
-- what they belong to.
SELECT k.conrelid, k.conname::text, k.contype::text, pg_catalog.pg_get_constraintdef(k.oid),
       n.nspname::text, f.relname::text
  FROM pg_catalog.pg_constraint AS k
  LEFT JOIN pg_catalog.pg_class AS f ON f.oid = k.confrelid
  LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = f.relnamespace
 WHERE k.conrelid = ANY ($1) AND k.contype IN ('p', 'u', 'x', 'c', 'f')
   AND k.conparentid = 0 AND k.conislocal AND (k.contype <> 'c' OR k.coninhcount = 0)
 ORDER BY k.conrelid, array_position(ARRAY['p', 'u', 'x', 'c', 'f'], k.contype::text), k.conname
