CREATE TABLE event (at timestamptz, what text);
ALTER TABLE event REPLICA IDENTITY NOTHING;
CREATE TABLE keyless (n int);
CREATE TABLE "no Columns" ();
CREATE PUBLICATION vectors FOR ALL TABLES WITH (publish = 'insert');
\i slot.sql
INSERT INTO event VALUES ('2026-01-02 03:04:05.678+00', 'start');
INSERT INTO keyless VALUES (7);
INSERT INTO "no Columns" DEFAULT VALUES;
\i capture.sql
