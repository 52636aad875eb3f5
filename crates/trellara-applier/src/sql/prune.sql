SELECT pruned, server_time
  FROM trellara.prune($1, $2, $3, make_interval(secs => $4), $5, $6, $7)
