use std::collections::{BTreeMap, BTreeSet};

use super::file::{FileConfig, Node};
use super::*;

const EXAMPLE: &str = include_str!("../../../../trellara.yml.example");
pub(crate) const SMALLEST: &str = "flow: shop
source: {url: \"postgresql://trellara_capture@db1/shop\", tables: [public.*]}
target: {url: \"postgresql://trellara_apply@db2/shop\"}
";

fn environment(variables: &[(&str, &str)]) -> EnvironmentMap {
    let home = [("HOME", "/home/trellara"), ("USER", "trellara")];
    let all = home.iter().chain(variables);
    all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

pub(crate) fn resolved(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
    let environment = environment(variables);
    let (written, errors) = written(text, &environment)?;
    resolve::resolve(&written, &environment, SecretFiles::default(), errors)
}

/// The error, its key and its hint in one text.
#[track_caller]
fn refused(text: &str, variables: &[(&str, &str)]) -> String {
    let errors = resolved(text, variables).expect_err("must be refused");
    let lines = errors
        .0
        .iter()
        .map(|error| format!("{error}\nhint: {}", error.hint));
    lines.collect::<Vec<_>>().join("\n")
}

/// The example with every key active that it shows commented out.
fn example_uncommented() -> String {
    let keys: BTreeSet<&str> = KEYS.iter().flat_map(|key| key.path.split('.')).collect();
    let uncomment = |line: &str| {
        let Some((indent, rest)) = line.split_once("# ") else {
            return line.to_owned();
        };
        let blank = indent.trim().is_empty();
        let key = rest.trim_start().split_once(':').map_or("", |(key, _)| key);
        if blank && keys.contains(key) {
            format!("{indent}{rest}")
        } else {
            line.to_owned()
        }
    };
    // The head of the file quotes the smallest example.
    let begin = EXAMPLE.find("\nflow:").expect("the first key");
    EXAMPLE[begin..]
        .lines()
        .map(uncomment)
        .collect::<Vec<_>>()
        .join("\n")
}

fn values(file: &mut FileConfig) -> BTreeMap<String, Vec<String>> {
    let mut values = BTreeMap::<String, Vec<String>>::new();
    let collected: Result<(), ConfigErrors> = file.visit("", &mut |key, text| {
        values.entry(key.to_owned()).or_default().push(text.clone());
        Ok(())
    });
    collected.expect("collecting does not fail");
    values
}

#[test]
fn the_table_of_keys_is_the_file() {
    let mut keys = Vec::new();
    FileConfig::keys("", &mut keys);
    let documented: Vec<&str> = KEYS.iter().map(|key| key.path).collect();
    assert_eq!(keys, documented);
}

#[test]
fn the_example_shows_every_key_with_its_default() {
    let mut file = parse(&example_uncommented()).expect("the example parses");
    let values = values(&mut file);
    for key in KEYS {
        let shown = values.get(key.path).map(|values| values.join(","));
        match key.default {
            // An empty list has no scalar to show.
            Some("") => assert!(
                EXAMPLE.contains(&format!("{}: []", last(key.path))),
                "{}",
                key.path
            ),
            Some(default) => assert_eq!(shown.as_deref(), Some(default), "{}", key.path),
            None => assert!(shown.is_some(), "{} is not in the example", key.path),
        }
    }
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

#[test]
fn the_documented_defaults_are_the_defaults_of_the_code() {
    let example = resolved(EXAMPLE, &[]).expect("the example resolves as it is");
    let smallest = resolved(SMALLEST, &[]).expect("the smallest file resolves");
    assert_eq!(format!("{example:?}"), format!("{smallest:?}"));
}

#[test]
fn keys_of_later_issues_are_refused_unless_they_say_the_default() {
    for key in KEYS.iter().filter(|key| key.available == Available::Later) {
        let name = format!(
            "TRELLARA__{}",
            key.path.replace('.', "__").to_ascii_uppercase()
        );
        let text = refused(SMALLEST, &[(&name, "something-else")]);
        assert!(
            text.contains(key.path) && text.contains("not available yet"),
            "{text}"
        );
        if let Some(default) = key.default.filter(|default| !default.is_empty()) {
            resolved(SMALLEST, &[(&name, default)]).expect("its default is harmless");
        }
    }
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_one() {
    let text = refused("flow: shop\nsource: {tabels: [public.*]}\n", &[]);
    assert!(
        text.contains("tabels") && text.contains("did you mean source.tables"),
        "{text}"
    );
    let text = refused(SMALLEST, &[("TRELLARA__SOURCE__TABELS", "public.*")]);
    assert!(
        text.contains("source.tabels") && text.contains("did you mean source.tables"),
        "{text}"
    );
}

#[test]
fn unknown_keys_do_not_hide_other_errors() {
    let text = refused(
        "flow: shop\ncolour: red\nsource: {tabels: [a.b], x: {y: 1}, slot: No}\nhalt: maybe\n",
        &[
            ("TRELLARA__SOURCE__ODD", "1"),
            ("TRELLARA__TARGET__URL", "${NOBODY}"),
        ],
    );
    for key in [
        "colour:",
        "source.tabels:",
        "source.x:",
        "source.odd:",
        "source.slot:",
        "target.url:",
        "halt:",
    ] {
        assert!(text.contains(key), "{key} is not in {text}");
    }
}

#[test]
fn all_errors_come_in_one_run() {
    let text = refused("flow: Shop\nstall_timeout: 30\nnats: {replicas: 9}\n", &[]);
    for key in [
        "flow:",
        "source.url:",
        "source.tables:",
        "target.url:",
        "stall_timeout:",
        "nats.replicas:",
    ] {
        assert!(text.contains(key), "{key} missing in {text}");
    }
}

#[test]
fn variables_and_overrides_replace_values() {
    let text = SMALLEST.replace("trellara_apply", "${APPLY_USER}");
    let config = resolved(
        &text,
        &[
            ("APPLY_USER", "somebody"),
            ("TRELLARA__SHUTDOWN_TIMEOUT", "7s"),
        ],
    )
    .expect("resolves");
    assert_eq!(config.target.connect.user(), "somebody");
    assert_eq!(
        config.process.shutdown_timeout,
        std::time::Duration::from_secs(7)
    );
    let text = refused(&text, &[]);
    assert!(
        text.contains("target.url") && text.contains("APPLY_USER"),
        "{text}"
    );
}

#[test]
fn no_secret_is_shown_by_errors_or_debug() {
    let wrong = SMALLEST.replace("capture@", "capture:s3cret@") + "nonsense: true\n";
    let text = refused(&wrong, &[]);
    assert!(!text.contains("s3cret"), "{text}");
    let block = "flow: shop\nsource:\n  url: postgresql://a:s3cret@db/x\n  tabels: [a.b]\n";
    let text = refused(block, &[]);
    assert!(
        !text.contains("s3cret") && text.contains("tabels"),
        "{text}"
    );
    let right = SMALLEST.replace("capture@", "capture:s3cret@")
        + "nats: {url: \"nats://u:s3cret@h:4222\"}\n";
    let config = resolved(&right, &[]).expect("resolves");
    assert!(!format!("{config:?}").contains("s3cret"));
}

#[test]
fn an_embedded_broker_is_the_default_and_keeps_its_state_per_flow() {
    let config = resolved(SMALLEST, &[]).expect("resolves");
    let BrokerSetting::Embedded { store_dir, .. } = config.nats.broker else {
        panic!("expected the embedded broker");
    };
    assert_eq!(
        store_dir,
        Path::new("/home/trellara/.local/state/trellara/shop")
    );
    let config =
        resolved(SMALLEST, &[("TRELLARA__NATS__URL", "nats://broker:4222")]).expect("resolves");
    assert!(matches!(config.nats.broker, BrokerSetting::External(_)));
}

#[test]
fn monitors_are_addresses_with_their_ports() {
    let monitors = |text: &str| {
        let nats = format!("{SMALLEST}nats: {{url: n1, monitor_url: {text:?}}}\n");
        resolved(&nats, &[]).map(|config| config.nats.monitors)
    };
    assert_eq!(
        monitors("http://n1:8222/, n2 ,http://[::1],[::1]:81"),
        Ok(["n1:8222", "n2:8222", "[::1]:8222", "[::1]:81"]
            .map(str::to_owned)
            .into())
    );
    for wrong in [
        "",
        "https://n1",
        "http://u:s3cret@n1",
        "http://n1/varz",
        "n1,",
        "n1:0",
        "n1:port",
        "n1:99999",
        "::1",
        "n 1",
    ] {
        let text = monitors(wrong).expect_err(wrong).to_string();
        assert!(text.starts_with("nats.monitor_url: "), "{wrong}: {text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn scalars_stay_the_text_that_was_written() {
    let text = format!(
        "{SMALLEST}nats: {{url: n1, durable: true, replicas: 3}}\nops: {{listen: off}}\nlanes: 1\n"
    );
    let config = resolved(&text, &[]).expect("resolves");
    assert_eq!(config.process.listen, Listen::Off);
    assert!(config.nats.durable);
    assert_eq!(config.nats.replicas, 3);
}

#[test]
fn identities_stay_at_least_as_long_as_the_stream_may_deliver_them() {
    let window = |text: &str| {
        let config = resolved(&format!("{SMALLEST}{text}"), &[]).expect("resolves");
        config.process.dedup.window
    };
    let hour = std::time::Duration::from_secs(3600);
    assert_eq!(window(""), hour * 2, "twice the default history");
    assert_eq!(window("nats: {history: 6h}\n"), hour * 12);
    assert_eq!(window("nats: {history: 5m}\n"), hour, "never below an hour");
    let as_long = "nats: {history: 3h}\ndedup: {window: 3h}\n";
    assert_eq!(window(as_long), hour * 3);
    assert_eq!(window("dedup: {window: 30d}\n"), hour * 24 * 30);
    let shorter = format!("{SMALLEST}nats: {{history: 3h}}\ndedup: {{window: 2h}}\n");
    let text = refused(&shorter, &[]);
    assert!(
        text.contains("dedup.window") && text.contains("nats.history"),
        "{text}"
    );
}

#[test]
fn the_identity_cache_has_a_least_size() {
    let text = refused(&format!("{SMALLEST}dedup: {{memory: 1000KiB}}\n"), &[]);
    assert!(text.contains("dedup.memory"), "{text}");
    let config = resolved(&format!("{SMALLEST}dedup: {{memory: 1MiB}}\n"), &[]);
    assert_eq!(config.expect("resolves").process.dedup.memory, 1 << 20);
}

#[test]
fn rows_that_are_there_are_treated_as_the_file_says() {
    use super::model::{BackfillConfig, Existing};
    let backfill = |text: &str| {
        let config = resolved(&format!("{SMALLEST}{text}"), &[]).expect("resolves");
        config.backfill
    };
    let default = backfill("");
    assert!(default.copy && default.existing == Existing::Refuse && !default.create_tables);
    assert!(!default.defer_indexes && backfill("backfill: {ddl: create}").defer_indexes);
    let expected = BackfillConfig {
        copy: false,
        workers: 32,
        existing: Existing::Keep,
        create_tables: true,
        defer_indexes: false,
        max_bytes: 4 << 20,
    };
    let written = "backfill: {mode: none, workers: 32, existing: keep, ddl: create, indexes: keep, max_bytes: 4MiB}";
    assert_eq!(backfill(written), expected);
    let truncate = backfill("backfill: {existing: truncate}").existing;
    assert_eq!(truncate, Existing::Truncate);
    for wrong in [
        "mode: later",
        "workers: 0",
        "workers: 33",
        "existing: merge",
        "ddl: all",
        "indexes: drop",
        "max_bytes: 1MiB",
    ] {
        let text = refused(&format!("{SMALLEST}backfill: {{{wrong}}}"), &[]);
        let key = wrong.split(':').next().expect("a key");
        assert!(text.contains(&format!("backfill.{key}")), "{text}");
    }
}

#[test]
fn what_is_refused_is_treated_as_the_file_says() {
    use trellara_applier::quarantine::{
        ConflictRule, ConflictRules, Conflicts, QuarantineOptions, QuarantinePolicy,
    };
    let process = |text: &str| {
        let config = resolved(&format!("{SMALLEST}{text}"), &[]).expect("resolves");
        config.process
    };
    let default = process("");
    assert_eq!(default.quarantine, QuarantineOptions::default());
    assert_eq!(default.conflicts, ConflictRules::default());
    let quarantine = process(
        "quarantine: {policy: hold_dependents, max_bytes: 1MiB, max_keys: 7, max_transactions: 3, \
         max_age: 2h}\n",
    )
    .quarantine;
    let expected = QuarantineOptions {
        policy: QuarantinePolicy::HoldDependents,
        max_bytes: 1 << 20,
        max_keys: 7,
        max_transactions: 3,
        max_age: Some(std::time::Duration::from_secs(7200)),
    };
    assert_eq!(quarantine, expected);
    let rules = process(
        "conflicts:\n  missing_row: skip\n  duplicate_key: stop\n  tables:\n    \
         public.a: {missing_row: error}\n    '\"My s\".\"t.1\"': {duplicate_key: overwrite}\n",
    )
    .conflicts;
    let conflicts = |missing_row, duplicate_key| Conflicts {
        missing_row,
        duplicate_key,
    };
    let (error, skip) = (ConflictRule::Error, ConflictRule::Skip);
    assert_eq!(rules.all, conflicts(skip, error));
    assert_eq!(rules.of("public", "a"), conflicts(error, error));
    assert_eq!(
        rules.of("My s", "t.1"),
        conflicts(skip, ConflictRule::Overwrite),
        "what a table leaves out is the flow's"
    );
}

#[test]
fn rules_of_single_tables_can_come_from_the_environment() {
    let variable = "TRELLARA__CONFLICTS__TABLES";
    let rules = [
        (variable, "{public.a: {missing_row: \"${RULE}\"}}"),
        ("RULE", "skip"),
    ];
    let config = resolved(SMALLEST, &rules).expect("resolves");
    let rule = config.process.conflicts.of("public", "a").missing_row;
    assert_eq!(rule, trellara_applier::quarantine::ConflictRule::Skip);
    let text = refused(SMALLEST, &[(variable, "public.a")]);
    assert!(text.contains("conflicts.tables: not a map"), "{text}");
    let text = refused(SMALLEST, &[("TRELLARA__CONFLICTS__TABLES__A", "skip")]);
    assert!(text.contains("there is no such key"), "{text}");
}

#[test]
fn quarantine_without_sense_is_refused_by_name() {
    for (wrong, named) in [
        ("quarantine: {policy: skip}", "quarantine.policy: "),
        ("quarantine: {max_bytes: 10}", "quarantine.max_bytes: "),
        ("quarantine: {max_bytes: 1023KiB}", "quarantine.max_bytes: "),
        (
            "quarantine: {max_keys: 0}",
            "quarantine.max_keys: 0 holds nothing",
        ),
        ("quarantine: {max_keys: -1}", "quarantine.max_keys: "),
        (
            "quarantine: {max_transactions: many}",
            "quarantine.max_transactions: ",
        ),
        ("quarantine: {max_age: 0s}", "quarantine.max_age: "),
        ("quarantine: {max_age: never}", "quarantine.max_age: "),
        (
            "quarantine: {max_ages: 1h}",
            "did you mean quarantine.max_age",
        ),
        (
            "conflicts: {missing_row: ignore}",
            "conflicts.missing_row: ",
        ),
        (
            "conflicts: {tables: {public.*: {missing_row: skip}}}",
            "public.* is no single table",
        ),
        (
            "conflicts: {tables: {orders: {missing_row: skip}}}",
            "\"orders\"",
        ),
        ("conflicts: {tables: {a.b: {}}}", "a.b has no rule"),
        (
            "conflicts: {tables: {a.b: {missing_row: maybe}}}",
            "conflicts.tables: \"maybe\"",
        ),
        (
            "conflicts: {tables: {a.b: {mising_row: skip}}}",
            "conflicts.tables.a.b.mising_row: ",
        ),
        (
            "conflicts: {tables: {a.b: {missing_row: skip}, '\"a\".b': {missing_row: skip}}}",
            "\"a\".b is there twice",
        ),
    ] {
        let text = refused(&format!("{SMALLEST}{wrong}\n"), &[]);
        assert!(text.contains(named), "{wrong}: {text}");
    }
}
