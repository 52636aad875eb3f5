//! What a frame's body says, whichever kind it is.

use std::borrow::Cow;

use trellara_envelope::{Body, BundleEntry, Genesis, Lsn, Manifest, Marker, SourceHistory};

/// The transactions that end in a frame of this body.
pub fn entries(body: &Body) -> Cow<'_, [BundleEntry]> {
    match body {
        Body::Bundle(entries) => Cow::Borrowed(entries),
        Body::Manifest(manifest) => Cow::Owned(vec![entry_of(manifest)]),
        Body::Genesis(_)
        | Body::Marker(_)
        | Body::Heartbeat(_)
        | Body::Chunk(_)
        | Body::Abort(_) => Cow::Borrowed(&[]),
    }
}

/// A manifest seen as a bundle's entry: it holds one transaction.
pub(crate) fn entry_of(manifest: &Manifest) -> BundleEntry {
    BundleEntry {
        source: manifest.source,
        commit_lsn: manifest.commit_lsn,
        end_lsn: manifest.end_lsn,
        xid: manifest.xid,
        commit_time: manifest.commit_time,
        bytes: 0,
        changes: 0,
    }
}

/// Whether a frame of this body ends every lower incarnation, so that their open transactions are
/// garbage (C13).
pub fn closes_lower(body: &Body) -> bool {
    continues_at(body).is_some()
}

/// From where the writer of a genesis or marker goes on.
pub(crate) fn continues_at(body: &Body) -> Option<Lsn> {
    match body {
        Body::Genesis(Genesis { continues_at, .. }) | Body::Marker(Marker { continues_at, .. }) => {
            Some(*continues_at)
        }
        Body::Heartbeat(_)
        | Body::Bundle(_)
        | Body::Chunk(_)
        | Body::Abort(_)
        | Body::Manifest(_) => None,
    }
}

/// The timelines that a genesis or marker names.
pub(crate) fn history_of(body: &Body) -> Option<&SourceHistory> {
    match body {
        Body::Genesis(Genesis { history, .. }) | Body::Marker(Marker { history, .. }) => {
            Some(history)
        }
        Body::Heartbeat(_)
        | Body::Bundle(_)
        | Body::Chunk(_)
        | Body::Abort(_)
        | Body::Manifest(_) => None,
    }
}
