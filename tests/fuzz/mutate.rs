//! What the fuzz tests of the pure crates share: a seeded source of damage and a time budget.
//! Included by path into each of them; it has no state of its own.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test may look at the clock and at its environment, and says which seed it runs"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime};

/// How long one target runs when nobody says otherwise.
const DEFAULT_SECONDS: f64 = 2.0;
/// Mutated inputs stay below this: larger ones only make a round slower.
const MAX_INPUT: usize = 1 << 16;

/// Numbers that look random and come again with the same seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, or 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// One to four pieces of damage.
pub(crate) fn mutate(random: &mut Random, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    for _ in 0..=random.below(4) {
        damage(random, bytes, seeds);
    }
    bytes.truncate(MAX_INPUT);
}

fn damage(random: &mut Random, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    const NUMBERS: [u32; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    if bytes.is_empty() {
        bytes.clone_from(random.pick(seeds));
        return;
    }
    let at = random.below(bytes.len());
    let length = (1 + random.below(16)).min(bytes.len() - at);
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..at + length)),
        4 => {
            let again = bytes[at..at + length].to_vec();
            bytes.splice(at..at, again);
        }
        5 => {
            let number = random.pick(&NUMBERS).to_be_bytes();
            let from = random.below(4);
            for (slot, byte) in bytes[at..].iter_mut().zip(&number[from..]) {
                *slot = *byte;
            }
        }
        6 => {
            let other = random.pick(seeds).clone();
            let from = random.below(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => bytes.insert(at, random.next() as u8),
    }
}

/// Feeds damaged seeds to `target` until the time is up. `target` says whether it accepted the
/// input; both answers must occur, or the target tests nothing.
pub(crate) fn fuzz(
    name: &str,
    mut seeds: Vec<Vec<u8>>,
    mut target: impl FnMut(&[u8], &mut Random) -> bool,
) {
    seeds.extend(corpus());
    assert!(!seeds.is_empty(), "{name}: no seeds");
    let seed = number("TRELLARA_FUZZ_SEED").map_or_else(now, |seed| seed as u64);
    let seconds = number("TRELLARA_FUZZ_SECONDS").unwrap_or(DEFAULT_SECONDS);
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    eprintln!("{name}: seed {seed}, {seconds} s");
    let mut random = Random(seed);
    let mut answers = [0u64; 2];
    // Undamaged seeds first, then damage until the time is up; a few rounds whatever the clock.
    for round in 0usize.. {
        if round >= seeds.len() + 1000 && Instant::now() >= until {
            break;
        }
        let mut input = match seeds.get(round) {
            Some(seed) => seed.clone(),
            None => random.pick(&seeds).clone(),
        };
        if round >= seeds.len() {
            mutate(&mut random, &mut input, &seeds);
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| target(&input, &mut random)));
        match outcome {
            Ok(accepted) => answers[usize::from(accepted)] += 1,
            Err(_) => {
                let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
                panic!("{name}: seed {seed}, round {round}, input {hex}");
            }
        }
    }
    let [refused, accepted] = answers;
    eprintln!("{name}: {accepted} accepted, {refused} refused");
    assert!(
        accepted > 0 && refused > 0,
        "{name}: one answer never occurred"
    );
}

/// More seeds: every file of the folder that the environment names.
fn corpus() -> Vec<Vec<u8>> {
    let Some(folder) = std::env::var_os("TRELLARA_FUZZ_CORPUS") else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(folder).expect("TRELLARA_FUZZ_CORPUS must be a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let files = paths.filter(|path| path.is_file());
    files
        .map(|path| std::fs::read(path).expect("a readable seed"))
        .collect()
}

fn number(variable: &str) -> Option<f64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} must be a number: {text:?}")),
    )
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // 32 bits are enough to differ and short enough to type.
    since.map_or(0, |since| {
        u64::from(since.subsec_nanos()) ^ (since.as_secs() & 0xffff)
    })
}
