-- The writer whose frames counted behind the last row of a lane that names a frame of this stream
-- below a sequence: every marker has a row of its own. Where that row was pruned, the oldest there is.
SELECT coalesce(
    (SELECT a.incarnation FROM trellara.applied AS a
      WHERE a.flow = $1 AND a.lane = $2 AND a.stream_created = $3 AND a.stream_sequence < $4
      ORDER BY a.first_ordinal DESC LIMIT 1),
    (SELECT a.incarnation FROM trellara.applied AS a
      WHERE a.flow = $1 AND a.lane = $2 AND a.stream_created = $3
      ORDER BY a.first_ordinal LIMIT 1))
