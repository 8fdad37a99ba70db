//! The two locks of a name in the server's lock table.
//!
//! Whoever waits for a lock queues for `queue`, first in, first out; whoever has it is the head, and waits for `row` or sleeps.
//! `row` is for changing the row. Invariant: it is kept by whoever has changed the row, so what others see of the row is
//! committed.

use crate::server::locks::{LockMode, NamedLock, Purpose};
use crate::server::text;

/// The locks of a name.
pub(crate) struct Names {
    pub(crate) row: NamedLock,
    pub(crate) queue: NamedLock,
}

impl Names {
    pub(crate) fn of(name: &[u8]) -> Names {
        let hash = text::hash(name);
        Names { row: NamedLock::of_hash(Purpose::Lease, hash), queue: NamedLock::of_hash(Purpose::Queue, hash) }
    }

    /// How many wait for the lock: the head of the queue, and those behind it.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.requests()
    }
}

/// Releases a lock that one `take` took alone.
pub(crate) fn give_back(lock: &NamedLock) {
    lock.release(LockMode::Alone);
}
