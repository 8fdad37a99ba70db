//! Versions of rows that are not committed yet, beside those that are: what the transactions that run now have written.
//!
//! For whoever watches. Nobody is waited for, so what is read can have changed by the time that it is used. Invariant: of the
//! versions that one transaction has written only the last is read.

use crate::server::heap::{Fields, NamedRows};
use crate::server::stored::Tid;
use pgrx::pg_sys::{self, Datum};

/// Who has written a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writer {
    /// Nobody who still runs, or this transaction itself.
    Ended,
    /// The transaction with this number, which runs or is prepared.
    Running(u32),
}

impl NamedRows<'_> {
    /// Calls `each` with the versions of the row of this name, or of all rows.
    pub(crate) fn each_version<const N: usize>(
        &self,
        name: Option<Datum>,
        mut each: impl FnMut(&Fields<N>, Writer, Tid),
    ) {
        let mut snapshot =
            pg_sys::SnapshotData { snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY, ..Default::default() };
        let dirty = &raw mut snapshot;
        self.scan(name, dirty, |fields, tuple| {
            // SAFETY: the server notes there what it has found of the version that it has just given; the version is pinned.
            unsafe {
                let (writer, tuple) = ((*dirty).xmin, &*tuple);
                if writer == pg_sys::InvalidTransactionId {
                    each(fields, Writer::Ended, tuple.t_self);
                } else if !is_replaced(tuple) {
                    each(fields, Writer::Running(pg_sys::SubTransGetTopmostTransaction(writer).into()), tuple.t_self);
                }
            }
        });
    }
}

/// Whether the transaction that has written a version, and runs, has also replaced or deleted it, in no part that was rolled
/// back.
///
/// # Safety
///
/// The version is pinned.
unsafe fn is_replaced(tuple: &pg_sys::HeapTupleData) -> bool {
    // SAFETY: as the caller promises. Nobody else can have replaced what is not committed.
    unsafe {
        let header = &*tuple.t_data;
        let mask = u32::from(header.t_infomask);
        if mask & (pg_sys::HEAP_XMAX_INVALID | pg_sys::HEAP_XMAX_LOCK_ONLY) != 0 {
            return false;
        }
        let replacer = match mask & pg_sys::HEAP_XMAX_IS_MULTI {
            0 => header.t_choice.t_heap.t_xmax,
            _ => pg_sys::HeapTupleGetUpdateXid(tuple.t_data),
        };
        pg_sys::TransactionIdIsInProgress(replacer)
    }
}
