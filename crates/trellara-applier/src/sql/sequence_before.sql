-- The last frame of this stream that a lane had wholly passed while it stood before a position.
SELECT a.stream_sequence FROM trellara.applied AS a
 WHERE a.flow = $1 AND a.lane = $2 AND a.stream_created = $3 AND a.end_lsn < $4
 ORDER BY a.first_ordinal DESC LIMIT 1
