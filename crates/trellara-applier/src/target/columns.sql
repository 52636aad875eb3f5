-- The columns of a table in order, each with its base type (a domain's is what it stands on) and,
-- where a B-tree index begins with or holds it, that index's equality operator.
WITH RECURSIVE base AS (
    SELECT a.attnum, a.attname, a.attnotnull, a.attgenerated, a.attidentity, a.atttypid AS typid
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = $1::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attnum, b.attname, b.attnotnull, b.attgenerated, b.attidentity, t.typbasetype
    FROM base b
    JOIN pg_catalog.pg_type t ON t.oid = b.typid
    WHERE t.typtype = 'd'
), indexed AS (
    SELECT i.indkey[k] AS attnum, k, n.nspname AS operator_schema, o.oprname AS operator
    FROM pg_catalog.pg_index i
    CROSS JOIN LATERAL pg_catalog.generate_series(0, i.indnkeyatts - 1) k
    JOIN pg_catalog.pg_opclass c ON c.oid = i.indclass[k]
    JOIN pg_catalog.pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
    JOIN pg_catalog.pg_amop p ON p.amopfamily = c.opcfamily AND p.amopstrategy = 3
        AND p.amoplefttype = c.opcintype AND p.amoprighttype = c.opcintype
    JOIN pg_catalog.pg_operator o ON o.oid = p.amopopr
    JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
    WHERE i.indrelid = $1::pg_catalog.oid AND i.indisvalid AND i.indpred IS NULL
)
SELECT b.attnum, b.attname::text, n.nspname::text, t.typname::text, b.attnotnull,
       b.attgenerated::text, b.attidentity::text,
       x.operator_schema::text, x.operator::text, coalesce(x.k = 0, false),
       f.before, f.after
FROM base b
JOIN pg_catalog.pg_type t ON t.oid = b.typid AND t.typtype <> 'd'
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN LATERAL (
    SELECT * FROM indexed i WHERE i.attnum = b.attnum ORDER BY i.k, i.operator_schema LIMIT 1
) x ON true
-- A cast from text that is a function of its own goes before the type's input function, and need
-- not read all that the type prints: regclass prints 0 as a dash and reads it as a name. Then the
-- input function is called; one that serves many types does not say which, but is what a cast from
-- bpchar goes through.
LEFT JOIN LATERAL (
    SELECT CASE WHEN d.direct THEN pg_catalog.format('%I.%I(', s.nspname, p.proname) ELSE '' END AS before,
           CASE WHEN d.direct AND p.pronargs = 1 THEN '::pg_catalog.cstring)'
               WHEN d.direct THEN pg_catalog.format(
                   '::pg_catalog.cstring, %s::pg_catalog.oid, -1)',
                   CASE t.typelem WHEN 0 THEN t.oid ELSE t.typelem END)
               ELSE pg_catalog.format('::pg_catalog.bpchar::%I.%I', n.nspname, t.typname)
           END AS after
    FROM pg_catalog.pg_cast k
    JOIN pg_catalog.pg_proc p ON p.oid = t.typinput
    JOIN pg_catalog.pg_namespace s ON s.oid = p.pronamespace
    CROSS JOIN LATERAL (SELECT p.prorettype = t.oid AND p.pronargs IN (1, 3) AS direct) d
    WHERE k.castsource = 'pg_catalog.text'::pg_catalog.regtype AND k.casttarget = t.oid
        AND k.castmethod = 'f'
) f ON true
ORDER BY b.attnum
