-- Sequences that columns own, that are their identities, or that their defaults take numbers from.
WITH used AS (
    SELECT d.objid AS oid
      FROM pg_catalog.pg_depend AS d
     WHERE d.classid = 'pg_catalog.pg_class'::regclass
       AND d.refclassid = 'pg_catalog.pg_class'::regclass
       AND d.refobjid = ANY ($1) AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
     UNION
    SELECT d.refobjid
      FROM pg_catalog.pg_attrdef AS f
      JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_attrdef'::regclass
       AND d.objid = f.oid AND d.refclassid = 'pg_catalog.pg_class'::regclass
     WHERE f.adrelid = ANY ($1)
)
SELECT c.oid, n.nspname::text, c.relname::text, pg_catalog.format_type(s.seqtypid, NULL),
       format('INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %s',
              s.seqincrement, s.seqmin, s.seqmax, s.seqstart, s.seqcache,
              CASE WHEN s.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END),
       o.schema, o.name, o.attribute, coalesce(o.identity, false)
  FROM used AS u
  JOIN pg_catalog.pg_class AS c ON c.oid = u.oid AND c.relkind = 'S'
  JOIN pg_catalog.pg_sequence AS s ON s.seqrelid = c.oid
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
  LEFT JOIN LATERAL (
    SELECT tn.nspname::text AS schema, t.relname::text AS name, a.attname::text AS attribute,
           d.deptype = 'i' AS identity
      FROM pg_catalog.pg_depend AS d
      JOIN pg_catalog.pg_class AS t ON t.oid = d.refobjid
      JOIN pg_catalog.pg_namespace AS tn ON tn.oid = t.relnamespace
      JOIN pg_catalog.pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = d.refobjsubid
     WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid
       AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.deptype IN ('a', 'i')
     LIMIT 1
  ) AS o ON true
 ORDER BY n.nspname, c.relname
