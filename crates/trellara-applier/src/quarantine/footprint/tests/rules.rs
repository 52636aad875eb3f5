//! Each rule of C45, and what it leaves alone.

use super::super::{Footprints, HeldId, Standing};
use super::{Step, Table, gather, hits, name_of, step, touches};

fn plain() -> Table {
    Table::new("t", &["id", "v"])
}

fn people() -> Table {
    Table::new("people", &["id", "email", "v"]).unique(&["email"])
}

fn parents() -> Table {
    Table::new("parents", &["id", "v"]).referenced_by("id", "children", "parent")
}

fn children() -> Table {
    Table::new("children", &["id", "parent", "v"]).references("parent", "parents", "id")
}

/// Whether `later` waits behind `held`.
fn waits(held: &[Step], later: &[Step]) -> bool {
    let mut footprints = Footprints::new();
    footprints.add(HeldId(7), Standing::Open, &touches(held));
    let hits = hits(&footprints, later);
    assert!(hits.discarded.is_empty());
    hits.open == [HeldId(7)]
}

fn summary(steps: &[Step]) -> Vec<String> {
    touches(steps).summary()
}

#[test]
fn c45_a_row_is_known_by_its_key_before_and_after() {
    let t = plain();
    let moved = [step(&t, "U K:1,~ N:2,b")];
    assert_eq!(summary(&moved), ["row s.t(id) 2"]);
    for (later, waiting) in [
        ("U N:1,c", true),
        ("D K:2,~", true),
        ("I N:2,x", true),
        ("U K:3,~ N:1,x", true),
        ("U N:3,b", false),
        ("I N:4,b", false),
        ("D K:3,~", false),
    ] {
        assert_eq!(waits(&moved, &[step(&t, later)]), waiting, "{later}");
    }
    // Another table's row of the same key is another row.
    assert!(!waits(&moved, &[step(&people(), "I N:1,a,b")]));
}

#[test]
fn c45_truncate_holds_its_whole_table() {
    let t = plain();
    let emptied = [step(&t, "T")];
    assert_eq!(summary(&emptied), ["truncate s.t"]);
    assert!(waits(&emptied, &[step(&t, "I N:9,a")]));
    assert!(!waits(&emptied, &[step(&people(), "I N:9,a,b")]));
}

#[test]
fn c45_truncate_waits_behind_every_footprint_in_its_tables() {
    let (t, p, c) = (plain(), parents(), children());
    assert!(waits(&[step(&t, "I N:1,a")], &[step(&t, "T")]));
    assert!(!waits(&[step(&t, "I N:1,a")], &[step(&p, "T")]));
    // Also behind who only points to it, or let go of what is not known.
    assert!(waits(&[step(&c, "I N:1,5,a")], &[step(&p, "T")]));
    assert!(waits(&[step(&c, "D K:1,~,~")], &[step(&p, "T")]));
}

#[test]
fn c45_a_table_without_a_key_is_held_whole() {
    let log = Table::new("log", &["line"]).keyless();
    assert_eq!(summary(&[step(&log, "I N:a")]), ["keyless s.log"]);
    assert!(waits(&[step(&log, "I N:a")], &[step(&log, "I N:b")]));
    let full = log.full();
    assert!(waits(&[step(&full, "D O:a")], &[step(&full, "I N:b")]));
}

#[test]
fn c45_further_unique_columns_without_the_whole_old_row_hold_the_table() {
    let p = people();
    let update = [step(&p, "U N:1,b,x")];
    assert_eq!(
        summary(&update),
        [
            "row s.people(id) 1",
            "table s.people",
            "value s.people(email) 1"
        ]
    );
    assert!(waits(&update, &[step(&p, "I N:2,a,x")]));
    assert!(waits(&[step(&p, "D K:1,~,~")], &[step(&p, "I N:2,a,x")]));
    // A TOASTed value that was not sent did not change.
    assert_eq!(
        summary(&[step(&p, "U N:1,^,x")]),
        ["row s.people(id) 1"],
        "nothing was let go"
    );
}

#[test]
fn c45_further_unique_columns_are_held_by_value_where_they_are_known() {
    let p = people().full();
    let update = [step(&p, "U O:1,a,x N:1,b,x")];
    assert_eq!(
        summary(&update),
        ["row s.people(id) 1", "value s.people(email) 2"]
    );
    for (later, waiting) in [
        ("I N:2,a,x", true),
        ("I N:2,b,x", true),
        ("I N:2,c,x", false),
        // Its own old value is nobody else's business.
        ("D O:2,c,x", false),
        ("U O:2,c,x N:2,a,x", true),
        ("U O:2,c,x N:2,d,x", false),
    ] {
        assert_eq!(waits(&update, &[step(&p, later)]), waiting, "{later}");
    }
    // Without the old row, what is taken decides, and a DELETE takes nothing.
    let default = people();
    let insert = [step(&default, "I N:1,a,x")];
    assert!(waits(&insert, &[step(&default, "U N:2,a,x")]));
    assert!(!waits(&insert, &[step(&default, "U N:2,b,x")]));
    assert!(!waits(&insert, &[step(&default, "D K:2,~,~")]));
    // NULLs are distinct, unless the index says otherwise.
    let null = [step(&default, "I N:1,~,x")];
    assert!(!waits(&null, &[step(&default, "I N:2,~,x")]));
    let mut same = people();
    same.ties.uniques[1].nulls_not_distinct = true;
    assert!(waits(
        &[step(&same, "I N:1,~,x")],
        &[step(&same, "I N:2,~,x")]
    ));
}

#[test]
fn c45_an_index_that_is_not_plain_holds_the_table() {
    let mut expression = plain();
    let mut index = super::unique(&["v"]);
    index.plain = false;
    expression.ties.uniques.push(index);
    assert!(waits(
        &[step(&expression, "I N:1,a")],
        &[step(&expression, "I N:2,b")]
    ));
    let mut partition = plain();
    partition.ties.partition_alone = true;
    assert!(waits(
        &[step(&partition, "I N:1,a")],
        &[step(&partition, "I N:2,b")]
    ));
    // One that holds the key's columns keeps nothing apart that the key does not.
    let wider = plain().unique(&["v", "id"]);
    assert_eq!(summary(&[step(&wider, "U N:1,a")]), ["row s.t(id) 1"]);
}

/// What fires may write to any table: in both directions nothing goes past.
#[test]
fn c45_what_fires_under_our_role_holds_everything() {
    let mut always = plain();
    always.fires_as_replica = true;
    let other = Table::new("totals", &["id", "v"]);
    let (fired, totals) = ([step(&always, "I N:1,a")], [step(&other, "U N:1,b")]);
    assert_eq!(
        summary(&fired),
        ["everything s.t", "row s.t(id) 1"],
        "what of it is the row's own explains differences"
    );
    assert!(waits(&fired, &[step(&always, "I N:2,b")]));
    assert!(waits(&fired, &totals));
    assert!(waits(&fired, &[step(&other, "T")]));
    assert!(waits(&totals, &fired));
    assert!(waits(&[step(&always, "T")], &totals));
    assert!(waits(&totals, &[step(&always, "T")]));
    // Also behind changes that hit nothing, and before others.
    let apart = Table::new("apart", &["id", "v"]);
    assert!(waits(&totals, &[step(&apart, "I N:1,a"), fired[0].clone()]));
    assert!(!waits(&totals, &[step(&apart, "I N:1,a")]));

    let mut origin = plain();
    origin.fires_as_origin = true;
    let insert = [step(&origin, "I N:1,a")];
    assert!(!waits(&insert, &[step(&origin, "I N:2,b")]));
    let with_triggers = gather(&insert, false, 10).unwrap();
    assert_eq!(with_triggers.summary(), ["everything s.t", "row s.t(id) 1"]);
}

#[test]
fn what_holds_everything_still_does_when_memory_is_given_back() {
    let mut always = plain();
    always.fires_as_replica = true;
    let mut footprints = Footprints::new();
    footprints.add(
        HeldId(1),
        Standing::Open,
        &touches(&[step(&always, "I N:1,a")]),
    );
    let many: Vec<Step> = (0..5000)
        .map(|id| step(&plain(), &format!("I N:{id},a")))
        .collect();
    footprints.add(HeldId(2), Standing::Open, &touches(&many));
    footprints.close(HeldId(2));
    let other = Table::new("totals", &["id", "v"]);
    let hits = hits(&footprints, &[step(&other, "I N:1,a")]);
    assert_eq!(hits.open, [HeldId(1)]);
}

#[test]
fn c45_foreign_keys_are_followed_both_ways_by_value() {
    let (p, c) = (parents(), children());
    let parent = [step(&p, "I N:5,a")];
    assert_eq!(
        summary(&parent),
        ["row s.parents(id) 1", "value s.children(parent) 1"]
    );
    // A child is not applied without its held parent.
    assert!(waits(&parent, &[step(&c, "I N:1,5,x")]));
    assert!(waits(&parent, &[step(&c, "U N:1,5,x")]));
    assert!(!waits(&parent, &[step(&c, "I N:1,6,x")]));
    assert!(!waits(&parent, &[step(&c, "I N:1,~,x")]));
    // And the parent does not go before its held child came, whatever else of it changes.
    let child = [step(&c, "I N:1,5,x")];
    assert_eq!(
        summary(&child),
        ["row s.children(id) 1", "value s.parents(id) 1"]
    );
    assert!(waits(&child, &[step(&p, "D K:5,~")]));
    assert!(waits(&child, &[step(&p, "U K:5,~ N:6,a")]));
    assert!(!waits(&child, &[step(&p, "D K:6,~")]));
    assert!(!waits(&child, &[step(&p, "U N:5,b")]));
    assert!(!waits(&child, &[step(&c, "I N:2,5,y")]));
    assert!(!waits(&[step(&p, "U N:5,b")], &[step(&c, "I N:1,5,x")]));
}

#[test]
fn c45_a_foreign_key_whose_values_are_not_known_is_followed_to_the_table() {
    let (p, c) = (parents(), children());
    // The child pointed to somebody: nobody may go.
    let child = [step(&c, "D K:1,~,~")];
    assert_eq!(summary(&child), ["row s.children(id) 1", "value s.parents"]);
    assert!(waits(&child, &[step(&p, "D K:6,~")]));
    assert!(waits(&child, &[step(&p, "U K:6,~ N:7,a")]));
    assert!(!waits(&child, &[step(&p, "U N:6,a")]));
    assert!(!waits(&child, &[step(&p, "I N:6,a")]));
    // By types whose texts cannot be compared.
    let (mut p, mut c) = (parents(), children());
    p.ties.referenced_by[0].by_text = false;
    c.ties.references[0].by_text = false;
    assert!(waits(&[step(&p, "I N:5,a")], &[step(&c, "I N:1,6,x")]));
    assert!(waits(&[step(&c, "I N:1,5,x")], &[step(&p, "I N:6,a")]));
    // By columns that the DELETE does not show.
    let p = Table::new("parents", &["id", "code"]).referenced_by("code", "children", "parent");
    let c = Table::new("children", &["id", "parent"]).references("parent", "parents", "code");
    assert!(waits(&[step(&c, "I N:1,x")], &[step(&p, "D K:6,~")]));
}

#[test]
fn c45_what_cascades_under_our_role_holds_the_other_table() {
    let (mut p, c) = (parents(), children());
    p.ties.referenced_by[0].acts = true;
    let gone = [step(&p, "D K:5,~")];
    let origin = gather(&gone, false, 10).unwrap().summary();
    assert!(
        origin.contains(&"table s.children".to_owned()),
        "{origin:?}"
    );
    let replica = summary(&gone);
    assert!(!replica.contains(&"table s.children".to_owned()));
    assert!(!waits(&gone, &[step(&c, "D K:9,~,~")]));
}

#[test]
fn c45_held_ones_extend_the_footprint() {
    let p = people().full();
    let mut footprints = Footprints::new();
    footprints.add(
        HeldId(1),
        Standing::Open,
        &touches(&[step(&p, "I N:1,a,x")]),
    );
    let second = [step(&p, "U O:1,a,x N:1,b,x"), step(&p, "I N:2,c,x")];
    assert_eq!(hits(&footprints, &second).open, [HeldId(1)]);
    footprints.add(HeldId(2), Standing::Open, &touches(&second));
    // Touches nothing of the first.
    let third = [step(&p, "U O:2,c,x N:2,d,x")];
    assert_eq!(hits(&footprints, &third).open, [HeldId(2)]);
}

#[test]
fn c45_rows_of_one_partition_tree_are_one_tables() {
    let root = plain();
    let mut leaf = Table::new("leaf", &["id", "v"]);
    leaf.ties.root = Some(name_of("t"));
    let written = [step(&leaf, "I N:1,a")];
    assert_eq!(summary(&written), ["row s.leaf(id) 1"]);
    assert!(waits(&written, &[step(&root, "U N:1,b")]));
    assert!(!waits(&written, &[step(&root, "U N:2,b")]));
    assert!(waits(&[step(&root, "I N:1,a")], &[step(&leaf, "T")]));
}

#[test]
fn c45_values_that_do_not_show_whether_they_are_equal_hold_the_table() {
    let mut t = plain();
    t.ties.by_text = vec!["v".to_owned()];
    let insert = [step(&t, "I N:a,x")];
    // Verify still finds the row.
    assert_eq!(summary(&insert), ["row s.t(id) 1", "table s.t"]);
    assert!(waits(&insert, &[step(&t, "I N:A,x")]));
    // What is padded or scaled is taken for the same.
    let t = plain();
    assert!(waits(&[step(&t, "I N:1.0,x")], &[step(&t, "U N:1.00,y")]));
}

#[test]
fn a_value_that_cannot_be_written_down_holds_the_table() {
    let mut latin = plain();
    latin.ties.unicode = false;
    assert_eq!(summary(&[step(&latin, "I N:a,x")]), ["row s.t(id) 1"]);
    assert_eq!(summary(&[step(&latin, "I N:€,x")]), ["table s.t"]);
    let mut broken = step(&plain(), "I N:a,x");
    let bytes = broken.bytes.as_mut().unwrap();
    let at = bytes.iter().rposition(|byte| *byte == b'a').unwrap();
    bytes[at] = 0xff;
    assert_eq!(summary(&[broken]), ["table s.t"]);
}

#[test]
fn more_keys_than_may_be_kept_are_an_error_and_take_no_memory() {
    let t = plain();
    let many: Vec<Step> = (0..100).map(|n| step(&t, &format!("I N:{n},x"))).collect();
    assert_eq!(gather(&many, true, 100).unwrap().keys(), 100);
    let refused = gather(&many, true, 99).unwrap_err();
    assert_eq!(refused.max_keys, 99);
    // That it touches the table is known all the same.
    let mut held = Footprints::new();
    held.add(HeldId(1), Standing::Discarded, &refused.tables);
    assert_eq!(hits(&held, &[step(&t, "U N:7,y")]).discarded, [HeldId(1)]);
    // One key again and again is one.
    let same: Vec<Step> = (0..100).map(|_| step(&t, "U N:1,x")).collect();
    assert_eq!(gather(&same, true, 1).unwrap().keys(), 1);
}

#[test]
fn c46_a_discarded_one_is_overtaken_and_a_closed_one_forgotten() {
    let t = plain();
    let mut footprints = Footprints::new();
    for (id, row) in [(1, "I N:1,a"), (2, "U N:1,b"), (3, "I N:3,a")] {
        footprints.add(HeldId(id), Standing::Open, &touches(&[step(&t, row)]));
    }
    assert_eq!((footprints.keys(), footprints.transactions()), (3, 3));
    let later = [step(&t, "U N:1,c")];
    assert_eq!(hits(&footprints, &later).open, [HeldId(1), HeldId(2)]);
    footprints.discard(HeldId(2));
    let both = hits(&footprints, &later);
    assert_eq!(
        (both.open, both.discarded),
        (vec![HeldId(1)], vec![HeldId(2)])
    );
    footprints.close(HeldId(2));
    footprints.close(HeldId(1));
    assert_eq!(hits(&footprints, &later), Default::default());
    assert_eq!(footprints.keys(), 1);
    footprints.close(HeldId(3));
    assert!(footprints.is_empty());
}

#[test]
fn closing_gives_memory_back_and_forgets_nobody_else() {
    let t = plain();
    let many = |from: usize| -> Vec<Step> {
        (from..from + 3000)
            .map(|n| step(&t, &format!("I N:{n},x")))
            .collect()
    };
    let mut footprints = Footprints::new();
    for id in 0..4 {
        // Each shares half of its keys with the one before.
        let touches = touches(&many(id * 1500));
        footprints.add(HeldId(id as i64), Standing::Open, &touches);
    }
    footprints.discard(HeldId(3));
    footprints.close(HeldId(0));
    footprints.close(HeldId(1));
    footprints.close(HeldId(2));
    assert_eq!(footprints.links.len(), 3000, "made anew");
    assert_eq!(footprints.keys(), 3000);
    for (key, known) in [(0, false), (4499, false), (4500, true), (7499, true)] {
        let hits = hits(&footprints, &[step(&t, &format!("D K:{key},~"))]);
        assert!(hits.open.is_empty());
        assert_eq!(hits.discarded == [HeldId(3)], known, "{key}");
    }
}

/// What is written down is the nearest; but one that does not wait behind another stands for itself.
#[test]
fn c45_who_waits_behind_the_nearest_waits_behind_those_before() {
    let t = plain();
    let mut footprints = Footprints::new();
    for id in 1..=4 {
        let update = [step(&t, "U N:1,b")];
        let behind = hits(&footprints, &update).open;
        let before: Vec<HeldId> = (id > 1).then_some(HeldId(id - 1)).into_iter().collect();
        assert_eq!(behind, before);
        footprints.add(HeldId(id), Standing::Open, &touches(&update));
        footprints.waits(HeldId(id), &behind);
    }
    footprints.discard(HeldId(4));
    footprints.discard(HeldId(2));
    let later = hits(&footprints, &[step(&t, "U N:1,c")]);
    assert_eq!(
        later.open,
        [HeldId(3)],
        "behind the first through a discarded one"
    );
    assert_eq!(later.discarded, [HeldId(2), HeldId(4)]);
    // One between them is forgotten: nobody stands for the first any more.
    footprints.close(HeldId(2));
    let later = hits(&footprints, &[step(&t, "U N:1,c")]);
    assert_eq!(later.open, [HeldId(1), HeldId(3)]);

    // Who points to the same row waits behind nobody who does.
    let mut footprints = Footprints::new();
    for id in 1..=2 {
        let child = [step(&children(), &format!("I N:{id},5,a"))];
        assert!(hits(&footprints, &child).open.is_empty());
        footprints.add(HeldId(id), Standing::Open, &touches(&child));
    }
    let gone = hits(&footprints, &[step(&parents(), "D K:5,~")]);
    assert_eq!(gone.open, [HeldId(1), HeldId(2)]);
}
