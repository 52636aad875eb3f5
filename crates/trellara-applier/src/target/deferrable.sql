-- Constraints that the replica role leaves unenforced (C37): deferrable unique and exclusion ones.
SELECT con.conname::text,
       con.conexclop IS NOT NULL,
       i.indnullsnotdistinct,
       CASE WHEN i.indexprs IS NULL
            THEN (i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1] ELSE '{}' END,
       ARRAY(SELECT pg_catalog.pg_get_indexdef(i.indexrelid, k + 1, false)
             FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k ORDER BY k),
       ARRAY(SELECT n.nspname::text
             FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k
             JOIN pg_catalog.pg_opclass c ON c.oid = i.indclass[k]
             LEFT JOIN pg_catalog.pg_amop p ON p.amopfamily = c.opcfamily AND p.amopstrategy = 3
                 AND p.amoplefttype = c.opcintype AND p.amoprighttype = c.opcintype
             JOIN pg_catalog.pg_operator o ON o.oid = coalesce(con.conexclop[k + 1], p.amopopr)
             JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
             ORDER BY k),
       ARRAY(SELECT o.oprname::text
             FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k
             JOIN pg_catalog.pg_opclass c ON c.oid = i.indclass[k]
             LEFT JOIN pg_catalog.pg_amop p ON p.amopfamily = c.opcfamily AND p.amopstrategy = 3
                 AND p.amoplefttype = c.opcintype AND p.amoprighttype = c.opcintype
             JOIN pg_catalog.pg_operator o ON o.oid = coalesce(con.conexclop[k + 1], p.amopopr)
             ORDER BY k),
       pg_catalog.pg_get_expr(i.indpred, i.indrelid)
FROM pg_catalog.pg_constraint con
JOIN pg_catalog.pg_index i ON i.indexrelid = con.conindid
WHERE con.conrelid = $1::pg_catalog.oid AND con.condeferrable AND con.contype IN ('p', 'u', 'x')
ORDER BY con.conname
