CREATE TABLE item (id int PRIMARY KEY);
CREATE PUBLICATION vectors FOR ALL TABLES;
SELECT pg_replication_origin_create('elsewhere');
\i slot.sql
SELECT pg_replication_origin_session_setup('elsewhere');
BEGIN;
SELECT pg_replication_origin_xact_setup('AB/CD', '2026-01-01 00:00:00+00');
INSERT INTO item VALUES (1);
COMMIT;
SELECT pg_replication_origin_session_reset();
\i capture.sql
SELECT pg_replication_origin_drop('elsewhere');
