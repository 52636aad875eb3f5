-- The rows that could hold a transaction ending between $4 and $5 and recorded behind ordinal $6: one
-- index range, whatever the window holds (C44). Rows of ordinary applies, whose highest end is their
-- last transaction's, lie one behind the other: the first of them at or beyond $5 is the last that
-- can hold any. Rows of later replays hold one transaction each and lie among them.
SELECT a.first_ordinal, a.last_ordinal, a.hashes
  FROM trellara.applied AS a
 WHERE a.flow = $1 AND a.lane = $2 AND a.source_system = $3
   AND a.highest_end_lsn >= $4
   AND a.highest_end_lsn <= coalesce(
           (SELECT b.highest_end_lsn FROM trellara.applied AS b
             WHERE b.flow = $1 AND b.lane = $2 AND b.source_system = $3
               AND b.highest_end_lsn >= $5 AND b.highest_end_lsn = b.transaction_end_lsn
             ORDER BY b.highest_end_lsn LIMIT 1),
           'FFFFFFFF/FFFFFFFF'::pg_lsn)
   AND a.lowest_end_lsn <= $5
   AND a.last_ordinal > $6
 ORDER BY a.highest_end_lsn
