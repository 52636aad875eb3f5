SELECT a.last_ordinal, a.source_system, a.source_timeline, a.end_lsn, a.transaction_end_lsn,
       a.stream, a.stream_created, a.stream_sequence, a.incarnation, a.frame_ordinal, a.frame_digest
  FROM trellara.applied AS a
 WHERE a.flow = $1 AND a.lane = $2
 ORDER BY a.first_ordinal DESC
 LIMIT 1
