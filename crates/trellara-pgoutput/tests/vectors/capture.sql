-- One message per line, as hexadecimal, in the order in which PostgreSQL sends them. The small
-- memory limit makes it stream every transaction above 64 kB.
SET logical_decoding_work_mem = '64kB';
\pset tuples_only on
\pset format unaligned
\o :out
SELECT encode(data, 'hex')
  FROM pg_logical_slot_peek_binary_changes('trellara_vectors', NULL, NULL,
         'proto_version', '2', 'streaming', 'on', 'messages', 'true',
         'publication_names', 'vectors');
\o
SELECT pg_drop_replication_slot('trellara_vectors');
