-- Rights on a source database. Run in that database, as a superuser:
--     psql -d shop -f source.sql
-- Running it again changes nothing; run it again after adding tables. The roles have no password:
-- give them one with \password, or use certificates.

-- Which schemas (an array: '{public,"Odd Name"}'), and the publication: trellara_ and the flow's
-- name, unless source.publication says otherwise.
SET trellara.schemas = '{public}';
SET trellara.publication = 'trellara_shop';

-- trellara_capture runs the relay. REPLICATION lets it read the whole cluster's WAL through a slot
-- of its own: whoever has this role's password has the data of every database there, so its
-- connections come from the relay's host only (pg_hba.conf, below). It can write nothing.
-- trellara_admin runs `trellara setup` and `remove`: it makes the slot and drops it. The file names
-- trellara_capture; an override gives one command other rights:
--     TRELLARA__SOURCE__URL=postgresql://trellara_admin@db1/shop trellara setup
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['trellara_capture', 'trellara_admin'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I LOGIN', role);
        END IF;
    END LOOP;
END
$$;
-- A relay holds two connections, and two more while it takes over from a dead one; `verify` takes
-- up to five, and two for each of its --jobs.
ALTER ROLE trellara_capture REPLICATION CONNECTION LIMIT 48;
ALTER ROLE trellara_admin REPLICATION;
-- `remove` ends the relay's walsender before it drops the slot, which takes the walsender's role.
GRANT trellara_capture TO trellara_admin;

-- The publication. Only a table's owner can publish it, so a DBA makes it here and Trellara uses
-- it as it is (and `remove` leaves it). Where setup shall make it, leave this block out and let
-- trellara_admin act for the owner: GRANT table_owner TO trellara_admin.
-- Partitions come with their root and under its name, so that both sides may be partitioned
-- differently; that is what setup makes, too. Once a table without a usable replica identity is
-- published, PostgreSQL refuses every UPDATE and DELETE of it, the application's own: such tables
-- are named and left out.
DO $$
DECLARE
    publication text := current_setting('trellara.publication');
    tables text;
    without text;
BEGIN
    SELECT string_agg(format('%I.%I', n.nspname, c.relname), ', ' ORDER BY n.nspname, c.relname)
             FILTER (WHERE l.identified),
           string_agg(format('%I.%I', n.nspname, c.relname), ', ' ORDER BY n.nspname, c.relname)
             FILTER (WHERE NOT l.identified)
      INTO tables, without
      FROM pg_catalog.pg_class AS c
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
     CROSS JOIN LATERAL (
           SELECT bool_and(p.relreplident = 'f' OR EXISTS (
                      SELECT FROM pg_catalog.pg_index AS i
                       WHERE i.indrelid = p.oid AND i.indisvalid AND i.indimmediate
                         AND (p.relreplident = 'd' AND i.indisprimary
                              OR p.relreplident = 'i' AND i.indisreplident))) AS identified
             FROM pg_catalog.pg_class AS p
            WHERE p.oid = c.oid
               OR p.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(c.oid))) AS l
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
       AND n.nspname = ANY (current_setting('trellara.schemas')::text[]);
    IF without IS NOT NULL THEN
        RAISE WARNING 'left out, no usable replica identity: %', without
              USING HINT = 'ALTER TABLE ... REPLICA IDENTITY FULL, or add a primary key, then '
                           'ALTER PUBLICATION ... ADD TABLE. Tables that are only ever inserted '
                           'into can be added as they are.';
    END IF;
    IF tables IS NULL THEN
        RAISE NOTICE 'no tables in schemas %: no publication made', current_setting('trellara.schemas');
    ELSIF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = publication) THEN
        EXECUTE format('CREATE PUBLICATION %I FOR TABLE %s WITH (publish_via_partition_root = true)',
                       publication, tables);
    END IF;
END
$$;

-- Behind the publication: where all of this is one transaction, the autovacuum of a table would wait
-- for a right given first, and the publication for that table.
-- SELECT is for the checks and the initial copy; streaming itself needs none.
-- With row security on these tables, the copy would miss rows: then, and only then,
--     ALTER ROLE trellara_capture BYPASSRLS;
DO $$
DECLARE
    schema text;
BEGIN
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO trellara_capture, trellara_admin',
                   current_database());
    -- Half of what CREATE PUBLICATION asks for; see above for the other half.
    EXECUTE format('GRANT CREATE ON DATABASE %I TO trellara_admin', current_database());
    FOREACH schema IN ARRAY current_setting('trellara.schemas')::text[] LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO trellara_capture, trellara_admin', schema);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO trellara_capture, trellara_admin', schema);
        -- `verify` says before a cut-over which sequences of the target stand behind the source's.
        EXECUTE format('GRANT SELECT ON ALL SEQUENCES IN SCHEMA %I TO trellara_capture, trellara_admin', schema);
    END LOOP;
END
$$;

-- Optional: lets `check` and `status` name the session that blocks the slot's creation.
GRANT pg_read_all_stats TO trellara_capture, trellara_admin;

-- pg_hba.conf: `replication` in the second column is for physical replication; a logical walsender
-- names its database, so these lines serve both of the relay's connections.
--     hostssl shop  trellara_capture  RELAY_HOST/32  scram-sha-256
--     hostssl shop  trellara_admin    ADMIN_HOST/32  scram-sha-256
