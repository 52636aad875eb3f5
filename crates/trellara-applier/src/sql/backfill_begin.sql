-- A copy begins, unless another was asked for meanwhile or the lane is not ours any more. The lane
-- must have noticed it: what it applies of the table until then would be emptied or doubled.
UPDATE trellara.backfill AS b
   SET state = 'copying', writer = $7, relation = $8, columns = $9, snapshot = $10,
       converges_at = $11, estimated_rows = $12, estimated_bytes = $13,
       source_system = $14, source_timeline = $15, parts = NULL, rows = 0, bytes = 0,
       started_at = clock_timestamp(), loaded_at = NULL, changed_at = clock_timestamp()
  FROM trellara.lane AS l
 WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $3
   AND b.flow = $1 AND b.schema_name = $4 AND b.table_name = $5 AND b.generation = $6
   AND (b.state = 'wanted' OR (b.state = 'copying' AND b.writer < $7 AND b.parts IS NULL))
   AND (b.initial OR b.noticed_epoch IS NOT NULL)
