-- What keeps rows of a table apart: unique and exclusion indexes, the primary key first.
SELECT x.relname::text, i.indisprimary, i.indisreplident,
       i.indimmediate,
       -- Usable to find rows by: plain, whole, on NOT NULL columns.
       m.amname = 'btree' AND i.indisunique AND i.indimmediate AND i.indisvalid
           AND i.indpred IS NULL AND i.indexprs IS NULL
           AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_attribute a
               WHERE a.attrelid = i.indrelid AND NOT a.attnotnull
                 AND a.attnum = ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])),
       (i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid = x.relam
WHERE i.indrelid = $1::pg_catalog.oid AND (i.indisunique OR i.indisexclusion) AND i.indislive
ORDER BY i.indisprimary DESC, i.indisreplident DESC, i.indnkeyatts, x.relname
