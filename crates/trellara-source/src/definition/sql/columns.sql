SELECT a.attrelid, a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull,
       -- A partition has its identity from what it belongs to.
       CASE WHEN c.relispartition THEN '' ELSE a.attidentity::text END, a.attgenerated::text,
       CASE WHEN a.attidentity = '' THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END,
       EXISTS (SELECT FROM pg_catalog.pg_depend AS u
                WHERE u.classid = 'pg_catalog.pg_attrdef'::regclass AND u.objid = d.oid
                  AND u.refclassid IN ('pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass)
                  AND u.refobjid >= 16384),
       CASE WHEN a.attcollation <> t.typcollation THEN
           (SELECT pg_catalog.quote_ident(cn.nspname) || '.' || pg_catalog.quote_ident(co.collname)
              FROM pg_catalog.pg_collation AS co
              JOIN pg_catalog.pg_namespace AS cn ON cn.oid = co.collnamespace
             WHERE co.oid = a.attcollation) END,
       -- Since 18 it is a constraint, and partitions have the name of the one that they inherit.
       (SELECT k.conname::text FROM pg_catalog.pg_constraint AS k
         WHERE k.conrelid = a.attrelid AND k.contype = 'n' AND k.conkey = ARRAY[a.attnum])
  FROM pg_catalog.pg_attribute AS a
  JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
  JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
  LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = ANY ($1) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
