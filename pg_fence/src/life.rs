//! The life of this server: which versions of rows it has written since it was started, promoted or lost its shared memory.
//!
//! The rule is in `fence`; here is where a life begins. The first number of a life is the next one when a session first asks,
//! after recovery; a transaction that is older and still runs is of this life too, and lowers it. It is the same for all
//! databases and sessions. Invariant: no number of an earlier life is one of this. Where there is no shared memory each
//! session keeps its own, which is later and so refuses more.

use crate::errors::Refused;
use crate::server::call::{Call, Reply};
use crate::server::log;
use crate::server::session::{self, MainThread};
use crate::settings;
use pg_forms::text;
use pgrx::pg_sys;
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicI64, AtomicU64};

/// The number is that of the layout below.
const SEGMENT: &CStr = c"pg_fence life 1";
/// No transaction has this number. A version whose table access method keeps none has it, too.
const NO_TRANSACTION: u32 = 0;
const UNKNOWN: u64 = 0;

/// All zeros is a life that has not begun.
#[repr(C)]
struct Life {
    first: AtomicU64,
    /// When a session first asked, in the server's own time.
    began_at: AtomicI64,
}

/// Where there is no shared memory.
static OWN: Life = Life { first: AtomicU64::new(UNKNOWN), began_at: AtomicI64::new(0) };
static LIFE: MainThread<Cell<Option<&'static Life>>> = MainThread(Cell::new(None));
/// Whether a version of another life was met since this was cleared.
static OUTLIVED: MainThread<Cell<bool>> = MainThread(Cell::new(false));

/// Begins the life as early as can be: when a session loads the library. Called once.
pub(crate) fn loaded() {
    if session::is_in_transaction() && !session::is_parallel_worker() {
        begin();
    }
}

/// The first number of this life, which begins now if it has not. To be called before a claim writes its version.
pub(crate) fn begin() -> u64 {
    let (first, own) = (life().first.load(Acquire), session::transaction());
    match own {
        Some(own) if own < first || first == UNKNOWN => lower(own),
        None if first == UNKNOWN => lower(session::next_transaction()),
        _ => first,
    }
}

/// Whether a version was written in this life.
pub(crate) fn has(written_by: u32) -> bool {
    if !settings::checks_life() || written_by == NO_TRANSACTION {
        return true;
    }
    let first = begin();
    fence::life::is_of_this_life(written_by, first, session::next_transaction())
}

/// When this life began, as far as a session has seen it, as error texts give it.
pub(crate) fn since() -> CString {
    session::time_text(life().began_at.load(Acquire))
}

/// `in_life(written_by xid)`, the condition of statements that rely on a claim: whether a version was written in this life.
pub(crate) fn in_life(call: &Call) -> Result<Reply, Refused> {
    let has = has(call.arguments().transaction().unwrap_or(NO_TRANSACTION));
    if !has {
        OUTLIVED.set(true);
    }
    Ok(Reply::from(has))
}

/// Learns whether a statement that is run meanwhile meets a version of another life.
pub(crate) struct Outlived(bool);

impl Outlived {
    /// Begins to look.
    pub(crate) fn watch() -> Outlived {
        Outlived(OUTLIVED.replace(false))
    }

    /// Whether it has met one.
    pub(crate) fn is_met(&self) -> bool {
        OUTLIVED.get()
    }
}

impl Drop for Outlived {
    fn drop(&mut self) {
        OUTLIVED.set(self.0);
    }
}

/// Before the end of recovery no life has begun, and nothing is of it.
fn lower(number: u64) -> u64 {
    if session::is_in_recovery() {
        return u64::MAX;
    }
    let life = life();
    let _ = life.began_at.compare_exchange(0, session::now(), AcqRel, Acquire);
    let lower = |first| (first == UNKNOWN || number < first).then_some(number);
    match life.first.fetch_update(AcqRel, Acquire, lower) {
        Ok(_) => number,
        Err(first) => first,
    }
}

fn life() -> &'static Life {
    if let Some(life) = LIFE.get() {
        return life;
    }
    let shared = session::unless_refused(segment).flatten();
    if shared.is_none() {
        log::log_line(text![
            "pg_fence cannot have its shared memory, so this session takes no claim for one of this life of the server that ",
            "was made before it"
        ]);
    }
    let life = shared.unwrap_or(&OWN);
    LIFE.set(Some(life));
    life
}

/// From the server's registry of shared segments, which makes it for whoever asks first.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
fn segment() -> Option<&'static Life> {
    let mut found = false;
    // SAFETY: the segment has the size of the life, is filled with zeros before anyone sees it, and lives as long as the
    // server.
    unsafe {
        #[cfg(not(feature = "pg19"))]
        let segment = pg_sys::GetNamedDSMSegment(SEGMENT.as_ptr(), size_of::<Life>(), Some(clear), &mut found);
        #[cfg(feature = "pg19")]
        let segment = pg_sys::GetNamedDSMSegment(
            SEGMENT.as_ptr(),
            size_of::<Life>(),
            Some(clear),
            &mut found,
            std::ptr::null_mut(),
        );
        segment.cast::<Life>().as_ref()
    }
}

/// From what the server's main segment has left for such needs: some bytes, under the lock that guards it.
#[cfg(any(feature = "pg15", feature = "pg16"))]
fn segment() -> Option<&'static Life> {
    const ADDIN_SHMEM_INIT_LOCK: usize = 21;
    let mut found = false;
    // SAFETY: the lock is one of the server's individual ones, known by its number. The memory has the size of the life and
    // lives as long as the server.
    unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(ADDIN_SHMEM_INIT_LOCK)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let memory = pg_sys::ShmemInitStruct(SEGMENT.as_ptr(), size_of::<Life>(), &mut found).cast::<Life>();
        if !found {
            memory.write_bytes(0, 1);
        }
        pg_sys::LWLockRelease(lock);
        memory.as_ref()
    }
}

#[cfg(any(feature = "pg17", feature = "pg18"))]
#[pg_guard]
unsafe extern "C-unwind" fn clear(segment: *mut std::ffi::c_void) {
    // SAFETY: the segment has the size of the life, and nobody else uses it yet.
    unsafe { segment.cast::<Life>().write_bytes(0, 1) };
}

#[cfg(feature = "pg19")]
#[pg_guard]
unsafe extern "C-unwind" fn clear(segment: *mut std::ffi::c_void, _argument: *mut std::ffi::c_void) {
    // SAFETY: the segment has the size of the life, and nobody else uses it yet.
    unsafe { segment.cast::<Life>().write_bytes(0, 1) };
}
