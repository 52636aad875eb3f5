-- The schema of version 1, as the last build before version 2 made it. Never changed.
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

-- The probe: which rows could hold a transaction that ends here? The timeline is no part of it: the
-- hash decides, and in it is the timeline of the commit (C01, C44).
CREATE INDEX IF NOT EXISTS applied_probe
    ON trellara.applied (flow, lane, source_system, highest_end_lsn, lowest_end_lsn)
    WHERE highest_end_lsn IS NOT NULL;

-- Up to where rows were pruned: what ends at or below end_lsn in this system's history was dealt
-- with, though its row is gone. Without a row here nothing was pruned, and the oldest row of
-- trellara.applied says where the flow began. One for each lane and system (C41).
CREATE TABLE IF NOT EXISTS trellara.watermark (
    flow            text        NOT NULL,
    lane            integer     NOT NULL,
    source_system   bigint      NOT NULL,
    source_timeline bigint      NOT NULL,
    -- Of the last row pruned.
    ordinal         bigint      NOT NULL CHECK (ordinal >= 0),
    end_lsn         pg_lsn      NOT NULL,
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (flow, lane, source_system)
);

-- A verify run's request that a lane stand still at one position of the source, and the applier's
-- answer. It binds nobody once its lease is over by this server's clock; the run renews it.
CREATE TABLE IF NOT EXISTS trellara.fence (
    flow        text        NOT NULL,
    lane        integer     NOT NULL,
    run         text        NOT NULL CHECK (length(run) BETWEEN 1 AND 64),
    -- No transaction is applied whose commit record begins here or beyond.
    cap         pg_lsn      NOT NULL,
    -- Whether cap is the run's own position, between two records: the lane stands exactly there.
    exact       boolean     NOT NULL DEFAULT false,
    lease_until timestamptz NOT NULL,
    -- The applier's: which of them answered, that it applies nothing beyond, where it stood then.
    epoch       bigint,
    armed_at    timestamptz,
    armed_lsn   pg_lsn,
    -- And that the lane's newest row of trellara.applied has end_lsn = cap.
    reached_at  timestamptz,
    PRIMARY KEY (flow, lane),
    CHECK ((armed_at IS NULL) = (armed_lsn IS NULL)),
    CHECK ((armed_at IS NULL) = (epoch IS NULL)),
    CHECK (reached_at IS NULL OR (exact AND armed_at IS NOT NULL))
);

-- What verify runs found, newest last; the oldest of a flow go when there are more than a hundred.
CREATE TABLE IF NOT EXISTS trellara.verify_run (
    run              text        PRIMARY KEY CHECK (run ~ '^[a-z0-9]{1,40}$'),
    flow             text        NOT NULL,
    mode             text        NOT NULL CHECK (mode IN ('exact', 'rolling', 'watch', 'quick')),
    -- What rows were digested by, with this seed.
    lane             text        NOT NULL CHECK (lane IN ('row64', 'blake3')),
    seed             bigint      NOT NULL,
    -- What it was asked for; whoever goes on with it must ask for the same.
    options          text        NOT NULL,
    -- The publication, as a digest, and both databases: what it is about.
    definition       text,
    state            text        NOT NULL DEFAULT 'running'
        CHECK (state IN ('running', 'finished', 'failed')),
    consistent_point pg_lsn,
    verdict          text,
    -- Why it failed.
    reason           text,
    operator         text        NOT NULL,
    version          text        NOT NULL,
    started_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at      timestamptz,
    -- The document that --output json prints, without values of rows.
    report           jsonb,
    CHECK ((state = 'running') = (finished_at IS NULL)),
    CHECK ((state = 'finished') = (verdict IS NOT NULL)),
    CHECK ((state = 'failed') = (reason IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS verify_run_newest ON trellara.verify_run (flow, started_at);

-- How far a run is with a table, and what it found in it.
CREATE TABLE IF NOT EXISTS trellara.verify_table (
    run              text        NOT NULL REFERENCES trellara.verify_run ON DELETE CASCADE,
    schema_name      text        NOT NULL,
    table_name       text        NOT NULL,
    -- The key that the next range begins at; none at the beginning and behind the end.
    next_from        text[],
    done             boolean     NOT NULL,
    pieces           bigint      NOT NULL,
    source_rows      bigint      NOT NULL,
    target_rows      bigint      NOT NULL,
    source_sum       text        NOT NULL,
    target_sum       text        NOT NULL,
    missing          bigint      NOT NULL,
    extra            bigint      NOT NULL,
    changed          bigint      NOT NULL,
    duplicate        bigint      NOT NULL,
    outcome          text,
    -- The oldest position of the source that any of its rows was compared at, and when that was:
    -- of the last time that all of it was looked at.
    verified_through pg_lsn,
    verified_at      timestamptz,
    -- What the table was by definition, as a digest: what goes on with it must find the same.
    fingerprint      text,
    PRIMARY KEY (run, schema_name, table_name)
);

-- Transactions that were set aside instead of applied, and the keys that they touch. Nothing writes
-- here yet; verify reads it, because what is held explains a difference and is never passed over.
CREATE TABLE IF NOT EXISTS trellara.held (
    id         bigint      PRIMARY KEY,
    flow       text        NOT NULL,
    lane       integer     NOT NULL CHECK (lane >= 0),
    commit_lsn pg_lsn      NOT NULL,
    end_lsn    pg_lsn      NOT NULL CHECK (end_lsn > commit_lsn),
    source_xid bigint      NOT NULL,
    state      text        NOT NULL CHECK (state IN ('held', 'replaying', 'replayed', 'discarded')),
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS trellara.held_key (
    held_id bigint NOT NULL REFERENCES trellara.held (id) ON DELETE CASCADE,
    schema  text   NOT NULL,
    "table" text   NOT NULL,
    -- Columns of the key to their values as text; NULL for the whole table.
    key     jsonb  CHECK (jsonb_typeof(key) = 'object')
);
CREATE INDEX IF NOT EXISTS held_key_held_id ON trellara.held_key (held_id);

-- Takes away a lane's oldest rows and moves its watermark, together. Only rows older than a time by
-- this server's clock, and only up to a position of one system (rows of systems before it have no
-- other limit): the oldest that can still be delivered again. Never the newest row, never more than
-- the given number, and nothing under another epoch. It runs with its owner's rights, so that the
-- role that applies needs none to remove or rewrite what was recorded.
CREATE OR REPLACE FUNCTION trellara.prune(
    flow text, lane integer, epoch bigint, older_than interval, up_to pg_lsn, up_to_system bigint,
    at_most integer, OUT pruned bigint, OUT server_time timestamptz)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $prune$
    WITH oldest AS (
        SELECT a.first_ordinal,
               a.applied_at < clock_timestamp() - $4
                   AND (a.source_system <> $6 OR a.end_lsn <= $5) AS may_go
          FROM trellara.applied AS a
         WHERE a.flow = $1 AND a.lane = $2
           AND EXISTS (SELECT FROM trellara.lane AS l
                        WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $3)
         ORDER BY a.first_ordinal
         LIMIT $7 + 1
    ), stays AS (
        -- The first row that may not go; else the last one looked at, which may be the newest.
        SELECT coalesce(min(o.first_ordinal) FILTER (WHERE NOT o.may_go), max(o.first_ordinal))
                   AS first_ordinal
          FROM oldest AS o
    ), gone AS (
        DELETE FROM trellara.applied AS a
         WHERE a.flow = $1 AND a.lane = $2
           AND a.first_ordinal < (SELECT s.first_ordinal FROM stays AS s)
        RETURNING a.last_ordinal, a.source_system, a.source_timeline, a.end_lsn
    ), moved AS (
        INSERT INTO trellara.watermark AS w
            (flow, lane, source_system, source_timeline, ordinal, end_lsn)
        SELECT DISTINCT ON (g.source_system)
               $1, $2, g.source_system, g.source_timeline, g.last_ordinal, g.end_lsn
          FROM gone AS g
         ORDER BY g.source_system, g.last_ordinal DESC
        ON CONFLICT (flow, lane, source_system) DO UPDATE
            SET source_timeline = excluded.source_timeline, ordinal = excluded.ordinal,
                end_lsn = excluded.end_lsn, changed_at = clock_timestamp()
            WHERE w.ordinal < excluded.ordinal
    )
    SELECT (SELECT count(*) FROM gone), clock_timestamp();
$prune$;
REVOKE ALL ON FUNCTION
    trellara.prune(text, integer, bigint, interval, pg_lsn, bigint, integer) FROM PUBLIC;

INSERT INTO trellara.state_version (version) VALUES (1) ON CONFLICT (only_row) DO NOTHING;
