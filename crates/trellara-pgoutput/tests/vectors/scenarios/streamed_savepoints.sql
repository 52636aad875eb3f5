-- The wide column is not published: it fills PostgreSQL's memory limit, not this repository.
CREATE TABLE wide (id int PRIMARY KEY, filling text);
CREATE PUBLICATION vectors FOR TABLE wide (id);
\i slot.sql
BEGIN;
INSERT INTO wide SELECT g, repeat('k', 1000) FROM generate_series(1, 70) g;
SAVEPOINT a;
INSERT INTO wide SELECT g, repeat('r', 1000) FROM generate_series(1001, 1070) g;
ROLLBACK TO a;
INSERT INTO wide VALUES (5000, 'after');
SAVEPOINT b;
INSERT INTO wide VALUES (5001, 'b');
SAVEPOINT c;
INSERT INTO wide SELECT g, repeat('c', 1000) FROM generate_series(2001, 2070) g;
ROLLBACK TO c;
RELEASE b;
UPDATE wide SET id = 1 - id WHERE id IN (1, 2);
DELETE FROM wide WHERE id = 3;
TRUNCATE wide;
INSERT INTO wide VALUES (9000, 'last');
COMMIT;
INSERT INTO wide VALUES (9001, 'alone');
\i capture.sql
