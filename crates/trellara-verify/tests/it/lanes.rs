//! What rows are digested by: a hash of the databases, or BLAKE3 of their text.

use trellara_verify::report::{DigestLane, Outcome};

use crate::support::{LANES, VERSIONS, World, found, refusal};

/// PostgreSQL's hash of twelve bytes (Bob Jenkins' lookup3), and the way back.
mod jenkins {
    type State = [u32; 3];

    fn begin(seed: u64) -> State {
        let start = 0x9e37_79b9u32.wrapping_add(12).wrapping_add(3_923_095);
        let a = start.wrapping_add((seed >> 32) as u32);
        mix([a, start.wrapping_add(seed as u32), start])
    }

    fn mix([mut a, mut b, mut c]: State) -> State {
        for turns in [[4, 6, 8], [16, 19, 4]] {
            a = a.wrapping_sub(c) ^ c.rotate_left(turns[0]);
            c = c.wrapping_add(b);
            b = b.wrapping_sub(a) ^ a.rotate_left(turns[1]);
            a = a.wrapping_add(c);
            c = c.wrapping_sub(b) ^ b.rotate_left(turns[2]);
            b = b.wrapping_add(a);
        }
        [a, b, c]
    }

    fn unmix([mut a, mut b, mut c]: State) -> State {
        for turns in [[16, 19, 4], [4, 6, 8]] {
            b = b.wrapping_sub(a);
            c = (c ^ b.rotate_left(turns[2])).wrapping_add(b);
            a = a.wrapping_sub(c);
            b = (b ^ a.rotate_left(turns[1])).wrapping_add(a);
            c = c.wrapping_sub(b);
            a = (a ^ c.rotate_left(turns[0])).wrapping_add(c);
        }
        [a, b, c]
    }

    /// Which word is changed by which, and how far that one is turned.
    const LAST: [(usize, usize, u32); 7] = [
        (2, 1, 14),
        (0, 2, 11),
        (1, 0, 25),
        (2, 1, 16),
        (0, 2, 4),
        (1, 0, 14),
        (2, 1, 24),
    ];

    fn last(mut state: State) -> State {
        for (to, by, turn) in LAST {
            state[to] = (state[to] ^ state[by]).wrapping_sub(state[by].rotate_left(turn));
        }
        state
    }

    fn unlast(mut state: State) -> State {
        for (to, by, turn) in LAST.into_iter().rev() {
            state[to] = state[to].wrapping_add(state[by].rotate_left(turn)) ^ state[by];
        }
        state
    }

    /// Other bytes of the same hash.
    pub(super) fn twin(bytes: [u8; 12], seed: u64) -> [u8; 12] {
        let start = begin(seed);
        let (words, _) = bytes.as_chunks::<4>();
        let mut state = start;
        for (to, word) in state.iter_mut().zip(words) {
            *to = to.wrapping_add(u32::from_le_bytes(*word));
        }
        let mut end = last(mix(state));
        // The hash is made of the other two words.
        end[0] ^= 1;
        let state = unmix(unlast(end));
        let mut twin = [0; 12];
        let (chunks, _) = twin.as_chunks_mut::<4>();
        for (chunk, (word, start)) in chunks.iter_mut().zip(state.into_iter().zip(start)) {
            *chunk = word.wrapping_sub(start).to_le_bytes();
        }
        twin
    }
}

fn hex(bytes: [u8; 12]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(r"'\x{}'", digits.concat())
}

/// Whoever knows the seed can make a value that the databases' hash cannot tell from another.
#[tokio::test]
async fn a_difference_made_for_the_seed_is_found_by_proof() {
    const SEED: i64 = 0x5eed;
    let value = *b"twelve bytes";
    let twin = jenkins::twin(value, SEED.cast_unsigned());
    for (version, key) in VERSIONS
        .into_iter()
        .flat_map(|version| [(version, "PRIMARY KEY"), (version, "")])
    {
        let world = World::new(version).await;
        let (value, twin) = (hex(value), hex(twin));
        world
            .both(&format!(
                "CREATE TABLE t (k int {key}, v bytea); INSERT INTO t VALUES (1, {value}), (2, {value})"
            ))
            .await;
        world.publish_all().await;
        let change = format!("UPDATE t SET v = {twin} WHERE k = 2");
        world.target.run(&change).await;
        let differs = format!("SELECT v <> {value} FROM t WHERE k = 2");
        assert_eq!(world.target.ask(&differs).await, "t");
        let report = world.report_with(|o| o.seed = SEED).await;
        assert_eq!(found(&report), [""; 0], "the hash is no longer that one");
        assert_eq!(
            found(&world.report_with(|o| o.seed = 1).await).len(),
            if key.is_empty() { 2 } else { 1 }
        );
        let report = world
            .report_with(|o| (o.seed, o.lane) = (SEED, DigestLane::Blake3))
            .await;
        assert_eq!(found(&report).len(), 1, "{report:?}");
        assert_eq!((report.changed, report.differing()), (1, 1));
        assert!(report.source_sum != report.target_sum, "{report:?}");
    }
}

#[tokio::test]
async fn other_encodings_are_proven_too() {
    for version in VERSIONS {
        let latin = "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'";
        let world = World::of((version, ""), (version, latin)).await;
        world
            .both("CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'é\\ü' || i FROM generate_series(1, 50) i")
            .await;
        world.publish_all().await;
        let proven = |o: &mut trellara_verify::CompareOptions| {
            (o.lane, o.range_rows) = (DigestLane::Blake3, 7);
        };
        assert_eq!(found(&world.report_with(proven).await), [""; 0]);
        let change = "UPDATE t SET v = 'e\\ü30' WHERE k = 30; DELETE FROM t WHERE k = 49";
        world.target.run(change).await;
        let expected = ["k=30 changed(v)", "k=49 missing"];
        assert_eq!(found(&world.report_with(proven).await), expected);
        // What LATIN1 cannot hold is on the source alone.
        world.source.run("UPDATE t SET v = '€' WHERE k = 7").await;
        let expected = ["k=7 changed(v)", "k=30 changed(v)", "k=49 missing"];
        assert_eq!(found(&world.report_with(proven).await), expected);
    }
}

#[tokio::test]
async fn a_refused_copy_spoils_one_table_alone() {
    let world = World::new(18).await;
    world
        .source
        .run("CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'x'); CREATE TABLE u (k int); INSERT INTO u VALUES (1)")
        .await;
    world
        .target
        .run("CREATE TABLE t (k int PRIMARY KEY, v int); CREATE TABLE u (k int); INSERT INTO u VALUES (1)")
        .await;
    world.publish_all().await;
    for lane in LANES {
        let got = world.compare_with(|o| (o.lane, o.jobs) = (lane, 1)).await;
        assert!(refusal(&got.tables[0]).1.contains("does not fit"));
        assert_eq!(got.tables[1].outcome, Outcome::Equal, "{lane:?}");
    }
}
