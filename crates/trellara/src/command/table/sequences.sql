-- The sequences that columns of the publication's tables own or take their defaults from; partitions
-- use those of their roots, and roots those of their partitions.
WITH named AS (
    SELECT c.oid
      FROM pg_publication_tables AS t
      JOIN pg_namespace AS n ON n.nspname = t.schemaname
      JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.tablename
     WHERE t.pubname = $1
), tree AS (
    SELECT oid FROM named
     UNION SELECT p.relid FROM named CROSS JOIN LATERAL pg_partition_tree(oid) AS p
     UNION SELECT a.relid FROM named CROSS JOIN LATERAL pg_partition_ancestors(oid) AS a
), used AS (
    SELECT d.objid AS oid
      FROM pg_depend AS d JOIN tree AS t ON t.oid = d.refobjid
     WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
       AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
     UNION
    SELECT d.refobjid
      FROM pg_attrdef AS f JOIN tree AS t ON t.oid = f.adrelid
      JOIN pg_depend AS d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
       AND d.refclassid = 'pg_class'::regclass
)
SELECT n.nspname::text, c.relname::text
  FROM used AS u
  JOIN pg_class AS c ON c.oid = u.oid AND c.relkind = 'S'
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 ORDER BY 1, 2
