//! The sessions that read, and who has them.

use std::sync::Mutex;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::{Failure, VerifyError};
use crate::reader::Reader;

/// A session on each side, in its snapshot.
pub(crate) struct Lane {
    pub(crate) source: Reader,
    pub(crate) target: Reader,
}

/// The lanes that nobody uses at the moment.
pub(crate) struct Pool {
    permits: Semaphore,
    idle: Mutex<Vec<Lane>>,
}

/// A lane that is used; goes back when dropped.
pub(crate) struct Taken<'a> {
    lane: Option<Lane>,
    pool: &'a Pool,
    // Released behind the lane's return.
    _permit: SemaphorePermit<'a>,
}

impl Pool {
    pub(crate) fn new(lanes: Vec<Lane>) -> Self {
        Self {
            permits: Semaphore::new(lanes.len()),
            idle: Mutex::new(lanes),
        }
    }

    pub(crate) async fn take(&self) -> Result<Taken<'_>, Failure> {
        let permit = self.permits.acquire().await.ok();
        let lane = self.idle.lock().ok().and_then(|mut idle| idle.pop());
        match (permit, lane) {
            (Some(permit), Some(lane)) => Ok(Taken {
                lane: Some(lane),
                pool: self,
                _permit: permit,
            }),
            _ => Err(VerifyError::bug("a lane was lost").into()),
        }
    }
}

impl Taken<'_> {
    pub(crate) fn lane(&self) -> Result<&Lane, Failure> {
        let lane = self.lane.as_ref();
        lane.ok_or_else(|| VerifyError::bug("a lane was lost").into())
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let (Some(lane), Ok(mut idle)) = (self.lane.take(), self.pool.idle.lock()) {
            idle.push(lane);
        }
    }
}
