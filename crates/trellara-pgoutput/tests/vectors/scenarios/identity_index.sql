CREATE TABLE person (id int PRIMARY KEY, email text NOT NULL, note text);
CREATE UNIQUE INDEX person_email ON person (email);
ALTER TABLE person REPLICA IDENTITY USING INDEX person_email;
CREATE PUBLICATION vectors FOR ALL TABLES;
\i slot.sql
INSERT INTO person VALUES (1, 'a@example.org', 'first');
UPDATE person SET note = 'second' WHERE id = 1;
UPDATE person SET email = 'b@example.org' WHERE id = 1;
DELETE FROM person WHERE id = 1;
\i capture.sql
