//! Read-only facts about the source, and what is wrong with them.
