-- An operator is needed.
UPDATE trellara.backfill AS b
   SET state = 'failed', reason = $7, hint = $8, changed_at = clock_timestamp()
  FROM trellara.lane AS l
 WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $3
   AND b.flow = $1 AND b.schema_name = $4 AND b.table_name = $5 AND b.generation = $6
   AND b.state IN ('wanted', 'copying')
