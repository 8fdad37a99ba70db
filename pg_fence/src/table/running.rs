//! Which query runs: how a trigger knows what has fired it.

use crate::server::callbacks;
use crate::server::session::MainThread;
use pgrx::pg_sys;
use std::cell::Cell;

/// Identifies a running query: its memory context. Null stands for none.
pub(crate) type Query = pg_sys::MemoryContext;

static RUNNING: MainThread<Cell<Query>> = MainThread(Cell::new(std::ptr::null_mut()));

/// The query of the innermost execution under way, which what the query calls belongs to or is called by.
pub(crate) fn running() -> Query {
    RUNNING.get()
}

/// Has a function called when a query that runs has ended, and its memory is freed.
pub(crate) fn at_end(query: Query, act: fn(Query)) {
    // SAFETY: the query runs, so its memory is there.
    unsafe { callbacks::at_end_of_query(query, act) };
}

/// Puts back what ran before, also when an error ends a query.
pub(crate) struct Before(Query);

impl Before {
    /// What runs now.
    pub(crate) fn now() -> Before {
        Before(RUNNING.get())
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        RUNNING.set(self.0);
    }
}

/// Notes the query that begins to run.
pub(crate) fn begin(query: Query) {
    RUNNING.set(query);
}
