CREATE TABLE document (id int PRIMARY KEY, body text, seen int);
ALTER TABLE document ALTER body SET STORAGE EXTERNAL;
CREATE TABLE document_full (LIKE document INCLUDING STORAGE);
ALTER TABLE document_full REPLICA IDENTITY FULL;
CREATE PUBLICATION vectors FOR ALL TABLES;
INSERT INTO document VALUES (1, repeat('x', 2100), 0);
INSERT INTO document_full VALUES (1, repeat('y', 2100), 0);
\i slot.sql
UPDATE document SET seen = 1;
UPDATE document SET id = 2;
UPDATE document SET body = 'short';
UPDATE document_full SET seen = 1;
\i capture.sql
