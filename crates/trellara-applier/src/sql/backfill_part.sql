-- The ledger row of a part, whose rows were copied in the same transaction. The flow is NULL, and
-- the insert fails with 23502, unless this copy of the table is still the one that is wanted and the
-- lane still has the expected epoch (C31).
WITH moved AS (
    UPDATE trellara.backfill AS b
       SET rows = b.rows + $9, bytes = b.bytes + $10, changed_at = clock_timestamp()
      FROM trellara.lane AS l
     WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $3
       AND b.flow = $1 AND b.schema_name = $4 AND b.table_name = $5
       AND b.generation = $6 AND b.writer = $7 AND b.state = 'copying'
    RETURNING b.flow)
INSERT INTO trellara.backfill_part
       (flow, schema_name, table_name, generation, writer, part, rows, bytes, digest)
VALUES ((SELECT flow FROM moved), $4, $5, $6, $7, $8, $9, $10, $11)
