-- Whether backfill_begin.sql would find the copy's row; nobody asks for another copy until the
-- transaction is over.
SELECT FROM trellara.backfill AS b
  JOIN trellara.lane AS l ON l.flow = $1 AND l.lane = $2 AND l.epoch = $3
 WHERE b.flow = $1 AND b.schema_name = $4 AND b.table_name = $5 AND b.generation = $6
   AND (b.state = 'wanted' OR (b.state = 'copying' AND b.writer < $7 AND b.parts IS NULL))
   AND (b.initial OR b.noticed_epoch IS NOT NULL)
   FOR SHARE OF b
