//! How long calls wait for other transactions: counted when a wait is over, however it ends.
//!
//! Not by the clock where nobody waits: a wait for a guard or a lock is begun here, and of one for a row the server itself
//! notes when it began.

use crate::server::locks;
use crate::server::session;
use crate::server::waiting::{Awaited, Shown};
use crate::settings;
use crate::stats::Subject;
use crate::stats::memory::{self, Counter};
use pgrx::pg_sys::Oid;

/// A wait for a guard or a lock, as long as this lives.
pub(crate) struct Wait<'a> {
    subject: Subject<'a>,
    began_at: i64,
    _shown: Shown,
}

impl<'a> Wait<'a> {
    /// Begins a wait, which `pg_stat_activity` shows. The first one of a call is counted now.
    pub(crate) fn begin(subject: Subject<'a>, awaited: Awaited, is_first: bool) -> Wait<'a> {
        if is_first {
            subject.count(Counter::Waits);
        }
        Wait { subject, began_at: session::now(), _shown: Shown::of(awaited) }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.subject.add(&[(Counter::WaitedUs, since(self.began_at))]);
    }
}

/// Runs a statement on rows of a table, and counts if it waits for a lock of whatever kind. Costs nothing where it does not;
/// of several waits the last is measured, to the end of the statement.
pub(crate) fn on_rows<T>(table: Oid, statement: impl FnOnce() -> T) -> T {
    if settings::tracks() {
        memory::ask();
    }
    let _waits = RowWaits { table, last: locks::last_wait() };
    statement()
}

/// A wait that is newer than the last of before is one of the statement.
struct RowWaits {
    table: Oid,
    last: i64,
}

impl Drop for RowWaits {
    fn drop(&mut self) {
        let began_at = locks::last_wait();
        if began_at != self.last {
            Subject::Table(self.table).add(&[(Counter::Waits, 1), (Counter::WaitedUs, since(began_at))]);
        }
    }
}

/// Microseconds since a time of the server's.
fn since(began_at: i64) -> u64 {
    u64::try_from(session::now().saturating_sub(began_at)).unwrap_or(0)
}
