-- The next definition that was put off and may be made again. Indexes as soon as all rows of their
-- table are in; foreign keys when both of their tables show what the lane shows, as rows of the one
-- were read later than those of the other. $2: whatever the copies say, as the flow goes. $3: tables
-- that something is in the way of; nothing of them, nor what refers to them, which may need an index.
SELECT d.schema_name, d.table_name, d.kind, d.relation_schema, d.relation_name, d.name, d.definition,
       pg_catalog.to_regclass(pg_catalog.format('%I.%I', d.relation_schema, d.relation_name)) IS NULL,
       -- Somebody made it again by hand.
       EXISTS (SELECT FROM pg_catalog.pg_index AS i
                 JOIN pg_catalog.pg_class AS x ON x.oid = i.indexrelid
                WHERE d.kind = 'index' AND x.relname = d.name AND i.indisvalid
                  AND i.indrelid = pg_catalog.to_regclass(
                          pg_catalog.format('%I.%I', d.relation_schema, d.relation_name))
                  AND pg_catalog.strpos(d.definition, pg_catalog.replace(
                          pg_catalog.pg_get_indexdef(x.oid), ' ON ONLY ', ' ON ')) > 0)
       OR EXISTS (SELECT FROM pg_catalog.pg_constraint AS c
                   WHERE d.kind IN ('constraint', 'foreign key') AND c.conname = d.name
                     AND c.conrelid = pg_catalog.to_regclass(
                             pg_catalog.format('%I.%I', d.relation_schema, d.relation_name))
                     AND pg_catalog.strpos(d.definition, pg_catalog.pg_get_constraintdef(c.oid)) > 0),
       pg_catalog.format('%I.%I', d.schema_name, d.table_name)
  FROM trellara.backfill_definition AS d
  LEFT JOIN trellara.backfill AS b
         ON (b.flow, b.schema_name, b.table_name) = (d.flow, d.schema_name, d.table_name)
  LEFT JOIN trellara.backfill AS r
         ON (r.flow, r.schema_name, r.table_name) = (d.flow, d.refers_schema, d.refers_name)
 WHERE d.flow = $1 AND d.restored_at IS NULL AND d.reason IS NULL
   AND (d.kind <> 'validation'
        OR EXISTS (SELECT FROM trellara.backfill_definition AS f
                    WHERE (f.flow, f.schema_name, f.table_name, f.relation_schema, f.relation_name, f.name)
                        = (d.flow, d.schema_name, d.table_name, d.relation_schema, d.relation_name, d.name)
                      AND f.kind = 'foreign key' AND f.restored_at IS NOT NULL))
   AND ($2 OR CASE
        WHEN d.kind IN ('index', 'constraint')
        THEN coalesce(b.state, 'removed') IN ('loaded', 'done', 'kept', 'removed')
             OR (b.state = 'copying' AND b.parts IS NOT NULL)
        ELSE coalesce(b.state, 'removed') IN ('done', 'kept', 'removed')
             AND coalesce(r.state, 'removed') IN ('done', 'kept', 'removed') END)
   AND pg_catalog.format('%I.%I', d.schema_name, d.table_name) <> ALL ($3::text[])
   AND pg_catalog.format('%I.%I', coalesce(d.refers_schema, ''), coalesce(d.refers_name, ''))
       <> ALL ($3::text[])
 ORDER BY d.kind IN ('foreign key', 'validation'), d.schema_name, d.table_name, d.position,
          d.relation_schema, d.relation_name, d.name
 LIMIT 1 FOR UPDATE OF d
