CREATE TABLE reading (day int, value int, PRIMARY KEY (day)) PARTITION BY RANGE (day);
CREATE TABLE reading_low PARTITION OF reading FOR VALUES FROM (0) TO (10);
CREATE TABLE reading_high (value int, day int NOT NULL);
ALTER TABLE reading ATTACH PARTITION reading_high FOR VALUES FROM (10) TO (20);
CREATE PUBLICATION vectors FOR TABLE reading WITH (publish_via_partition_root = true);
\i slot.sql
INSERT INTO reading VALUES (1, 100), (11, 110);
UPDATE reading SET day = 12 WHERE day = 1;
TRUNCATE reading;
\i capture.sql
