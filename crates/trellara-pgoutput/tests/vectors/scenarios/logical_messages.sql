CREATE PUBLICATION vectors FOR ALL TABLES;
\i slot.sql
SELECT pg_logical_emit_message(false, 'at once', 'no transaction');
BEGIN;
SELECT pg_logical_emit_message(true, 'in order', '\x0001ff'::bytea);
COMMIT;
BEGIN;
SELECT pg_logical_emit_message(true, 'never seen', 'rolled back');
ROLLBACK;
\i capture.sql
