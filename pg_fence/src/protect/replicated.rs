//! What becomes of an update that logical replication applies to a protected table: with `replicated => 'newest'` the row
//! with the newer fence stays.
//!
//! The trigger fires for the apply worker alone, and only where the row that arrives has an older fence than the one that is
//! there. Invariant: it keeps a row as it is, or does nothing.

use crate::errors::Refused;
use crate::protect::condition;
use crate::server::call::{Call, Reply};
use crate::server::trigger::{EventRow, TriggerEvent};
use crate::stats::Subject;
use crate::stats::memory::Counter;
use fence::Fence;
use pgrx::pg_sys::Oid;

/// `keep_newer()`, the trigger: the row stays as it is. Counted as a stale write.
pub(crate) fn keep_newer(call: &Call) -> Result<Reply, Refused> {
    let event = TriggerEvent::of(call).ok_or(Refused::NotATrigger)?;
    if let Some(column) = event.condition().and_then(|condition| condition::fence_column(condition, event.kind())) {
        let fence = |row| event.integer(row, column);
        count(event.table(), fence(EventRow::New), fence(EventRow::Given));
    }
    // As a trigger says that nothing shall be done for this row.
    Ok(Reply::Void)
}

fn count(table: Oid, arrived: Option<i64>, stored: Option<i64>) {
    match arrived.and_then(|fence| Fence::new(u64::try_from(fence).ok()?)) {
        Some(fence) => Subject::Table(table).count_stale(Counter::WritesStale, fence, stored),
        None => Subject::Table(table).count(Counter::WritesStale),
    }
}
