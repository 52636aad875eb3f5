CREATE SCHEMA "Shop";
CREATE TYPE "Shop".colour AS ENUM ('red', 'green');
CREATE DOMAIN amount AS numeric(8,3) CHECK (VALUE >= 0);
CREATE TYPE address AS (street text, number int);
CREATE TABLE "Shop"."Order" (
  id uuid PRIMARY KEY, paint "Shop".colour, paints "Shop".colour[], cost amount, home address,
  raw bytea, doc jsonb, day date, at timestamptz, span interval, yes bool, ratio float8,
  short varchar(12), range int4range, list int[]);
CREATE PUBLICATION vectors FOR ALL TABLES;
SET TimeZone = 'UTC';
\i slot.sql
INSERT INTO "Shop"."Order" VALUES (
  '00000000-0000-0000-0000-000000000001', 'red', '{red,green}', 12.5, ROW('Main "St"', 7),
  '\x00ff', '{"a": [1, null]}', '2026-11-30', '2026-11-30 08:00:00+00', '1 day 02:00', true,
  0.1, 'Grüße', '[1,5)', '{{1,2},{3,NULL}}');
INSERT INTO "Shop"."Order" (id) VALUES ('00000000-0000-0000-0000-000000000002');
\i capture.sql
