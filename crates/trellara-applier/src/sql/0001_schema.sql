-- What Trellara keeps in the target: where each lane stands, and what was applied.
-- Everything lives in one schema, so that one DROP SCHEMA takes it away.

CREATE SCHEMA IF NOT EXISTS trellara;

-- One row: which shape this schema has, and which target this is. The id stays the same in a
-- restored copy; together with the system identifier it names the one target that may acknowledge
-- and trim a stream.
CREATE TABLE IF NOT EXISTS trellara.state_version (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    version    integer     NOT NULL CHECK (version > 0),
    target_id  uuid        NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row for each lane: what the flow was set up with, who applies it, and the epoch that fences
-- everybody else. Written by setup and on connect only.
CREATE TABLE IF NOT EXISTS trellara.lane (
    flow             text        NOT NULL CHECK (flow ~ '^[a-z][a-z0-9_]{0,22}$'),
    lane             integer     NOT NULL CHECK (lane >= 0),
    state            text        NOT NULL CHECK (state IN ('intended', 'ready', 'removing')),
    slot             text        NOT NULL,
    publication      text        NOT NULL,
    stream           text        NOT NULL,
    consistent_point pg_lsn,
    source_system    bigint,
    source_timeline  bigint,
    epoch            bigint      NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    holder_pid       integer,
    holder_started   timestamptz,
    holder_instance  uuid,
    holder_name      text,
    taken_at         timestamptz,
    changed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (flow, lane),
    CHECK (state = 'intended' OR consistent_point IS NOT NULL),
    CHECK ((consistent_point IS NULL) = (source_system IS NULL)),
    CHECK ((source_system IS NULL) = (source_timeline IS NULL))
);

-- Ledger and checkpoint in one. Insert-only: the newest row of a lane is its checkpoint, and each
-- row is written in the target transaction that wrote the rows it speaks of. A row without hashes
-- is progress without transactions; it takes one ordinal.
CREATE TABLE IF NOT EXISTS trellara.applied (
    flow                text        NOT NULL,
    lane                integer     NOT NULL,
    first_ordinal       bigint      NOT NULL CHECK (first_ordinal >= 0),
    last_ordinal        bigint      NOT NULL,
    -- Cluster and timeline of end_lsn. The system identifier is unsigned on the source; here its
    -- bits are kept in a signed number.
    source_system       bigint      NOT NULL,
    source_timeline     bigint      NOT NULL,
    end_lsn             pg_lsn      NOT NULL,
    transaction_end_lsn pg_lsn      NOT NULL,
    -- Lowest and highest end LSN of this row's transactions, so that a probe is one index lookup.
    lowest_end_lsn      pg_lsn,
    highest_end_lsn     pg_lsn,
    epoch               bigint      NOT NULL,
    -- The last frame wholly applied.
    stream              text        NOT NULL,
    stream_created      text        NOT NULL,
    stream_sequence     bigint      NOT NULL CHECK (stream_sequence > 0),
    incarnation         bigint      NOT NULL CHECK (incarnation >= 0),
    frame_ordinal       bigint      NOT NULL CHECK (frame_ordinal >= 0),
    frame_digest        bytea       NOT NULL CHECK (length(frame_digest) = 16),
    applied_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Identities, 16 bytes each, at most 120 so that the row is never TOASTed.
    hashes              bytea       NOT NULL
        CHECK (length(hashes) % 16 = 0 AND length(hashes) <= 1920),
    PRIMARY KEY (flow, lane, first_ordinal),
    CHECK (last_ordinal = first_ordinal + greatest(length(hashes) / 16, 1) - 1),
    CHECK (transaction_end_lsn <= end_lsn),
    CHECK ((lowest_end_lsn IS NULL) = (length(hashes) = 0)),
    CHECK ((highest_end_lsn IS NULL) = (length(hashes) = 0)),
    CHECK (lowest_end_lsn <= highest_end_lsn AND highest_end_lsn <= end_lsn)
);
ALTER TABLE trellara.applied ALTER COLUMN hashes SET STORAGE PLAIN;
ALTER TABLE trellara.applied ALTER COLUMN frame_digest SET STORAGE PLAIN;

-- The probe: which rows of one source history could hold a transaction that ends here?
CREATE INDEX IF NOT EXISTS applied_probe
    ON trellara.applied (flow, lane, source_system, source_timeline, highest_end_lsn, lowest_end_lsn)
    WHERE highest_end_lsn IS NOT NULL;

INSERT INTO trellara.state_version (version) VALUES (1) ON CONFLICT (only_row) DO NOTHING;
