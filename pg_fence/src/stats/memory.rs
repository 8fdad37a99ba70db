//! The shared memory of the counters: its layout, its locks, and how a session has it.
//!
//! Preloaded, the memory is reserved when the server starts; else the server's registry of shared segments gives it at
//! the first count, which it can from version 17 on. Invariant: an entry is read and written under the lock of its
//! block alone; whoever holds one does nothing that can fail, and takes no second one.

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
use crate::server::log;
use crate::server::raw;
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
use crate::server::session;
use crate::server::session::MainThread;
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
use pg_forms::text;
use pgrx::pg_sys;
use pgrx::prelude::*;
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
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
const ATTACH_REST_US: i64 = 60_000_000;

/// The number is that of the layout below. Sessions of another library version get a segment of their own.
const SEGMENT: &CStr = c"pg_fence counters 3";
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
    /// Refused on a protected table, for no fence.
    UnfencedRefused,
}

/// How many counters there are.
pub(crate) const COUNTERS: usize = Counter::UnfencedRefused as usize + 1;

/// All zeros but for the locks is an empty table.
#[repr(C)]
pub(crate) struct Shared {
    tranche: i32,
    pub(crate) tables: [Block; BLOCKS],
    pub(crate) guards: [Block; BLOCKS],
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
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    Refused(i64),
}

static MEMORY: MainThread<Cell<Memory>> = MainThread(Cell::new(Memory::Unasked));
static REQUESTED_BEFORE: MainThread<Cell<pg_sys::shmem_request_hook_type>> = MainThread(Cell::new(None));
static STARTED_BEFORE: MainThread<Cell<pg_sys::shmem_startup_hook_type>> = MainThread(Cell::new(None));

// SAFETY: the contents of a block are used under its lock, by any number of processes of one thread each.
unsafe impl Sync for Block {}

/// Reserves the memory, if the library is being preloaded. Called once, when it is loaded.
pub(crate) fn reserve() {
    // SAFETY: the hooks are the server's to call, once each; those that were there before are called first.
    unsafe {
        if pg_sys::process_shared_preload_libraries_in_progress {
            REQUESTED_BEFORE.set(pg_sys::shmem_request_hook);
            STARTED_BEFORE.set(pg_sys::shmem_startup_hook);
            pg_sys::shmem_request_hook = Some(request);
            pg_sys::shmem_startup_hook = Some(start);
        }
    }
}

/// Whether memory can be had without preloading, so that its lack is a fault.
pub(crate) const CAN_ATTACH: bool = cfg!(not(any(feature = "pg15", feature = "pg16")));

impl Shared {
    /// Those of both kinds.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.tables.iter().chain(&self.guards)
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

/// The memory; `None` where it cannot be had now, for example because the file system of shared memory is full. A claim
/// must not fail for a counter.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub(crate) fn shared() -> Option<&'static Shared> {
    match MEMORY.get() {
        Memory::Attached(shared) => return Some(shared),
        Memory::Refused(at) if session::now().saturating_sub(at) < ATTACH_REST_US => return None,
        Memory::Unasked | Memory::Refused(_) => {}
    }
    let memory = session::unless_refused(segment).flatten();
    if memory.is_none() {
        log::log_line(text![
            "pg_fence cannot have its shared memory, so this session does not count its calls for a while"
        ]);
    }
    MEMORY.set(memory.map_or_else(|| Memory::Refused(session::now()), Memory::Attached));
    memory
}

/// The memory that was reserved when the server started.
#[cfg(any(feature = "pg15", feature = "pg16"))]
pub(crate) fn shared() -> Option<&'static Shared> {
    match MEMORY.get() {
        Memory::Attached(shared) => Some(shared),
        Memory::Unasked => None,
    }
}

/// From the server's registry of shared segments, which makes it for whoever asks first.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
fn segment() -> Option<&'static Shared> {
    let mut found = false;
    // SAFETY: the segment has the size of the table, is made ready before anyone sees it, and lives as long as the
    // server.
    unsafe {
        #[cfg(not(feature = "pg19"))]
        let segment =
            pg_sys::GetNamedDSMSegment(SEGMENT.as_ptr(), size_of::<Shared>(), Some(make_ready_here), &mut found);
        #[cfg(feature = "pg19")]
        let segment = pg_sys::GetNamedDSMSegment(
            SEGMENT.as_ptr(),
            size_of::<Shared>(),
            Some(make_ready_here),
            &mut found,
            std::ptr::null_mut(),
        );
        segment.cast::<Shared>().as_ref().inspect(|shared| register(shared))
    }
}

#[cfg(any(feature = "pg17", feature = "pg18"))]
#[pg_guard]
unsafe extern "C-unwind" fn make_ready_here(segment: *mut std::ffi::c_void) {
    // SAFETY: the segment has the size of the table, and nobody else uses it yet.
    unsafe { make_ready(segment.cast()) };
}

#[cfg(feature = "pg19")]
#[pg_guard]
unsafe extern "C-unwind" fn make_ready_here(segment: *mut std::ffi::c_void, _argument: *mut std::ffi::c_void) {
    // SAFETY: the segment has the size of the table, and nobody else uses it yet.
    unsafe { make_ready(segment.cast()) };
}

/// # Safety
///
/// The memory has the size of the table, and nobody else uses it.
unsafe fn make_ready(memory: *mut Shared) {
    // SAFETY: as the caller promises; all zeros is a value of the table.
    unsafe {
        memory.write_bytes(0, 1);
        #[cfg(not(feature = "pg19"))]
        let tranche = pg_sys::LWLockNewTrancheId();
        #[cfg(feature = "pg19")]
        let tranche = pg_sys::LWLockNewTrancheId(TRANCHE.as_ptr());
        (*memory).tranche = tranche;
        for block in (*memory).blocks() {
            pg_sys::LWLockInitialize(block.lock.get(), tranche);
        }
    }
}

/// Names the locks for this process. From version 19 on all processes know the name.
fn register(shared: &Shared) {
    // SAFETY: the number is that of the locks, and the name lives for ever.
    #[cfg(not(feature = "pg19"))]
    unsafe {
        pg_sys::LWLockRegisterTranche(shared.tranche, TRANCHE.as_ptr());
    }
    #[cfg(feature = "pg19")]
    let _ = shared;
}

#[pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: the server calls this hook when memory may be requested.
    unsafe {
        if let Some(before) = REQUESTED_BEFORE.get() {
            before();
        }
        pg_sys::RequestAddinShmemSpace(size_of::<Shared>());
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn start() {
    // SAFETY: the server calls this hook when the memory is there, in the one process that then starts all others; the
    // size is the one that was requested. It is called again after a crash, with new memory.
    unsafe {
        if let Some(before) = STARTED_BEFORE.get() {
            before();
        }
        let mut found = false;
        let memory = pg_sys::ShmemInitStruct(SEGMENT.as_ptr(), size_of::<Shared>(), &mut found).cast::<Shared>();
        if !found {
            make_ready(memory);
        }
        if let Some(shared) = memory.as_ref() {
            register(shared);
            MEMORY.set(Memory::Attached(shared));
        }
    }
}
