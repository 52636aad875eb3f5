CREATE TYPE mood AS ENUM ('calm', 'wild');
CREATE TABLE wide (id int PRIMARY KEY, filling text);
CREATE PUBLICATION vectors FOR TABLE wide (id);
\i slot.sql
BEGIN;
INSERT INTO wide SELECT g, repeat('k', 1000) FROM generate_series(1, 70) g;
ALTER TABLE wide ADD COLUMN state mood;
ALTER PUBLICATION vectors SET TABLE wide (id, state);
SELECT pg_logical_emit_message(true, 'inside', 'a block');
SAVEPOINT a;
INSERT INTO wide SELECT g, repeat('m', 1000), 'wild' FROM generate_series(101, 170) g;
COMMIT;
\i capture.sql
