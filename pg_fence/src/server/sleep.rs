//! Sleeping until another backend wakes this one, and what a session must give up before it sleeps for long.
//!
//! Not a queue: whoever wakes somebody has found him by a lock that he holds. Waking somebody who does not sleep has no effect
//! but one recheck. Invariant: who resets before it checks for what it waits, and sleeps after, misses no wake.

use crate::server::session;
use crate::server::waiting::Awaited;
use pgrx::pg_sys;
use std::ffi::c_int;

/// A backend that may sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sleeper(usize);

impl Sleeper {
    /// The backend that has this transaction; none where it has ended, or was prepared.
    pub(crate) fn of(transaction: &pg_sys::VirtualTransactionId) -> Option<Sleeper> {
        // SAFETY: the look-up reads shared memory.
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let number =
            unsafe { pg_sys::BackendIdGetProc(transaction.backendId).as_ref() }.map_or(-1, |proc| proc.pgprocno);
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let number = transaction.procNumber;
        usize::try_from(number).ok().filter(|&number| number < process_count()).map(Sleeper)
    }

    /// Wakes it. Whoever has its place by now is woken for nothing.
    pub(crate) fn wake(self) {
        // SAFETY: the number was checked to be one of a process, whose latch is there as long as the server runs.
        unsafe { pg_sys::SetLatch(&raw mut (*(*pg_sys::ProcGlobal).allProcs.add(self.0)).procLatch) };
    }
}

fn process_count() -> usize {
    // SAFETY: a number of the server that does not change.
    unsafe { (*pg_sys::ProcGlobal).allProcCount as usize }
}

/// Forgets earlier wakes. A cancel, a timeout or an end of the session that woke it is the server's error at once.
pub(crate) fn reset() {
    // SAFETY: a backend has a latch as long as it runs; no lightweight lock is held here.
    unsafe {
        pg_sys::ResetLatch(pg_sys::MyLatch);
        pg_sys::check_for_interrupts!();
    }
}

/// Sleeps for so many microseconds at most, shown as one that waits for this. A cancel, a timeout and the end of the session
/// are the server's error.
pub(crate) fn sleep(at_most_us: u64, awaited: Awaited) {
    const LONGEST_MS: u64 = i32::MAX as u64;
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    let ms = at_most_us.div_ceil(1_000).min(LONGEST_MS) as i64;
    // SAFETY: as above; no lightweight lock is held here.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events as c_int, ms, awaited.event());
        pg_sys::check_for_interrupts!();
    }
}

/// Whether the client has closed its connection. A process without one has no client that could.
pub(crate) fn is_client_gone() -> bool {
    // SAFETY: the check reads the state of the socket, where there is one.
    unsafe { !pg_sys::MyProcPort.is_null() && !pq_check_connection() }
}

unsafe extern "C-unwind" {
    /// The bindings lack it: `libpq.h` declares it so.
    fn pq_check_connection() -> bool;
}

/// Holds back no vacuum from now on: gives up the snapshots of the session's portals, as COMMIT in a procedure
/// does. Only in a CALL outside a transaction block; the server takes a new one when the next statement needs it.
pub(crate) fn give_up_snapshots() {
    // SAFETY: the call of a procedure that is not atomic has no snapshots but those of portals. Cursors that are pinned keep
    // their rows, as at COMMIT.
    unsafe {
        if pg_sys::ActiveSnapshotSet() {
            pg_sys::HoldPinnedPortals();
            pg_sys::ForgetPortalSnapshots();
        }
        session::give_up_result_snapshot();
        forget_catalog_snapshot();
    }
}

/// The same of the snapshot that look-ups in the catalog leave behind.
pub(crate) fn forget_catalog_snapshot() {
    // SAFETY: the next look-up takes a new one.
    unsafe { pg_sys::InvalidateCatalogSnapshot() };
}
