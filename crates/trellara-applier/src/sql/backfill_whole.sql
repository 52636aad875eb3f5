-- All parts are in, and indexes that were put off are being made: the relay is asked for nothing more.
UPDATE trellara.backfill AS b
   SET parts = $8::integer, reason = NULL, hint = NULL, changed_at = clock_timestamp()
  FROM trellara.lane AS l
 WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $3
   AND b.flow = $1 AND b.schema_name = $4 AND b.table_name = $5
   AND b.generation = $6 AND b.writer = $7 AND b.state = 'copying'
   AND $8::integer = (SELECT count(*) FROM trellara.backfill_part AS p
              WHERE p.flow = $1 AND p.schema_name = $4 AND p.table_name = $5)
