-- The source went on from before what the copy's snapshot saw. Of a table that was in the lane has
-- applied changes since: it has to notice what comes next, like what an operator asks for.
UPDATE trellara.backfill AS b
   SET state = 'wanted', generation = b.generation + 1, reason = $7, hint = NULL,
       in_vain = b.in_vain + 1, writer = NULL, parts = NULL, rows = 0, bytes = 0,
       initial = b.initial AND b.state = 'copying',
       noticed_epoch = CASE WHEN b.state = 'copying' THEN b.noticed_epoch END,
       loaded_at = NULL, changed_at = clock_timestamp()
  FROM trellara.lane AS l
 WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $3
   AND b.flow = $1 AND b.schema_name = $4 AND b.table_name = $5 AND b.generation = $6
   AND b.state IN ('copying', 'loaded')
