CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(10,2));
CREATE PUBLICATION vectors FOR ALL TABLES;
\i slot.sql
INSERT INTO item VALUES (1, 'one', 1.50), (2, NULL, NULL);
UPDATE item SET name = 'uno' WHERE id = 1;
UPDATE item SET id = 3 WHERE id = 1;
DELETE FROM item WHERE id = 3;
\i capture.sql
