//! The shared memory of the counters: its layout, its locks, and when a session asks for it.
//!
//! Preloaded, the memory is reserved when the server starts; else the server's registry of shared segments gives it at
//! the first count, which it can from version 17 on. Invariant: an entry is read and written under the lock of its
//! block alone; whoever holds one does nothing that can fail, and takes no second one.

use crate::server::log;
use crate::server::raw;
use crate::server::segment::{self, Segment};
use crate::server::session::{self, MainThread};
use pg_forms::text;
use pgrx::pg_sys;
use std::cell::{Cell, UnsafeCell};
use std::ffi::CStr;

/// The entries of a kind are spread over so many blocks by their keys: two calls wait for each other, for some hundred
/// instructions, if theirs lie in one.
pub(crate) const BLOCKS: usize = 16;
/// Entries of a block. What finds no room is counted with the others of its kind.
pub(crate) const ENTRIES: usize = 128;
/// A name is for people; keys are compared by their hash.
pub(crate) const MAX_NAME_BYTES: usize = 128;
/// How long a session waits before it asks for the memory again.
const ATTACH_REST_US: i64 = 60_000_000;

/// What `pg_stat_activity` shows as the event that a session waits for.
const TRANCHE: &CStr = c"pg_fence";

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counter {
    /// Claims of rows; transactions that a guard admitted.
    Claims,
    /// The same, refused as stale.
    ClaimsStale,
    /// Updates, writes and deletes.
    Writes,
    /// The same, refused as stale.
    WritesStale,
    /// Refused as unclaimed.
    Unclaimed,
    /// Refused because the claim was made in another life of the server.
    Outlived,
    /// Refused because the fence is another owner's.
    DuplicateFence,
    /// Refused on a protected table, for no fence.
    UnfencedRefused,
    /// Locks that were granted.
    Grants,
    /// Calls that were answered with nothing: the lock was busy, or the wait expired.
    Busy,
    /// Calls that had to wait.
    Waits,
    /// How long they waited, in microseconds.
    WaitedUs,
    /// Releases of a lease that had ended.
    LateReleases,
    /// Holders of a guard that an operator has terminated.
    Evictions,
}

/// How many counters there are.
pub(crate) const COUNTERS: usize = Counter::Evictions as usize + 1;

/// All zeros but for the locks is an empty table. The number in its name is that of the layout: sessions of another library
/// version get a segment of their own.
#[repr(C)]
pub(crate) struct Shared {
    tranche: i32,
    pub(crate) tables: [Block; BLOCKS],
    pub(crate) guards: [Block; BLOCKS],
    pub(crate) locks: [Block; BLOCKS],
}

/// Begins a cache line of its own, as others write the blocks beside it.
#[repr(C, align(128))]
pub(crate) struct Block {
    lock: UnsafeCell<pg_sys::LWLock>,
    contents: UnsafeCell<Contents>,
}

#[repr(C)]
pub(crate) struct Contents {
    pub(crate) entries: [Entry; ENTRIES],
    pub(crate) others: Entry,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) is_used: bool,
    pub(crate) name_length: u8,
    pub(crate) database: u32,
    pub(crate) object: u64,
    pub(crate) counts: [u64; COUNTERS],
    pub(crate) stale_at: i64,
    pub(crate) stale_fence: i64,
    pub(crate) stale_stored: i64,
    pub(crate) name: [u8; MAX_NAME_BYTES],
}

const _: () = assert!(MAX_NAME_BYTES <= u8::MAX as usize);

/// The memory, as far as this process has it.
#[derive(Clone, Copy)]
enum Memory {
    Unasked,
    Attached(&'static Shared),
    /// It was refused at this time.
    Refused(i64),
}

static MEMORY: MainThread<Cell<Memory>> = MainThread(Cell::new(Memory::Unasked));

// SAFETY: the contents of a block are used under its lock, by any number of processes of one thread each.
unsafe impl Sync for Block {}

/// Reserves the memory, if the library is being preloaded. Called once, when it is loaded.
pub(crate) fn reserve() {
    segment::reserve::<Shared>();
}

impl Shared {
    /// Those of all kinds.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.tables.iter().chain(&self.guards).chain(&self.locks)
    }
}

impl Block {
    /// Does something with the contents under the lock. It may not call the server.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Contents) -> T) -> T {
        // SAFETY: the lock is initialised, and not held by this process: nobody takes two. Nothing that `act` does ends
        // by an error or a panic, so the lock is released, and nobody else uses the contents meanwhile.
        unsafe {
            raw::LWLockAcquire(self.lock.get(), pg_sys::LWLockMode::LW_EXCLUSIVE);
            let answer = act(&mut *self.contents.get());
            raw::LWLockRelease(self.lock.get());
            answer
        }
    }
}

/// Asks for the memory, if this process has not asked yet.
pub(crate) fn ask() {
    if matches!(MEMORY.get(), Memory::Unasked) {
        shared();
    }
}

/// The memory, if this process has it already. Asks the server for nothing.
pub(crate) fn attached() -> Option<&'static Shared> {
    match MEMORY.get() {
        Memory::Attached(shared) => Some(shared),
        Memory::Unasked | Memory::Refused(_) => None,
    }
}

/// The memory; `None` where it cannot be had now: not without preloading before version 17, or because the file system of
/// shared memory is full. A claim must not fail for a counter.
pub(crate) fn shared() -> Option<&'static Shared> {
    match MEMORY.get() {
        Memory::Attached(shared) => return Some(shared),
        _ if !segment::CAN_ATTACH => return None,
        Memory::Refused(at) if session::now().saturating_sub(at) < ATTACH_REST_US => return None,
        Memory::Unasked | Memory::Refused(_) => {}
    }
    let memory = session::unless_refused(segment::registered::<Shared>).flatten();
    if memory.is_none() {
        MEMORY.set(Memory::Refused(session::now()));
        log::log_line(text![
            "pg_fence cannot have its shared memory, so this session does not count its calls for a while"
        ]);
    }
    memory
}

// SAFETY: all zeros is an empty table, and the locks are made before anyone takes one.
unsafe impl Segment for Shared {
    const NAME: &'static CStr = c"pg_fence counters 4";

    fn make_ready(&mut self) {
        // SAFETY: nobody uses the locks yet. The name lives for ever.
        unsafe {
            #[cfg(not(feature = "pg19"))]
            let tranche = pg_sys::LWLockNewTrancheId();
            #[cfg(feature = "pg19")]
            let tranche = pg_sys::LWLockNewTrancheId(TRANCHE.as_ptr());
            self.tranche = tranche;
            for block in self.blocks() {
                pg_sys::LWLockInitialize(block.lock.get(), tranche);
            }
        }
    }

    /// Names the locks for this process. From version 19 on all processes know the name.
    fn attached(&'static self) {
        // SAFETY: the number is that of the locks, and the name lives for ever.
        #[cfg(not(feature = "pg19"))]
        unsafe {
            pg_sys::LWLockRegisterTranche(self.tranche, TRANCHE.as_ptr());
        }
        MEMORY.set(Memory::Attached(self));
    }
}
