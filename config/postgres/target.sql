-- Rights on a target database. Run in that database, as a superuser, once before and once after
-- `trellara setup` (the second time grants what setup made):
--     psql -d shop -f target.sql
--     TRELLARA__TARGET__URL=postgresql://trellara_admin@db2/shop trellara setup
--     psql -d shop -f target.sql
-- Running it again changes nothing; run it again after adding tables. The roles have no password:
-- give them one with \password, or use certificates.

-- Which schemas are written (an array: '{public,"Odd Name"}').
SET trellara.schemas = '{public}';

-- trellara_apply runs the applier: it writes the replicated tables and adds to Trellara's records,
-- but owns neither, so that it cannot rewrite what was recorded.
-- trellara_admin runs `trellara setup` and `remove`, and owns the schema `trellara`. It reads the
-- replicated tables' definitions and needs no right on them: setup asks whether the role that the
-- file names has its rights.
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['trellara_apply', 'trellara_admin'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I LOGIN', role);
        END IF;
    END LOOP;
END
$$;
ALTER ROLE trellara_apply CONNECTION LIMIT 48;

DO $$
DECLARE
    schema text;
BEGIN
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO trellara_apply, trellara_admin', current_database());
    EXECUTE format('GRANT CREATE ON DATABASE %I TO trellara_admin', current_database());
    FOREACH schema IN ARRAY current_setting('trellara.schemas')::text[] LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO trellara_apply, trellara_admin', schema);
        -- UPDATE and DELETE find their rows by their columns, which needs SELECT.
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA %I TO trellara_apply', schema);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO trellara_admin', schema);
        -- For TRUNCATE ... RESTART IDENTITY, and for a cut-over, when the target's sequences are moved
        -- behind the source's.
        EXECUTE format('GRANT SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA %I TO trellara_apply', schema);
    END LOOP;
END
$$;

-- Under the replica role the target's ordinary triggers and foreign keys do not act a second time
-- on rows that the source's have dealt with already. Without this right they do.
-- A table's owner can still run code as the applier (defaults, index expressions, CHECKs, domains):
-- replicated tables belong to roles that you trust as much as this one.
GRANT SET ON PARAMETER session_replication_role TO trellara_apply;

-- Trellara's own records, once setup has made them.
DO $$
BEGIN
    IF to_regclass('trellara.applied') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA trellara TO trellara_apply;
        GRANT SELECT ON trellara.state_version TO trellara_apply;
        GRANT SELECT, UPDATE ON trellara.lane TO trellara_apply;
        -- Insert-only: the newest row of a lane is its checkpoint.
        GRANT SELECT, INSERT ON trellara.applied TO trellara_apply;
        -- Its oldest rows go by this function alone, which moves the watermark with them.
        GRANT SELECT ON trellara.watermark TO trellara_apply;
        GRANT EXECUTE ON FUNCTION trellara.prune(text, integer, bigint, interval, pg_lsn, bigint, integer) TO trellara_apply;
        -- Where a verify run asks the applier to stand still. It records nothing.
        GRANT SELECT, INSERT, UPDATE, DELETE ON trellara.fence TO trellara_apply;
    END IF;
    -- What verify runs found. A schema that an older build made has no such tables.
    IF to_regclass('trellara.verify_run') IS NOT NULL THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON trellara.verify_run, trellara.verify_table TO trellara_apply;
    END IF;
    -- Quarantine. What is held is closed and never taken away; the audit is only added to.
    IF to_regclass('trellara.held_frame') IS NOT NULL THEN
        GRANT SELECT, INSERT, UPDATE ON trellara.held TO trellara_apply;
        GRANT SELECT, INSERT ON trellara.held_frame, trellara.held_key, trellara.held_tie,
            trellara.held_dependency, trellara.skipped, trellara.audit TO trellara_apply;
        -- What an operator asks of the applier, and lanes that stand still on purpose.
        GRANT SELECT, INSERT, UPDATE, DELETE ON trellara.request, trellara.pause TO trellara_apply;
    END IF;
    -- What a copy has brought. What came of one that is begun anew is void.
    IF to_regclass('trellara.backfill') IS NOT NULL THEN
        GRANT SELECT, INSERT, UPDATE ON trellara.backfill, trellara.backfill_definition TO trellara_apply;
        GRANT SELECT, INSERT, DELETE ON trellara.backfill_part TO trellara_apply;
    END IF;
END
$$;

-- pg_hba.conf:
--     hostssl shop  trellara_apply  APPLIER_HOST/32  scram-sha-256
--     hostssl shop  trellara_admin  ADMIN_HOST/32    scram-sha-256
