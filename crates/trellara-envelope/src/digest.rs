//! Digests: of a frame, of a transaction's bytes, of an identity. All are xxh3-128 with seed 0.
//!
//! xxh3 finds accidents, not enemies; the frame's MAC field is there for the latter.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

macro_rules! digest {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// The digest of `bytes`.
            pub fn of(bytes: &[u8]) -> Self {
                Self(xxh3_128(bytes).to_be_bytes())
            }

            /// The digest in 16 bytes read from elsewhere; `None` when the length is another.
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

digest!(
    /// The digest of a whole encoded frame; the next frame names it as `previous`.
    FrameDigest
);
digest!(
    /// The dedup identity of a transaction, the same in memory and in SQL.
    TransactionHash
);

/// The digest of a transaction's bytes so far, fed chunk by chunk.
#[derive(Clone)]
pub struct RunningDigest {
    state: Box<Xxh3>,
    bytes: u64,
}

impl RunningDigest {
    /// Nothing fed yet.
    pub fn new() -> Self {
        Self {
            state: Box::new(Xxh3::new()),
            bytes: 0,
        }
    }

    /// Feeds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// The digest of everything fed so far; feeding may go on.
    pub fn current(&self) -> FrameDigest {
        FrameDigest(self.state.digest128().to_be_bytes())
    }

    /// Bytes fed so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Default for RunningDigest {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RunningDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningDigest({} bytes)", self.bytes)
    }
}
