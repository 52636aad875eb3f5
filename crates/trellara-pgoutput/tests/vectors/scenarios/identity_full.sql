CREATE TABLE line (product text, amount int);
ALTER TABLE line REPLICA IDENTITY FULL;
CREATE PUBLICATION vectors FOR ALL TABLES;
\i slot.sql
INSERT INTO line VALUES ('pen', 1), ('pen', 1), (NULL, NULL);
UPDATE line SET amount = 2 WHERE product IS NULL;
DELETE FROM line WHERE product = 'pen';
\i capture.sql
