//! What is measured, and what it is compared with.

use std::collections::HashSet;
use std::hint::black_box;
use std::time::Duration;

use fastbloom::BloomFilter;
use trellara_dedup::{
    Binding, Cache, Identity, MAX_CEILING, Moment, Ordinal, Ring, Settings, Stamp,
};

use crate::shared::{ABSENT, identity};
use crate::{Figures, clock, heap};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// As shipped.
    Ring,
    /// With the ceiling of the seed: a million identities per generation.
    Seed,
    /// The standard library's hash set.
    Set,
    /// A published filter with as many bits; it does not know, it only rules out.
    Filter,
}

pub(crate) const ALL: [Subject; 4] = [Subject::Ring, Subject::Seed, Subject::Set, Subject::Filter];

impl Subject {
    /// How it is asked for.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Seed => "seed",
            Self::Set => "set",
            Self::Filter => "filter",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Seed => "ring, ceiling 1 Mi",
            Self::Set => "HashSet<u128>",
            Self::Filter => "fastbloom, 16 bits",
        }
    }
}

/// Probes per measurement.
const PROBES: u64 = 1_000_000;
/// Measurements; the best one counts.
const PASSES: usize = 3;
const BATCH: usize = 1000;
/// Where a ring sorts, merges and allocates: every so many appends.
const MAINTENANCE: u64 = 256;

pub(crate) fn measure(subject: Subject, size: u64) -> Figures {
    match subject {
        Subject::Ring => ring(MAX_CEILING, size),
        Subject::Seed => ring(1 << 20, size),
        Subject::Set => set(size),
        Subject::Filter => filter(size),
    }
}

fn absent() -> Vec<Identity> {
    (0..PROBES).map(|at| identity(ABSENT + at)).collect()
}

/// Some that are there, old ones and new ones.
fn known(size: u64) -> Vec<Identity> {
    let some = (PROBES / 10).min(size);
    (0..some).map(|at| identity(at * (size / some))).collect()
}

/// The best of several passes, in nanoseconds per probe.
fn best(probes: usize, mut pass: impl FnMut()) -> f64 {
    let passes = (0..PASSES).map(|_| clock::time(&mut pass).0);
    passes.fold(f64::INFINITY, f64::min) / probes as f64
}

fn each(identities: &[Identity], contains: impl Fn(Identity) -> bool) -> f64 {
    best(identities.len(), || {
        for identity in identities {
            black_box(contains(black_box(*identity)));
        }
    })
}

fn ring(ceiling: usize, size: u64) -> Figures {
    let (absent, known) = (absent(), known(size));
    heap::largest();
    let before = heap::live();
    let mut ring: Ring = Ring::new(ceiling);
    let mut worst = 0.0_f64;
    let (append, ()) = clock::time(|| {
        for at in 0..size {
            let mut append = || ring.append(Ordinal(at as i64), &[identity(at)], Stamp(0));
            if at % MAINTENANCE == MAINTENANCE - 1 {
                worst = worst.max(clock::real(append));
            } else {
                append();
            }
        }
    });
    let bytes = (heap::live() - before) as f64 / size as f64;
    let largest = heap::largest();
    let counted = ring.bytes() as f64 / size as f64;
    assert!(
        (bytes - counted).abs() < 0.1,
        "counted {counted} bytes per hash, are {bytes}"
    );

    let mut hits = Vec::new();
    let mut wrong = 0;
    let batch = best(absent.len(), || {
        let answers = absent
            .chunks(BATCH)
            .map(|batch| ring.probe(black_box(batch), &mut hits));
        wrong = answers.map(|maybes| maybes.wrong).sum();
    });
    assert!(hits.is_empty(), "an absent identity was found");
    assert!(
        known.iter().all(|identity| ring.contains(*identity)),
        "a known one was lost"
    );
    Figures {
        bytes,
        append: append / size as f64,
        worst_append: Some(worst / 1e3),
        alone: each(&absent, |identity| ring.contains(identity)),
        batch,
        known: each(&known, |identity| ring.contains(identity)),
        maybes: wrong as f64 / absent.len() as f64 * 100.0,
        filters: ring.generations(),
        largest,
    }
}

fn set(size: u64) -> Figures {
    let (absent, known) = (absent(), known(size));
    heap::largest();
    let before = heap::live();
    let mut set = HashSet::new();
    let mut worst = 0.0_f64;
    let (append, ()) = clock::time(|| {
        for at in 0..size {
            let identity = identity(at).0;
            // It grows when it is full; that is its worst insert.
            if set.len() == set.capacity() {
                worst = worst.max(clock::real(|| _ = set.insert(identity)));
            } else {
                set.insert(identity);
            }
        }
    });
    let alone = each(&absent, |identity| set.contains(&identity.0));
    Figures {
        bytes: (heap::live() - before) as f64 / size as f64,
        append: append / size as f64,
        worst_append: Some(worst / 1e3),
        alone,
        batch: alone,
        known: each(&known, |identity| set.contains(&identity.0)),
        maybes: 0.0,
        filters: 0,
        largest: heap::largest(),
    }
}

fn filter(size: u64) -> Figures {
    let (absent, known) = (absent(), known(size));
    heap::largest();
    let before = heap::live();
    let bits = size as usize * 16;
    let mut filter = BloomFilter::with_num_bits(bits).seed(&7).hashes(7);
    let (append, ()) = clock::time(|| {
        for at in 0..size {
            filter.insert(&identity(at).0);
        }
    });
    let alone = each(&absent, |identity| filter.contains(&identity.0));
    let maybes = absent
        .iter()
        .filter(|identity| filter.contains(&identity.0))
        .count();
    Figures {
        bytes: (heap::live() - before) as f64 / size as f64,
        append: append / size as f64,
        worst_append: None,
        alone,
        batch: alone,
        known: each(&known, |identity| filter.contains(&identity.0)),
        maybes: maybes as f64 / absent.len() as f64 * 100.0,
        filters: 1,
        largest: heap::largest(),
    }
}

/// Milliseconds per million to fill a lane from ledger rows of 120 identities.
pub(crate) fn hydrate(size: u64) -> f64 {
    const ROW: u64 = 120;
    let cache: Cache<u32> = Cache::new(Settings {
        budget: 16 << 30,
        ..Settings::default()
    });
    let window = Duration::from_secs(3600);
    let binding = Binding {
        epoch: 1,
        history: 1,
        identity: 1,
        window,
    };
    let (taken, ()) = clock::time(|| {
        let mut hydration = cache
            .hydrate(&0, &binding, Some(size), Moment(0))
            .expect("room");
        let mut first = 1;
        while first <= size {
            let row: Vec<_> = (first..=size.min(first + ROW - 1)).map(identity).collect();
            let pushed = hydration.push(Ordinal(first as i64), &row, Stamp(0));
            pushed.expect("contiguous");
            first += row.len() as u64;
        }
        let upto = Ordinal(size as i64);
        cache
            .finish(hydration, Ordinal(0), upto, Moment(0))
            .expect("complete");
    });
    taken / size as f64
}

/// Milliseconds per million to let everything expire part by part, and the longest part.
pub(crate) fn expire(size: u64) -> (f64, f64) {
    let mut ring: Ring = Ring::new(MAX_CEILING);
    for at in 0..size {
        ring.append(Ordinal(at as i64), &[identity(at)], Stamp(0));
    }
    let (mut all, mut worst, mut left) = (0.0, 0.0_f64, true);
    while left {
        let taken = clock::real(|| left = ring.drop_oldest().is_some());
        all += taken;
        worst = worst.max(taken);
    }
    (all / size as f64, worst / 1e6)
}
