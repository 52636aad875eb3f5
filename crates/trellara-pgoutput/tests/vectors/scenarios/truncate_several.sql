CREATE TABLE parent (id serial PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
CREATE TABLE alone (id int PRIMARY KEY);
CREATE PUBLICATION vectors FOR ALL TABLES;
\i slot.sql
TRUNCATE alone;
TRUNCATE parent, alone RESTART IDENTITY CASCADE;
\i capture.sql
