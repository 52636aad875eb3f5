-- Dedup record, compare-and-set and checkpoint in one (C31). The lane is NULL, and the insert
-- fails with 23502, unless the newest row is the expected predecessor, the new one does not stand
-- before it, and the lane still has the expected epoch; a second row behind the same predecessor fails with 23505. Either way nothing of
-- this target transaction is committed.
INSERT INTO trellara.applied (
    flow, lane, first_ordinal, last_ordinal,
    source_system, source_timeline, end_lsn, transaction_end_lsn,
    lowest_end_lsn, highest_end_lsn, epoch,
    stream, stream_created, stream_sequence, incarnation, frame_ordinal, frame_digest, hashes)
VALUES (
    $1,
    (SELECT newest.lane
       FROM (SELECT a.lane, a.last_ordinal, a.end_lsn, a.source_system, a.source_timeline
               FROM trellara.applied AS a
              WHERE a.flow = $1 AND a.lane = $2
              ORDER BY a.first_ordinal DESC
              LIMIT 1) AS newest
      WHERE newest.last_ordinal = $3
        AND newest.end_lsn = $4
        AND newest.source_system = $5
        AND newest.source_timeline = $6
        AND (newest.source_system <> $9 OR newest.end_lsn <= $11)
        AND EXISTS (SELECT FROM trellara.lane AS l
                     WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $7)),
    $3 + 1, $8,
    $9, $10, $11, $12,
    $13, $14, $7,
    $15, $16, $17, $18, $19, $20, $21)
RETURNING applied_at
