CREATE TABLE account (id int PRIMARY KEY, owner text);
CREATE PUBLICATION vectors FOR ALL TABLES;
\i slot.sql
BEGIN;
INSERT INTO account VALUES (1, 'ann');
ALTER TABLE account ADD COLUMN balance int DEFAULT 10;
INSERT INTO account VALUES (2, 'bob', 20);
ALTER TABLE account RENAME COLUMN owner TO holder;
UPDATE account SET balance = 30 WHERE id = 1;
COMMIT;
\i capture.sql
