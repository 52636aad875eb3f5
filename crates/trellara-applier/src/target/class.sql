classes AS (
    SELECT b.of AS typid, CASE
        WHEN t.typtype = 'e' THEN 'enum ' || t.oid
        WHEN t.typnamespace <> 'pg_catalog'::pg_catalog.regnamespace THEN NULL
        WHEN t.typname IN ('int2', 'int4', 'int8', 'numeric') THEN 'number'
        WHEN t.typname IN ('text', 'varchar', 'bpchar', 'name') THEN 'text'
        WHEN t.typname IN ('bool', 'bytea', 'char', 'date', 'float4', 'float8', 'inet', 'cidr',
            'macaddr', 'macaddr8', 'oid', 'pg_lsn', 'time', 'timestamp', 'timestamptz', 'uuid',
            'bit', 'varbit', 'xid8') THEN t.typname::text
        END AS class
    FROM based b JOIN pg_catalog.pg_type t ON t.oid = b.base AND t.typtype <> 'd'
), shown AS (
    -- Under a collation that is not deterministic different texts are equal.
    SELECT a.attrelid, a.attnum, a.attname::text AS name,
           CASE WHEN l.oid IS NULL OR l.collisdeterministic THEN c.class END AS class
    FROM pg_catalog.pg_attribute a
    JOIN classes c ON c.typid = a.atttypid
    LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
    WHERE a.attrelid IN (SELECT oid FROM relations) AND a.attnum > 0 AND NOT a.attisdropped
)
