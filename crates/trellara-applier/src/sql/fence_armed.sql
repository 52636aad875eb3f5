-- Nothing beyond the cap will be applied under this epoch. Who raised the epoch since looks at the
-- fence before it applies anything.
WITH answered AS (
    UPDATE trellara.fence AS f
       SET armed_at = clock_timestamp(), armed_lsn = $5, epoch = $4, reached_at = NULL
     WHERE f.flow = $1 AND f.lane = $2 AND f.run = $3 AND f.lease_until > clock_timestamp()
       AND EXISTS (SELECT FROM trellara.lane AS l
                    WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $4)
    RETURNING f.run
)
SELECT pg_notify($6, a.run) FROM answered AS a
