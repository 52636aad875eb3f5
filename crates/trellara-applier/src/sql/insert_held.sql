-- A transaction that is set aside, as long as the lane is ours. That one of its identity is there
-- already is an error, unless the caller knows of it and updates it.
INSERT INTO trellara.held (
    flow, lane, hash, source_system, source_timeline, commit_lsn, end_lsn, source_xid,
    committed_at_us, reason, storage, chunked, stream, stream_created, stream_sequence,
    incarnation, frame_digest, before_ordinal,
    after_lsn, after_timeline, after_sequence, after_incarnation, after_ordinal, after_digest,
    frames, bytes, changes, keys,
    sqlstate, message, detail, hint, schema_name, table_name, object, failed_change,
    attempts, last_tried_at)
SELECT l.flow, l.lane, $4, $5, $6, $7, $8, $9,
       $10, $11, $12, $13, $14, $15, $16,
       $17, $18, $19,
       $20, $21, $22, $23, $24, $25,
       $26, $27, $28, $29,
       $30, $31, $32, $33, $34, $35, $36, $37,
       $38, CASE WHEN $38::bigint > 0 THEN clock_timestamp() END
  FROM trellara.lane AS l
 WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $3
RETURNING id
