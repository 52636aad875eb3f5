-- The first row of a lane; a second setup with the same genesis changes nothing.
INSERT INTO trellara.applied (
    flow, lane, first_ordinal, last_ordinal,
    source_system, source_timeline, end_lsn, transaction_end_lsn, epoch,
    stream, stream_created, stream_sequence, incarnation, frame_ordinal, frame_digest, hashes)
SELECT $1, $2, 0, 0, $3, $4, $5, $5, 0, $6, $7, $8, $9, $10, $11, ''::bytea
 WHERE NOT EXISTS (SELECT FROM trellara.applied AS a WHERE a.flow = $1 AND a.lane = $2)
