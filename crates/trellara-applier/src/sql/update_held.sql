-- A transaction in front of which the lane stood was refused again, or the lane moves past it now.
-- A replay of an earlier epoch that was under way is nobody's any more.
UPDATE trellara.held AS h
   SET state = 'held', claimed_epoch = NULL, claimed_at = NULL,
       reason = $4, storage = $5, before_ordinal = $6,
       stream = $7, stream_created = $8, stream_sequence = $9, incarnation = $10,
       frame_digest = $11,
       after_lsn = $12, after_timeline = $13, after_sequence = $14, after_incarnation = $15,
       after_ordinal = $16, after_digest = $17,
       sqlstate = $18, message = $19, detail = $20, hint = $21, schema_name = $22,
       table_name = $23, object = $24, failed_change = $25,
       attempts = h.attempts + $26, last_tried_at = clock_timestamp(),
       keys = greatest(h.keys, $28),
       -- What is in the target stays as it is there; what was in the stream alone may have come in
       -- another form.
       chunked = CASE h.storage WHEN 'stream' THEN $29 ELSE h.chunked END,
       frames = CASE h.storage WHEN 'stream' THEN $30 ELSE h.frames END,
       bytes = CASE h.storage WHEN 'stream' THEN $31 ELSE h.bytes END
  FROM trellara.lane AS l
 WHERE h.id = $27 AND h.flow = $1 AND h.lane = $2 AND h.reason = 'blocking'
   AND h.state IN ('held', 'replaying')
   AND l.flow = $1 AND l.lane = $2 AND l.epoch = $3
RETURNING h.id
