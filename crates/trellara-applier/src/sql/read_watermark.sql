-- Below which position of a system everything was dealt with, row or no row: what pruning wrote
-- down; before the first pruning where the lane began, which is its oldest row.
SELECT w.ordinal, w.end_lsn, true, false
  FROM trellara.watermark AS w
 WHERE w.flow = $1 AND w.lane = $2 AND w.source_system = $3
UNION ALL
(SELECT a.last_ordinal, a.end_lsn, false, length(a.hashes) > 0
   FROM trellara.applied AS a
  WHERE a.flow = $1 AND a.lane = $2 AND a.source_system = $3
  ORDER BY a.first_ordinal
  LIMIT 1)
