-- The lane's newest row stands at the cap, and stays there under this epoch.
WITH answered AS (
    UPDATE trellara.fence AS f
       SET reached_at = clock_timestamp(), epoch = $4
     WHERE f.flow = $1 AND f.lane = $2 AND f.run = $3 AND f.lease_until > clock_timestamp()
       AND f.exact AND f.cap = $5 AND f.armed_at IS NOT NULL
       AND EXISTS (SELECT FROM trellara.lane AS l
                    WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $4)
    RETURNING f.run
)
SELECT pg_notify($6, a.run) FROM answered AS a
