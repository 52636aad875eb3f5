-- Rolled back as a whole. PostgreSQL 18 knows it before it streams and sends nothing of it.
CREATE TABLE wide (id int PRIMARY KEY, filling text);
CREATE PUBLICATION vectors FOR TABLE wide (id);
\i slot.sql
BEGIN;
INSERT INTO wide SELECT g, repeat('k', 1000) FROM generate_series(1, 80) g;
ROLLBACK;
INSERT INTO wide VALUES (1, 'stays');
\i capture.sql
