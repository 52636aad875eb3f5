-- Quarantine: transactions that were set aside instead of applied, whole, with what an operator
-- needs to look at them, replay them or discard them. Nothing here is ever deleted by the role that
-- applies; a transaction leaves quarantine by being closed (C42).

-- A schema of version 1 has two tables of these names that nothing ever wrote to.
DO $$
BEGIN
    IF to_regclass('trellara.held') IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_attribute
         WHERE attrelid = to_regclass('trellara.held') AND attname = 'hash') THEN
        DROP TABLE trellara.held_key;
        DROP TABLE trellara.held;
    END IF;
END
$$;

CREATE TABLE IF NOT EXISTS trellara.held (
    -- Grows in the order in which transactions were set aside; of one lane that is commit order.
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    flow             text        NOT NULL,
    lane             integer     NOT NULL CHECK (lane >= 0),
    -- The identity, as in trellara.applied, and what it is made of.
    hash             bytea       NOT NULL CHECK (length(hash) = 16),
    source_system    bigint      NOT NULL,
    source_timeline  bigint      NOT NULL,
    commit_lsn       pg_lsn      NOT NULL,
    end_lsn          pg_lsn      NOT NULL,
    source_xid       bigint      NOT NULL,
    -- Microseconds since 2000-01-01, as PostgreSQL counts them.
    committed_at_us  bigint      NOT NULL,
    -- blocking: the lane stands in front of it. poisoned: it was refused for cause, and the lane has
    -- moved past it. dependent: it touches what an earlier one touches, and waits behind it.
    reason           text        NOT NULL CHECK (reason IN ('blocking', 'poisoned', 'dependent')),
    state            text        NOT NULL DEFAULT 'held'
        CHECK (state IN ('held', 'replaying', 'replayed', 'discarded')),
    -- target: its frames are in trellara.held_frame. stream: they are in the stream alone, and the
    -- checkpoint in front of it keeps them there.
    storage          text        NOT NULL CHECK (storage IN ('stream', 'target')),
    -- Whether it came in chunks that a manifest closed.
    chunked          boolean     NOT NULL,
    -- The frame that holds it, or its manifest.
    stream           text        NOT NULL,
    stream_created   text        NOT NULL,
    stream_sequence  bigint      NOT NULL CHECK (stream_sequence > 0),
    incarnation      bigint      NOT NULL CHECK (incarnation >= 0),
    frame_digest     bytea       NOT NULL CHECK (length(frame_digest) = 16),
    -- The newest ordinal of the ledger when it was refused the last time: as long as the lane stands
    -- there, this is the next one. 0 once the lane has moved past it.
    before_ordinal   bigint      NOT NULL DEFAULT 0 CHECK (before_ordinal >= 0),
    -- Where the lane stands behind it: position of the source, last frame wholly done with.
    after_lsn        pg_lsn      NOT NULL,
    after_timeline   bigint      NOT NULL,
    after_sequence   bigint      NOT NULL CHECK (after_sequence > 0),
    after_incarnation bigint     NOT NULL CHECK (after_incarnation >= 0),
    after_ordinal    bigint      NOT NULL CHECK (after_ordinal >= 0),
    after_digest     bytea       NOT NULL CHECK (length(after_digest) = 16),
    -- Of its frames in the target, or of its records where they are in the stream.
    frames           bigint      NOT NULL CHECK (frames >= 0),
    bytes            bigint      NOT NULL CHECK (bytes >= 0),
    changes          bigint      NOT NULL CHECK (changes >= 0),
    keys             bigint      NOT NULL DEFAULT 0 CHECK (keys >= 0),
    -- Why it was refused the last time; all empty for a dependent one that was never tried.
    sqlstate         text        NOT NULL DEFAULT '',
    message          text        NOT NULL DEFAULT '',
    -- As the server said it: it may hold values of the row.
    detail           text        NOT NULL DEFAULT '',
    hint             text        NOT NULL DEFAULT '',
    schema_name      text        NOT NULL DEFAULT '',
    table_name       text        NOT NULL DEFAULT '',
    -- The constraint or column that the server named.
    object           text        NOT NULL DEFAULT '',
    -- Which surviving change of the transaction failed, from 1; 0: not known.
    failed_change    bigint      NOT NULL DEFAULT 0 CHECK (failed_change >= 0),
    attempts         bigint      NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    held_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_tried_at    timestamptz,
    -- A replay under way: of which epoch of the lane. Of an earlier one it is nobody's any more.
    claimed_epoch    bigint,
    claimed_at       timestamptz,
    -- How it ended.
    closed_at        timestamptz,
    closed_reason    text,
    -- The first later transaction that was applied although it touches the same (C46).
    overtaken_by     text,
    overtaken_lsn    pg_lsn,
    overtaken_at     timestamptz,
    UNIQUE (flow, lane, hash),
    CHECK (end_lsn > commit_lsn),
    CHECK (storage = 'target' OR (chunked AND reason = 'blocking')),
    CHECK (reason <> 'dependent' OR storage = 'target'),
    CHECK ((state IN ('replayed', 'discarded')) = (closed_at IS NOT NULL) OR state = 'replaying'),
    CHECK ((state = 'replaying') = (claimed_epoch IS NOT NULL)),
    CHECK ((claimed_epoch IS NULL) = (claimed_at IS NULL)),
    CHECK (state <> 'discarded' OR (closed_reason IS NOT NULL AND storage = 'target')),
    CHECK (state <> 'discarded' OR reason <> 'blocking'),
    CHECK ((overtaken_by IS NULL) = (overtaken_lsn IS NULL)),
    CHECK ((overtaken_by IS NULL) = (overtaken_at IS NULL))
);
CREATE INDEX IF NOT EXISTS held_open ON trellara.held (flow, lane, id) WHERE state <> 'replayed';

-- The frames of a held transaction, byte for byte, each with its digest. Of a bundle: one frame cut
-- down to this transaction. Of a chunked one: its manifest, its abort frames, its chunks.
CREATE TABLE IF NOT EXISTS trellara.held_frame (
    held_id  bigint  NOT NULL REFERENCES trellara.held (id),
    number   integer NOT NULL CHECK (number >= 0),
    -- Where it stood in the stream.
    sequence bigint  NOT NULL CHECK (sequence > 0),
    digest   bytea   NOT NULL CHECK (length(digest) = 16),
    bytes    bytea   NOT NULL,
    PRIMARY KEY (held_id, number)
);
ALTER TABLE trellara.held_frame ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- What a held transaction touches (C45).
CREATE TABLE IF NOT EXISTS trellara.held_key (
    held_id bigint NOT NULL REFERENCES trellara.held (id),
    schema  text   NOT NULL,
    "table" text   NOT NULL,
    -- row: a row that it writes, by its key. value: what it claims or points to beside; it decides
    -- the order and explains no difference. table, truncate, keyless: the whole table, because keys
    -- are not known, because it is emptied, because it has none. everything: all tables, because
    -- something fires on this one.
    touch   text   NOT NULL CHECK (touch IN ('row', 'value', 'table', 'truncate', 'keyless',
                                         'everything')),
    -- Columns of the target to their values as text; none for the whole table.
    key     jsonb  CHECK (jsonb_typeof(key) = 'object'),
    CHECK ((key IS NULL) = (touch IN ('table', 'truncate', 'keyless', 'everything')))
);
CREATE INDEX IF NOT EXISTS held_key_held_id ON trellara.held_key (held_id);

-- Which earlier ones a dependent transaction waits behind.
CREATE TABLE IF NOT EXISTS trellara.held_dependency (
    held_id bigint NOT NULL REFERENCES trellara.held (id),
    on_id   bigint NOT NULL REFERENCES trellara.held (id),
    PRIMARY KEY (held_id, on_id),
    CHECK (on_id < held_id)
);
CREATE INDEX IF NOT EXISTS held_dependency_on_id ON trellara.held_dependency (on_id);

-- Changes that a conflict rule let go by or wrote over, in the target transaction that did so.
CREATE TABLE IF NOT EXISTS trellara.skipped (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    flow       text        NOT NULL,
    lane       integer     NOT NULL,
    hash       bytea       NOT NULL CHECK (length(hash) = 16),
    commit_lsn pg_lsn      NOT NULL,
    end_lsn    pg_lsn      NOT NULL,
    source_xid bigint      NOT NULL,
    change     bigint      NOT NULL CHECK (change > 0),
    verb       text        NOT NULL CHECK (verb IN ('insert', 'update', 'delete')),
    conflict   text        NOT NULL CHECK (conflict IN ('missing_row', 'duplicate_key')),
    rule       text        NOT NULL CHECK (rule IN ('skip', 'overwrite')),
    schema     text        NOT NULL,
    "table"    text        NOT NULL,
    -- The row's key; none where the table has none.
    key        jsonb       CHECK (jsonb_typeof(key) = 'object'),
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS skipped_flow ON trellara.skipped (flow, lane, id);

-- What an operator asks of whoever holds the lane, and the answer. A request is begun only while its
-- lease runs, by this server's clock; the command that made it renews it.
CREATE TABLE IF NOT EXISTS trellara.request (
    token       text        PRIMARY KEY CHECK (token ~ '^[a-z0-9]{8,64}$'),
    flow        text        NOT NULL,
    lane        integer     NOT NULL,
    action      text        NOT NULL CHECK (action IN ('replay', 'discard')),
    -- Which of trellara.held; none: all that are open.
    ids         bigint[],
    force       boolean     NOT NULL DEFAULT false,
    reason      text        NOT NULL DEFAULT '' CHECK (length(reason) <= 4000),
    operator    text        NOT NULL,
    host        text        NOT NULL,
    version     text        NOT NULL,
    asked_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    begun_at    timestamptz,
    answered_at timestamptz,
    answer      jsonb,
    CHECK ((answered_at IS NULL) = (answer IS NULL))
);

-- A lane that stands still because somebody wants it to.
CREATE TABLE IF NOT EXISTS trellara.pause (
    flow      text        NOT NULL,
    lane      integer     NOT NULL,
    reason    text        NOT NULL,
    operator  text        NOT NULL,
    host      text        NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The applier's answer: under which epoch it stands still, and where.
    stands_epoch bigint,
    stands_lsn   pg_lsn,
    stands_at    timestamptz,
    PRIMARY KEY (flow, lane),
    CHECK ((stands_epoch IS NULL) = (stands_lsn IS NULL)),
    CHECK ((stands_epoch IS NULL) = (stands_at IS NULL))
);

-- Who did what, in the same target transaction as the deed. Append-only: the role that applies may
-- neither change nor delete a row, and a row keeps the held transaction that it is about.
CREATE TABLE IF NOT EXISTS trellara.audit (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    flow       text        NOT NULL,
    lane       integer     NOT NULL,
    action     text        NOT NULL,
    held_id    bigint      REFERENCES trellara.held (id),
    -- The person, as the command knows it; the role is the session's own.
    operator   text        NOT NULL,
    host       text        NOT NULL,
    version    text        NOT NULL,
    role       text        NOT NULL DEFAULT session_user,
    -- Arguments of the command, and what came of it; no values of rows.
    arguments  jsonb       NOT NULL DEFAULT '{}',
    reason     text        NOT NULL DEFAULT '',
    -- Where the lane stood.
    lsn        pg_lsn      NOT NULL,
    -- Of the row of trellara.held before, as text; none where there was none.
    digest     bytea       CHECK (length(digest) = 16)
);
CREATE INDEX IF NOT EXISTS audit_flow ON trellara.audit (flow, id);
