-- Tables that hold rows and that role $3 cannot read whole: whether it may look into the schema,
-- whether it may read what publication $4 holds of them, whether row security hides rows from it.
WITH named AS (
    SELECT c.oid AS member, c.relnamespace, c.relname, n.nspname
      FROM unnest($1::text[], $2::text[]) AS t(s, n)
      JOIN pg_namespace AS n ON n.nspname = t.s
      JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.n
), read AS (
    SELECT m.member, m.nspname AS member_schema, m.relname AS member_name, c.*
      FROM named AS m
     CROSS JOIN LATERAL (SELECT m.member UNION SELECT relid FROM pg_partition_tree(m.member)) AS p(oid)
      JOIN pg_class AS c ON c.oid = p.oid AND c.relkind = 'r'
)
SELECT n.nspname::text, c.relname::text, f.usage, f.readable, f.filtered
  FROM read AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_roles AS r ON r.rolname = $3
 CROSS JOIN LATERAL (SELECT
    has_schema_privilege(r.oid, n.oid, 'USAGE'),
    has_table_privilege(r.oid, c.oid, 'SELECT')
        OR NOT EXISTS (
            SELECT FROM pg_attribute AS a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND NOT has_column_privilege(r.oid, c.oid, a.attnum, 'SELECT')
               AND NOT EXISTS (
                    SELECT FROM pg_publication_tables AS t
                     WHERE t.pubname = $4 AND t.schemaname = c.member_schema
                       AND t.tablename = c.member_name AND NOT a.attname = ANY (t.attnames))),
    c.relrowsecurity AND NOT r.rolsuper AND NOT r.rolbypassrls
        AND (c.relforcerowsecurity OR NOT pg_has_role(r.oid, c.relowner, 'USAGE'))
 ) AS f(usage, readable, filtered)
 WHERE NOT (f.usage AND f.readable) OR f.filtered
 ORDER BY 1, 2
