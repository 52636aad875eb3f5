-- Version 3: what a copy has brought into the target and what of it is still to come, and how tables
-- were tied when a transaction that writes them was held.

-- The ties of the tables that a held transaction writes as they were known then, each as a text: of
-- one that is not among them it left no values in trellara.held_key.
CREATE TABLE IF NOT EXISTS trellara.held_tie (
    held_id bigint NOT NULL REFERENCES trellara.held (id),
    schema  text   NOT NULL,
    "table" text   NOT NULL,
    tie     text   NOT NULL
);
CREATE INDEX IF NOT EXISTS held_tie_held_id ON trellara.held_tie (held_id);

-- One row for each table whose rows a copy brings, or brought. It stays when the copy is in: the
-- snapshot says for ever which transactions were in it, and whoever applies one of them later, out
-- of quarantine, leaves out what it did to this table.
CREATE TABLE IF NOT EXISTS trellara.backfill (
    flow            text        NOT NULL,
    schema_name     text        NOT NULL,
    table_name      text        NOT NULL,
    -- Raised whenever what came of a copy is void and it has to be begun anew.
    generation      integer     NOT NULL DEFAULT 1 CHECK (generation > 0),
    -- announced: the table joins the flow, and transactions that began before are still open.
    -- wanted: not begun. copying: rows are coming. loaded: all rows are in, and the lane has not
    -- passed converges_at yet. done: and it has. failed: an operator is needed. kept: the rows that
    -- were there are taken for those of the source. removed: the table left the flow.
    state           text        NOT NULL DEFAULT 'wanted' CHECK (state IN
        ('announced', 'wanted', 'copying', 'loaded', 'done', 'failed', 'kept', 'removed')),
    -- Whether the lane stands still until it is in: of a flow's first copy, so that the target never
    -- shows some tables later than others. Otherwise the lane stops where the table is touched first.
    initial         boolean     NOT NULL,
    -- Of one that is not in: the epoch of the applier that applies nothing of the table any more.
    noticed_epoch   bigint,
    -- What the source said when the copy began; empty tables are found by setup, which has no writer.
    relation        bigint,
    columns         text[],
    writer          bigint,
    -- Cluster and timeline that the snapshot was taken on: its ids mean nothing on others. The system
    -- identifier is kept as in trellara.applied.
    source_system   bigint,
    source_timeline bigint,
    -- As pg_current_snapshot() printed it.
    snapshot        text,
    converges_at    pg_lsn,
    estimated_rows  bigint      NOT NULL DEFAULT 0,
    estimated_bytes bigint      NOT NULL DEFAULT 0,
    -- How many parts there are, once the writer has said it.
    parts           integer     CHECK (parts >= 0),
    -- Of the parts that are in.
    rows            bigint      NOT NULL DEFAULT 0 CHECK (rows >= 0),
    bytes           bigint      NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    -- How many copies since it was asked for came to nothing.
    in_vain         integer     NOT NULL DEFAULT 0 CHECK (in_vain >= 0),
    -- Of one that is removed: it was not in, so there is nothing whole that a change could be applied
    -- to. That holds for transactions with an id below the limit, of which the source knew when the
    -- table was out of the publication; for all while there is none.
    abandoned       boolean     NOT NULL DEFAULT false,
    abandoned_below bigint,
    -- Why it failed, or was begun anew last.
    reason          text,
    hint            text,
    asked_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at      timestamptz,
    loaded_at       timestamptz,
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (flow, schema_name, table_name),
    CHECK (state NOT IN ('copying', 'loaded', 'done') OR (snapshot IS NOT NULL AND converges_at IS NOT NULL)),
    CHECK ((source_system IS NULL) = (source_timeline IS NULL)),
    CHECK (state = 'removed' OR NOT abandoned),
    CHECK (state <> 'failed' OR reason IS NOT NULL)
);

-- The ledger of the copy: a part's rows and its row here commit together, or neither does.
CREATE TABLE IF NOT EXISTS trellara.backfill_part (
    flow        text        NOT NULL,
    schema_name text        NOT NULL,
    table_name  text        NOT NULL,
    generation  integer     NOT NULL,
    writer      bigint      NOT NULL,
    part        integer     NOT NULL CHECK (part >= 0),
    rows        bigint      NOT NULL CHECK (rows >= 0),
    bytes       bigint      NOT NULL CHECK (bytes >= 0),
    digest      bytea       NOT NULL CHECK (length(digest) = 16),
    loaded_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (flow, schema_name, table_name, part),
    FOREIGN KEY (flow, schema_name, table_name) REFERENCES trellara.backfill ON DELETE CASCADE
);

-- Indexes, unique constraints and foreign keys of the target that were put off until a copy is in.
-- What is here and not restored is not in the catalogue: it was dropped in the transaction that wrote
-- the row, and is made again in the one that says so.
CREATE TABLE IF NOT EXISTS trellara.backfill_definition (
    flow            text        NOT NULL,
    schema_name     text        NOT NULL,
    table_name      text        NOT NULL,
    -- foreign key: made without a look at the rows, which is the validation that follows it.
    kind            text        NOT NULL CHECK (kind IN
        ('index', 'constraint', 'foreign key', 'validation')),
    -- What it belongs to: the table, or a partition of it.
    relation_schema text        NOT NULL,
    relation_name   text        NOT NULL,
    name            text        NOT NULL,
    -- The table that a foreign key refers to.
    refers_schema   text,
    refers_name     text,
    -- The order within the table: partitions come before what they are partitions of.
    position        integer     NOT NULL,
    -- The statements that make it what it was.
    definition      text        NOT NULL,
    -- Why the target did not take it: then it waits for an operator.
    reason          text,
    hint            text,
    noted_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    restored_at     timestamptz,
    PRIMARY KEY (flow, schema_name, table_name, kind, relation_schema, relation_name, name)
);
