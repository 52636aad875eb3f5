-- Everything from here on is captured.
SELECT pg_create_logical_replication_slot('trellara_vectors', 'pgoutput');
