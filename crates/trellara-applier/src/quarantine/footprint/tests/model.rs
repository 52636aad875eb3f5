//! A small source whose constraints hold, a target that sets transactions aside at random, and what
//! must then be true: nobody on the target ever sees a constraint broken, every change finds its
//! row, and when all that was held is replayed the target is what the source is.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{Footprints, HeldId, Standing};
use super::{Step, Table, hits, step, touches};

const PARENTS: usize = 0;
const CHILDREN: usize = 1;
const LONERS: usize = 2;

/// Whether the source sends whole old rows, and of a row that is updated what it left alone.
#[derive(Debug, Clone, Copy)]
struct Sends {
    whole: [bool; 3],
}

fn tables(sends: Sends) -> [Table; 3] {
    let parents = Table::new("parents", &["id", "mail", "v"])
        .unique(&["mail"])
        .referenced_by("id", "children", "parent")
        .referenced_by("mail", "children", "post");
    let children = Table::new("children", &["id", "parent", "post"])
        .references("parent", "parents", "id")
        .references("post", "parents", "mail");
    let loners = Table::new("loners", &["id", "v", "w"]);
    let mut tables = [parents, children, loners];
    for (table, whole) in tables.iter_mut().zip(sends.whole) {
        if whole {
            *table = table.clone().full();
        }
    }
    tables
}

/// Without an id, which is the key: two more columns.
type Row = [Option<u8>; 2];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    tables: [BTreeMap<u8, Row>; 3],
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Insert(usize, u8, Row),
    /// From, to, the new values, and whether values that stay are left out as TOASTed ones are.
    Update(usize, u8, u8, Row, bool),
    Delete(usize, u8),
    /// With the children, when it is the parents.
    Truncate(usize),
}

impl State {
    /// Does it, if the row is as it must be and no constraint breaks.
    fn apply(&mut self, op: Op) -> Result<(), String> {
        let before = self.clone();
        let done = self.change(op).and_then(|()| self.whole());
        if done.is_err() {
            *self = before;
        }
        done
    }

    fn change(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Insert(table, id, row) => match self.tables[table].insert(id, row) {
                None => Ok(()),
                Some(_) => Err(format!("{id} is there")),
            },
            Op::Update(table, from, to, row, _) => {
                let gone = self.tables[table].remove(&from);
                let there = self.tables[table].insert(to, row);
                match (gone, there) {
                    (Some(_), None) => Ok(()),
                    _ => Err(format!("{from} is not there, or {to} is")),
                }
            }
            Op::Delete(table, id) => match self.tables[table].remove(&id) {
                Some(_) => Ok(()),
                None => Err(format!("{id} is not there")),
            },
            Op::Truncate(table) => {
                self.tables[table].clear();
                if table == PARENTS {
                    self.tables[CHILDREN].clear();
                }
                Ok(())
            }
        }
    }

    fn whole(&self) -> Result<(), String> {
        let mails: Vec<u8> = self.tables[PARENTS].values().filter_map(|r| r[0]).collect();
        let mut once = mails.clone();
        once.sort_unstable();
        once.dedup();
        if once.len() != mails.len() {
            return Err("a mail is there twice".into());
        }
        for [parent, post] in self.tables[CHILDREN].values() {
            if parent.is_some_and(|id| !self.tables[PARENTS].contains_key(&id)) {
                return Err("a child has no parent".into());
            }
            if post.is_some_and(|mail| !mails.contains(&mail)) {
                return Err("a child has no mail".into());
            }
        }
        Ok(())
    }
}

/// What the stream says of an operation.
fn steps(op: Op, state: &State, sends: Sends, tables: &[Table; 3]) -> Vec<Step> {
    let text = |value: Option<u8>| value.map_or("~".to_owned(), |value| value.to_string());
    let all = |id: u8, row: Row| format!("{id},{},{}", text(row[0]), text(row[1]));
    match op {
        Op::Insert(table, id, row) => {
            vec![step(&tables[table], &format!("I N:{}", all(id, row)))]
        }
        Op::Delete(table, id) => {
            let words = if sends.whole[table] {
                format!("D O:{}", all(id, state.tables[table][&id]))
            } else {
                format!("D K:{id},~,~")
            };
            vec![step(&tables[table], &words)]
        }
        Op::Update(table, from, to, row, toasted) => {
            let old = state.tables[table][&from];
            let value = |n: usize| match row[n] == old[n] && toasted {
                true => "^".to_owned(),
                false => text(row[n]),
            };
            let new = format!("N:{to},{},{}", value(0), value(1));
            let words = match (sends.whole[table], from == to) {
                (true, _) => format!("U O:{} {new}", all(from, old)),
                (false, true) => format!("U {new}"),
                (false, false) => format!("U K:{from},~,~ {new}"),
            };
            vec![step(&tables[table], &words)]
        }
        Op::Truncate(PARENTS) => vec![step(&tables[PARENTS], "T"), step(&tables[CHILDREN], "T")],
        Op::Truncate(table) => vec![step(&tables[table], "T")],
    }
}

/// One transaction of the source, and whether the target refuses it when it is tried; behind it
/// so many of those held are replayed.
#[derive(Debug, Clone)]
struct Deed {
    ops: Vec<Op>,
    refused: bool,
    replays: usize,
}

fn op() -> impl Strategy<Value = Op> {
    let table = prop_oneof![3 => Just(PARENTS), 3 => Just(CHILDREN), 1 => Just(LONERS)];
    let row = || {
        [
            proptest::option::weighted(0.8, 0_u8..4),
            proptest::option::weighted(0.5, 0_u8..4),
        ]
    };
    (table, 0_u8..5, 0_u8..5, row(), any::<bool>(), 0..20).prop_map(
        |(table, from, to, row, toasted, kind)| match kind {
            0..8 => Op::Insert(table, from, row),
            8..12 => Op::Update(table, from, from, row, toasted),
            12..14 => Op::Update(table, from, to, row, toasted),
            14..19 => Op::Delete(table, from),
            _ => Op::Truncate(table),
        },
    )
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = (
        proptest::collection::vec(op(), 1..4),
        proptest::bool::weighted(0.12),
        prop_oneof![6 => Just(0_usize), 1 => 1_usize..3],
    )
        .prop_map(|(ops, refused, replays)| Deed {
            ops,
            refused,
            replays,
        });
    proptest::collection::vec(deed, 1..80)
}

struct World {
    sends: Sends,
    tables: [Table; 3],
    source: State,
    target: State,
    footprints: Footprints,
    held: Vec<(HeldId, Vec<Op>)>,
    passed: u64,
    waited: u64,
}

impl World {
    fn new(sends: Sends) -> Self {
        Self {
            sends,
            tables: tables(sends),
            source: State::default(),
            target: State::default(),
            footprints: Footprints::new(),
            held: Vec::new(),
            passed: 0,
            waited: 0,
        }
    }

    fn commit(&mut self, id: HeldId, deed: &Deed) -> Result<(), String> {
        let (mut ops, mut stream) = (Vec::new(), Vec::new());
        for op in &deed.ops {
            let before = self.source.clone();
            // What the source refuses is no part of its history.
            if self.source.apply(*op).is_ok() {
                ops.push(*op);
                stream.extend(steps(*op, &before, self.sends, &self.tables));
            }
        }
        if ops.is_empty() {
            return Ok(());
        }
        let something = !self.held.is_empty();
        let behind = hits(&self.footprints, &stream).open;
        if deed.refused || !behind.is_empty() {
            self.waited += u64::from(!deed.refused);
            self.footprints.add(id, Standing::Open, &touches(&stream));
            self.held.push((id, ops));
        } else {
            self.passed += u64::from(something);
            self.apply(&ops)?;
        }
        self.replay(deed.replays)
    }

    fn replay(&mut self, many: usize) -> Result<(), String> {
        let many = many.min(self.held.len());
        for (id, ops) in self.held.drain(..many).collect::<Vec<_>>() {
            self.apply(&ops)
                .map_err(|error| format!("replaying {id}: {error}"))?;
            self.footprints.close(id);
        }
        Ok(())
    }

    fn apply(&mut self, ops: &[Op]) -> Result<(), String> {
        ops.iter().try_for_each(|op| self.target.apply(*op))
    }
}

fn run(sends: Sends, deeds: &[Deed]) -> Result<World, String> {
    let mut world = World::new(sends);
    for (id, deed) in (1..).zip(deeds) {
        world
            .commit(HeldId(id), deed)
            .map_err(|error| format!("transaction {id}: {error}"))?;
    }
    world.replay(usize::MAX)?;
    if world.target != world.source {
        return Err("the target is not what the source is".into());
    }
    Ok(world)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn c45_held_and_replayed_in_order_is_the_serial_order(
        whole in any::<[bool; 3]>(),
        deeds in deeds(),
    ) {
        if let Err(error) = run(Sends { whole }, &deeds) {
            prop_assert!(false, "{error}");
        }
    }
}

/// A rule that held everything would pass the model.
#[test]
fn what_is_independent_goes_on() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut passed, mut waited) = (0, 0);
    for _ in 0..300 {
        let deeds = deeds().new_tree(&mut runner).unwrap().current();
        let world = run(Sends { whole: [true; 3] }, &deeds).unwrap();
        passed += world.passed;
        waited += world.waited;
    }
    assert!(
        passed > 500 && waited > 500,
        "{passed} passed, {waited} waited"
    );
}
