-- A million rows that the shop holds before its flow begins. The workload changes some of them while
-- they are copied; their numbers are negative, so that it never makes one of them itself.
-- Nobody checks a foreign key that is known to hold.
SET session_replication_role = replica;
INSERT INTO customers (id, name, letters)
  SELECT -g, 'customer ' || g,
         CASE WHEN g % 100 = 0 THEN
           (SELECT string_agg(md5((g * 1000 + i)::text), '') FROM generate_series(1, 400) AS i) END
    FROM generate_series(1, 100000) AS g;
INSERT INTO orders
  SELECT -g, -1 - g % 100000, 'paid', ARRAY[g, NULL, 7], g % 900 + 0.25
    FROM generate_series(1, 500000) AS g;
INSERT INTO payments
  SELECT -g, date '2025-06-01' + g % 300, g % 900 FROM generate_series(1, 380000) AS g;
INSERT INTO clicks SELECT -1, g / 2, 'old' FROM generate_series(1, 20000) AS g;
RESET session_replication_role;
