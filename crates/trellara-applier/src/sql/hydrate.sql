-- The rows of a lane from the one at or below an ordinal up to another, oldest first: what the cache
-- is born from. Where that one was pruned it begins with the oldest there is.
SELECT a.first_ordinal, a.last_ordinal, a.source_system, a.end_lsn, a.lowest_end_lsn,
       a.highest_end_lsn, a.applied_at, a.hashes
  FROM trellara.applied AS a
 WHERE a.flow = $1 AND a.lane = $2
   AND a.first_ordinal >= coalesce(
           (SELECT max(b.first_ordinal) FROM trellara.applied AS b
             WHERE b.flow = $1 AND b.lane = $2 AND b.first_ordinal <= $3), 0)
   AND a.first_ordinal <= $4
 ORDER BY a.first_ordinal
