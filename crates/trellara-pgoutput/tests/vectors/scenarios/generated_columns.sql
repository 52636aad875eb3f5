-- Generated columns are not published unless asked for; dropped ones never.
CREATE TABLE box (id int PRIMARY KEY, gone int, w int, area int GENERATED ALWAYS AS (w * w) STORED);
ALTER TABLE box DROP COLUMN gone;
CREATE PUBLICATION vectors FOR ALL TABLES;
\i slot.sql
INSERT INTO box (id, w) VALUES (1, 3);
UPDATE box SET w = 4;
\i capture.sql
