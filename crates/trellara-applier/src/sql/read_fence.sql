-- A lane's fence while its lease lasts, by this server's clock. Leases are of seconds: one that ends
-- beyond the next minutes is nobody's (a clock that was set back, a row written by hand).
SELECT f.run, f.cap, f.exact,
       extract(epoch FROM f.lease_until - clock_timestamp())::float8,
       to_char(f.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"'),
       f.armed_at IS NOT NULL AND f.epoch = $3,
       f.reached_at IS NOT NULL AND f.epoch = $3
  FROM trellara.fence AS f
 WHERE f.flow = $1 AND f.lane = $2 AND f.lease_until > clock_timestamp()
   AND f.lease_until <= clock_timestamp() + interval '2 min'
