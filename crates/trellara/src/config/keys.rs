//! Every key with its form, default and consequence: what `config schema` prints. Tests compare
//! it with the file's structure, with the defaults in code and with `trellara.yml.example`.

/// Whether this build acts on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Available {
    /// Yes.
    Now,
    /// Parsed, and refused unless it says the default.
    Later,
}

/// One key.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) path: &'static str,
    pub(crate) form: &'static str,
    /// As it would be written; `None` when there is nothing that could be written for it.
    pub(crate) default: Option<&'static str>,
    pub(crate) about: &'static str,
    pub(crate) available: Available,
}

const fn now(
    path: &'static str,
    form: &'static str,
    default: Option<&'static str>,
    about: &'static str,
) -> Key {
    Key {
        path,
        form,
        default,
        about,
        available: Available::Now,
    }
}

const fn later(
    path: &'static str,
    form: &'static str,
    default: &'static str,
    about: &'static str,
) -> Key {
    Key {
        path,
        form,
        default: Some(default),
        about,
        available: Available::Later,
    }
}

/// All keys, in the order of the file.
pub(crate) const KEYS: &[Key] = &[
    now(
        "flow",
        "name",
        None,
        "Names slot, publication, stream, subjects and checkpoint. Required.",
    ),
    now(
        "source.url",
        "connection string",
        None,
        "The database to read from: URI or key=value as libpq takes it. Required.",
    ),
    now(
        "source.password_file",
        "path",
        None,
        "File that holds the source's password alone.",
    ),
    now(
        "source.tables",
        "list of schema.table or schema.*",
        None,
        "What the publication holds; expanded once, by setup. Required unless `publication` names one that exists.",
    ),
    now(
        "source.publication",
        "name",
        None,
        "A publication made by a DBA is used as it is. Default trellara_<flow>.",
    ),
    now(
        "source.slot",
        "name",
        None,
        "The replication slot. Default trellara_<flow>.",
    ),
    now(
        "source.acknowledge",
        "auto | published | applied",
        Some("auto"),
        "When PostgreSQL may forget WAL: once the broker stored it, or once the target committed it. auto takes `published` only where an acknowledgement is known to be an fsync.",
    ),
    now(
        "source.partitions",
        "root | leaf",
        Some("root"),
        "Whether changes of a partitioned table carry the root's name (both sides may be partitioned differently) or the partition's (the target has the same ones). Used when setup makes the publication.",
    ),
    later(
        "source.messages",
        "ignore | carry",
        "ignore",
        "Logical messages of the source.",
    ),
    later(
        "source.binary",
        "true | false",
        "false",
        "Values in PostgreSQL's binary form.",
    ),
    now(
        "source.insert_only",
        "list of schema.table",
        Some(""),
        "Tables that may lack a replica identity because they only ever get inserts.",
    ),
    now(
        "source.shutdown_grace",
        "duration",
        Some("10s"),
        "How long the relay holds up a source that is shutting down while nothing can be confirmed.",
    ),
    now(
        "target.url",
        "connection string",
        None,
        "The database to write to. Required.",
    ),
    now(
        "target.password_file",
        "path",
        None,
        "File that holds the target's password alone.",
    ),
    later(
        "target.connections",
        "number",
        "1",
        "Connections that apply in parallel.",
    ),
    later(
        "target.trusted_owners",
        "list of roles",
        "",
        "Owners of target tables whose defaults and index expressions may run as the applier.",
    ),
    now(
        "nats.url",
        "nats:// or tls:// URL, several with commas",
        None,
        "The broker. Absent: `trellara run` starts and supervises its own.",
    ),
    now(
        "nats.password_file",
        "path",
        None,
        "File that holds the broker password alone; the user comes from the URL.",
    ),
    now(
        "nats.credentials_file",
        "path",
        None,
        "NATS credentials file (JWT and seed).",
    ),
    now(
        "nats.tls_ca",
        "path",
        None,
        "Root certificates for the broker, PEM. Default: the system's.",
    ),
    now(
        "nats.tls_cert",
        "path",
        None,
        "Client certificate, PEM; with nats.tls_key.",
    ),
    now("nats.tls_key", "path", None, "Client key, PEM."),
    now(
        "nats.server",
        "path",
        None,
        "The nats-server of the embedded broker. Default: beside this program, then PATH.",
    ),
    now(
        "nats.store_dir",
        "path",
        None,
        "Where the embedded broker keeps the stream. Default: the state directory.",
    ),
    now(
        "nats.max_bytes",
        "auto | size",
        Some("auto"),
        "Limit of the stream; a full stream stops the relay and the source keeps WAL. auto: 10GiB, or for the embedded broker the smaller of 32GiB and half the free disk.",
    ),
    now(
        "nats.open_bytes",
        "auto | size",
        Some("auto"),
        "What open transactions may fill of it; above, PostgreSQL spools them. auto: half of max_bytes, and 5GiB in a stream without a limit.",
    ),
    now(
        "nats.history",
        "duration or size",
        Some("1h or 1GiB"),
        "What is kept after it was applied, for replay and rewind; whichever is reached first.",
    ),
    now(
        "nats.replicas",
        "1 to 5",
        Some("1"),
        "Copies of the stream in a cluster.",
    ),
    now(
        "nats.durable",
        "true | false",
        Some("false"),
        "Your word that an acknowledgement of this broker is an fsync (sync_interval: always).",
    ),
    now(
        "nats.monitor_url",
        "http:// URL",
        None,
        "The broker's monitoring port, from which `acknowledge: auto` reads sync_always.",
    ),
    now(
        "ops.listen",
        "address:port | off",
        None,
        "Metrics, health and status. Default 127.0.0.1:9464, the applier's 127.0.0.1:9465; a taken port never stops a daemon.",
    ),
    now(
        "backfill.mode",
        "copy | none",
        Some("copy"),
        "What becomes of the rows that the source holds already. copy: they are copied before the changes, with no step of your own. none: the target was loaded by other means.",
    ),
    now(
        "backfill.workers",
        "1 to 32",
        Some("2"),
        "Sessions that read the source at the same time, and as many that write to the target.",
    ),
    now(
        "backfill.existing",
        "refuse | truncate | keep",
        Some("refuse"),
        "What to do with rows that are in the target when the flow begins. refuse: setup stops. truncate: they are deleted before the table is copied. keep: they are taken for those of the source, and the table is not copied.",
    ),
    now(
        "backfill.ddl",
        "none | create",
        Some("none"),
        "Whether setup creates the tables that the target lacks, as the source defines them.",
    ),
    now(
        "backfill.indexes",
        "keep | defer",
        None,
        "Default keep; with ddl: create, defer. Whether the target's secondary indexes, unique constraints and foreign keys are dropped while a table is copied and made again when its rows are in, where the applier's role owns the table. Their definitions are in trellara.backfill_definition meanwhile.",
    ),
    now(
        "backfill.max_bytes",
        "size",
        Some("256MiB"),
        "Limit of the stream that carries the copied rows, at least 4MiB; what is in the target is deleted from it, so a copy of any size fits.",
    ),
    now(
        "apply.batch_bytes",
        "size",
        Some("1MiB"),
        "Most that one target transaction gathers under backlog; a larger source transaction is still applied whole.",
    ),
    later(
        "apply.speculative",
        "true | false",
        "false",
        "Applying a large transaction before its commit is known.",
    ),
    now(
        "apply.role_replica",
        "auto | true | false",
        Some("auto"),
        "session_replication_role = replica, so that triggers and foreign keys of the target do not act twice. auto: where the role may.",
    ),
    later(
        "apply.as_owner",
        "true | false",
        "false",
        "Writing each table as its owner.",
    ),
    now(
        "quarantine.policy",
        "halt | hold_dependents",
        Some("halt"),
        "What a transaction that the target refuses for cause does. halt: the flow stops in front of it, the target stays a true prefix of the source. hold_dependents: it is set aside with everything later that touches the same, the rest goes on, and the target may show a state that the source never had.",
    ),
    now(
        "quarantine.max_bytes",
        "size",
        Some("10GiB"),
        "Most that held transactions may take of the target, at least 1MiB. What would go beyond a limit stops the flow instead.",
    ),
    now(
        "quarantine.max_keys",
        "number",
        Some("500000"),
        "Most entries of what held transactions touch; the applier keeps them in memory.",
    ),
    now(
        "quarantine.max_transactions",
        "number",
        Some("10000"),
        "Most transactions held at one time.",
    ),
    now(
        "quarantine.max_age",
        "off | duration",
        Some("off"),
        "The flow stops when the oldest held transaction has waited for longer, so that nobody forgets it.",
    ),
    now(
        "conflicts.missing_row",
        "error | skip | overwrite",
        Some("error"),
        "An UPDATE or DELETE whose row is not in the target. error: the transaction is refused. skip: the change is left out, recorded, counted and audited. overwrite: an UPDATE that carries the whole row inserts it; a DELETE has nothing to do.",
    ),
    now(
        "conflicts.duplicate_key",
        "error | skip | overwrite",
        Some("error"),
        "An INSERT whose key is already in the target. error: the transaction is refused. skip: the target's row stays. overwrite: it becomes what the source says. Both are recorded, counted and audited.",
    ),
    now(
        "conflicts.tables",
        "map of schema.table to {missing_row, duplicate_key}",
        None,
        "Rules of single tables, as the target names them; what one leaves out is the flow's.",
    ),
    later(
        "schema.apply",
        "halt",
        "halt",
        "What a change of the source's tables does.",
    ),
    now(
        "dedup.memory",
        "size",
        Some("512MiB"),
        "Budget of the identity cache, at least 1MiB: about 18 bytes for each transaction of the window. Too little costs questions to the target, never a wrong answer.",
    ),
    now(
        "dedup.window",
        "auto | duration",
        Some("auto"),
        "How long identities stay in the target's ledger. auto: twice the age in nats.history, at least 1h; never less than that age, because the stream can deliver that long.",
    ),
    later("lanes", "number", "1", "Ordered sequences inside the flow."),
    now(
        "stall_timeout",
        "duration",
        Some("30s"),
        "No progress for this long although there is something to do turns /readyz red.",
    ),
    now(
        "shutdown_timeout",
        "duration",
        Some("20s"),
        "How long SIGTERM waits for what is in flight.",
    ),
    now(
        "halt",
        "stay | exit",
        Some("stay"),
        "Whether a halted daemon stays alive with /readyz red, or leaves with the halt's exit code.",
    ),
];

/// The key most like `wrong`, if one is near: the whole path, or its last part.
pub(super) fn nearest(wrong: &str) -> Option<&'static str> {
    let last = |path: &'static str| path.rsplit('.').next().unwrap_or(path);
    // A section's name is half of a path, and no likeness.
    let limit = 1 + wrong.rsplit('.').next().unwrap_or(wrong).len() / 4;
    KEYS.iter()
        .map(|key| {
            let whole = distance(wrong, key.path);
            (whole.min(distance(wrong, last(key.path))), key.path)
        })
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, path)| path)
}

/// Edits between two short words (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let above = row[j + 1];
            let replaced = diagonal + usize::from(x != y);
            row[j + 1] = replaced.min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[b.len()]
}
