//! What the target's tables look like: read from its catalogue on demand and cached.

/// Tables of the target as this session knows them, and the statements prepared for them. One per
/// target session; dropped with it.
#[derive(Debug, Default)]
pub struct Catalog {}

impl Catalog {
    /// Nothing read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all tables and statements, so that they are read and prepared again.
    pub fn forget(&mut self) {}
}
