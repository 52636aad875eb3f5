-- Of each table with a column list or a row filter: what of the replica identity the list leaves
-- out, and what the filter looks at outside of the identity. A partition is judged by its own
-- identity and the list and filter of what was published. PostgreSQL takes no column list at all
-- together with REPLICA IDENTITY FULL.
SELECT n.nspname::text, c.relname::text, b.hidden, b.outside
FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT c.oid WHERE c.relkind = 'r'
    UNION SELECT relid FROM pg_catalog.pg_partition_tree(c.oid) WHERE isleaf
) leaf(oid)
JOIN pg_catalog.pg_class l ON l.oid = leaf.oid
CROSS JOIN LATERAL (
    SELECT ARRAY(
        SELECT a.attname::text FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped
          AND (l.relreplident = 'f' OR EXISTS (
              SELECT FROM pg_catalog.pg_index i
              WHERE i.indrelid = l.oid AND i.indisvalid AND i.indimmediate
                AND (l.relreplident = 'd' AND i.indisprimary OR l.relreplident = 'i' AND i.indisreplident)
                AND a.attnum = ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])))
        ORDER BY a.attnum) AS columns
) identity
CROSS JOIN LATERAL (
    SELECT CASE WHEN r.prattrs IS NULL THEN '{}' ELSE ARRAY(
               SELECT k FROM unnest(identity.columns) k
               WHERE l.relreplident = 'f' OR NOT EXISTS (
                   SELECT FROM pg_catalog.pg_attribute a
                   WHERE a.attrelid = c.oid AND a.attname = k
                     AND a.attnum = ANY (r.prattrs::pg_catalog.int2[]))) END AS hidden,
           CASE WHEN r.prqual IS NULL THEN '{}' ELSE ARRAY(
               SELECT DISTINCT a.attname::text
               FROM regexp_matches(r.prqual::text, ':varattno (\d+)', 'g') AS used
               JOIN pg_catalog.pg_attribute a
                 ON a.attrelid = c.oid AND a.attnum = used[1]::pg_catalog.int2
               WHERE a.attname::text <> ALL (identity.columns)) END AS outside
) b
WHERE p.pubname = $1 AND (p.pubupdate OR p.pubdelete) AND l.relreplident <> 'n'
  AND identity.columns <> '{}' AND (b.hidden <> '{}' OR b.outside <> '{}')
ORDER BY 1, 2
