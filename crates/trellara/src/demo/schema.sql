-- A small shop with what makes replication hard: a table without a key, values beyond a page
-- (TOAST), an enum, arrays, generated columns, a partitioned table, a foreign key.
CREATE TYPE order_state AS ENUM ('new', 'paid', 'shipped', 'returned');

CREATE TABLE customers (
    id      bigint PRIMARY KEY,
    name    text NOT NULL,
    tags    text[] NOT NULL DEFAULT '{}',
    letters text,
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE orders (
    id       bigint PRIMARY KEY,
    customer bigint NOT NULL REFERENCES customers,
    state    order_state NOT NULL DEFAULT 'new',
    lines    integer[] NOT NULL,
    total    numeric(12, 2) NOT NULL,
    gross    numeric(12, 2) GENERATED ALWAYS AS (total * 1.19) STORED
);

CREATE TABLE payments (
    id      bigint NOT NULL,
    paid_on date NOT NULL,
    amount  numeric(12, 2) NOT NULL,
    PRIMARY KEY (id, paid_on)
) PARTITION BY RANGE (paid_on);
CREATE TABLE payments_old PARTITION OF payments FOR VALUES FROM ('2020-01-01') TO ('2026-01-01');
CREATE TABLE payments_new PARTITION OF payments FOR VALUES FROM ('2026-01-01') TO ('2030-01-01');

-- No key: the old row is the only name a row has, and equal rows are allowed.
CREATE TABLE clicks (worker integer, number bigint, what text);
ALTER TABLE clicks REPLICA IDENTITY FULL;

-- One row for each transaction of the workload: a lost or doubled transaction shows here whatever
-- else it did.
CREATE TABLE journal (worker integer NOT NULL, number bigint NOT NULL);
ALTER TABLE journal REPLICA IDENTITY FULL;
