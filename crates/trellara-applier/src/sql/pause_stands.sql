-- Nothing will be applied under this epoch any more until the row is gone. Who raised the epoch since
-- reads the row before it applies anything.
WITH answered AS (
    UPDATE trellara.pause AS p
       SET stands_epoch = $3, stands_lsn = $4, stands_at = clock_timestamp()
     WHERE p.flow = $1 AND p.lane = $2
       AND EXISTS (SELECT FROM trellara.lane AS l
                    WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $3)
    RETURNING p.lane
)
SELECT pg_notify($5, a.lane::text) FROM answered AS a
