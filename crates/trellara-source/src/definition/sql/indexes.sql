-- Indexes that no constraint stands for and that belong to no index of a partitioned table.
SELECT i.indrelid, x.relname::text, pg_catalog.pg_get_indexdef(i.indexrelid), i.indisunique,
       pg_catalog.quote_ident(x.relname), i.indisreplident
  FROM pg_catalog.pg_index AS i
  JOIN pg_catalog.pg_class AS x ON x.oid = i.indexrelid
 WHERE i.indrelid = ANY ($1) AND i.indisvalid AND NOT x.relispartition
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS k
                    WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x'))
 ORDER BY i.indrelid, x.relname
