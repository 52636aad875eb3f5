-- The columns of one table, each with the class of types in whose texts equality can be seen; none
-- where two equal values may print differently in ways that we do not know.
WITH RECURSIVE relations AS (
    SELECT $1::pg_catalog.oid AS oid
), based AS (
    SELECT DISTINCT a.atttypid AS of, a.atttypid AS base
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid IN (SELECT oid FROM relations) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.of, t.typbasetype
    FROM based b JOIN pg_catalog.pg_type t ON t.oid = b.base WHERE t.typtype = 'd'
),
