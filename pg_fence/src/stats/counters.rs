//! The counters in shared memory: a fixed number of entries, in blocks with a lightweight lock each.
//!
//! Preloaded, the memory is reserved when the server starts; else the server's registry of shared segments gives it at
//! the first count, which it can from version 17 on. Invariants: an entry is read and written under the lock of its
//! block alone; whoever holds one does nothing that can fail, and takes no second one. Where there is no memory, nothing
//! is counted, and that is no error.

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
use crate::server::log;
use crate::server::raw;
use crate::server::session::{self, MainThread};
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
use pg_forms::text;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::{Cell, UnsafeCell};
use std::ffi::CStr;

/// The entries of a kind are spread over so many blocks by their keys: two calls wait for each other, for some hundred
/// instructions, if theirs lie in one.
const BLOCKS: usize = 16;
/// Entries of a block. What finds no place is counted with the others of its kind.
const ENTRIES: usize = 128;
/// A name is for people; keys are compared by their hash.
pub(crate) const MAX_NAME_BYTES: usize = 128;
/// A new key that would lie so many entries behind its first place makes the caller give back the entries of the block
/// whose tables are gone, if it has rested.
const CROWDED: usize = 8;
/// How long a session rests between two searches of a block for what is gone.
const RETURN_REST_US: i64 = 1_000_000;
/// How long a session rests after the memory could not be had.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
const ATTACH_REST_US: i64 = 60_000_000;

/// The number is that of the layout below. Sessions of another library version get a segment of their own.
const SEGMENT: &CStr = c"pg_fence counters 2";
/// What `pg_stat_activity` shows as the event that a session waits for.
const TRANCHE: &CStr = c"pg_fence";

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counter {
    /// Claims of rows, transactions let in by a guard.
    Claims,
    /// The same, refused as stale.
    ClaimsStale,
    /// Updates, writes and deletes.
    Writes,
    /// The same, refused as stale.
    WritesStale,
    /// Refused as unclaimed.
    Unclaimed,
    /// Refused on a protected table, for no fence.
    UnfencedRefused,
}

/// How many counters there are.
pub(crate) const COUNTERS: usize = Counter::UnfencedRefused as usize + 1;

/// Tables or guards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Tables, known by their oid.
    Table,
    /// Guards, known by a hash of their name.
    Guard,
}

/// What an entry counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    /// The database.
    pub(crate) database: u32,
    /// The oid of a table, the hash of a guard's name.
    pub(crate) object: u64,
}

/// The newest stale call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stale {
    /// When, in the server's own time.
    pub(crate) at: i64,
    /// The fence that was refused.
    pub(crate) fence: i64,
    /// The newer one that was stored then.
    pub(crate) stored: i64,
}

/// An entry as it was read.
pub(crate) struct Counted {
    /// The database, and the table or guard; `None` for the others of a kind.
    pub(crate) key: Option<Key>,
    /// The name that it was given.
    pub(crate) name: Vec<u8>,
    /// By [`Counter`].
    pub(crate) counts: [u64; COUNTERS],
    /// The newest stale call.
    pub(crate) stale: Option<Stale>,
}

/// All zeros but for the locks is an empty table.
#[repr(C)]
struct Shared {
    tranche: i32,
    tables: [Block; BLOCKS],
    guards: [Block; BLOCKS],
}

/// Begins a cache line of its own, as others write the blocks beside it.
#[repr(C, align(128))]
struct Block {
    lock: UnsafeCell<pg_sys::LWLock>,
    contents: UnsafeCell<Contents>,
}

#[repr(C)]
struct Contents {
    entries: [Entry; ENTRIES],
    others: Entry,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    is_used: bool,
    name_length: u8,
    database: u32,
    object: u64,
    counts: [u64; COUNTERS],
    stale_at: i64,
    stale_fence: i64,
    stale_stored: i64,
    name: [u8; MAX_NAME_BYTES],
}

const _: () = assert!(MAX_NAME_BYTES <= u8::MAX as usize);

/// The memory, as far as this process has it.
#[derive(Clone, Copy)]
enum Memory {
    Unasked,
    Attached(&'static Shared),
    /// It could not be had at this time.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    Refused(i64),
}

static MEMORY: MainThread<Cell<Memory>> = MainThread(Cell::new(Memory::Unasked));
/// When this session last searched a block of this number for what is gone, in the server's own time.
static RETURNED_AT: MainThread<[Cell<i64>; BLOCKS]> = MainThread([const { Cell::new(i64::MIN) }; BLOCKS]);
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

/// Whether there is memory for counters now: not before version 17 without preloading.
pub(crate) fn are_there() -> bool {
    shared().is_some()
}

/// Whether memory can be had without preloading, so that its lack is a fault.
pub(crate) const CAN_ATTACH: bool = cfg!(not(any(feature = "pg15", feature = "pg16")));

/// Counts one call. `subject` is asked when the key has no entry yet, never under a lock.
pub(crate) fn count(kind: Kind, key: Key, counter: Counter, stale: Option<Stale>, subject: &impl Named) {
    let Some(shared) = shared() else { return };
    let block = &shared.of(kind)[key.block()];
    let add = |entry: &mut Entry| entry.count(counter, stale);
    if block.with(|contents| contents.find(key).map(add)).is_some() {
        return;
    }
    let name = subject.name();
    if name.is_some() && block.with(|contents| contents.is_crowded(key)) && has_rested(&RETURNED_AT[key.block()]) {
        block.give_back(|key| subject.is_gone(key));
    }
    block.with(|contents| match name.as_deref().and_then(|name| contents.find_or_make(key, name)) {
        Some(entry) => entry.count(counter, stale),
        None => contents.others.count(counter, stale),
    });
}

/// What the caller knows of the subjects of entries.
pub(crate) trait Named {
    /// The name of a new entry; `None` where it shall have none, and is counted with the others.
    fn name(&self) -> Option<Vec<u8>>;

    /// Whether what this key counts can never be counted again: its table or its database has been dropped.
    fn is_gone(&self, key: Key) -> bool;
}

/// All entries of a database, and last the others of the kind, of whatever database.
pub(crate) fn read(kind: Kind, database: u32) -> Vec<Counted> {
    let Some(shared) = shared() else { return Vec::new() };
    let mut others = Entry::UNUSED;
    let mut found = Vec::new();
    for block in shared.of(kind) {
        let mut copies = Vec::with_capacity(ENTRIES);
        block.with(|contents| {
            copies.extend(contents.entries.iter().filter(|entry| entry.is_of(database)));
            others.add(&contents.others);
        });
        found.extend(copies.iter().map(Entry::read));
    }
    found.push(Counted { key: None, ..others.read() });
    found
}

/// Forgets the counts of a database, and those of the others of each kind.
pub(crate) fn reset(database: u32) {
    let Some(shared) = shared() else { return };
    for block in shared.blocks() {
        block.with(|contents| {
            contents.others = Entry::UNUSED;
            contents.free(|entry| entry.database == database);
        });
    }
}

impl Shared {
    fn of(&self, kind: Kind) -> &[Block; BLOCKS] {
        match kind {
            Kind::Table => &self.tables,
            Kind::Guard => &self.guards,
        }
    }

    fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.tables.iter().chain(&self.guards)
    }
}

impl Block {
    /// Does something with the contents under the lock. It may not call the server.
    fn with<T>(&self, act: impl FnOnce(&mut Contents) -> T) -> T {
        // SAFETY: the lock is initialised, and not held by this process: nobody takes two. Nothing that `act` does ends
        // by an error or a panic, so the lock is released, and nobody else uses the contents meanwhile.
        unsafe {
            raw::LWLockAcquire(self.lock.get(), pg_sys::LWLockMode::LW_EXCLUSIVE);
            let answer = act(&mut *self.contents.get());
            raw::LWLockRelease(self.lock.get());
            answer
        }
    }

    /// Gives back the entries of what is gone. Whoever makes the same anew meanwhile has it counted from the start.
    fn give_back(&self, is_gone: impl Fn(Key) -> bool) {
        let mut keys = Vec::with_capacity(ENTRIES);
        self.with(|contents| keys.extend(contents.entries.iter().filter(|entry| entry.is_used).map(Entry::key)));
        keys.retain(|key| is_gone(*key));
        self.with(|contents| contents.free(|entry| keys.contains(&entry.key())));
    }
}

impl Contents {
    /// The entry of a key. It lies at its first place or behind: those before it may have been given back since.
    fn find(&mut self, key: Key) -> Option<&mut Entry> {
        let place = key.places().find(|&place| self.entries[place].is_used && self.entries[place].key() == key)?;
        Some(&mut self.entries[place])
    }

    /// The entry of a key, made if there is none and there is room.
    fn find_or_make(&mut self, key: Key, name: &[u8]) -> Option<&mut Entry> {
        if self.find(key).is_none() {
            let place = key.places().find(|&place| !self.entries[place].is_used)?;
            self.entries[place] = Entry::new(key, name);
        }
        self.find(key)
    }

    /// Whether a new entry would lie far behind its first place, or nowhere.
    fn is_crowded(&self, key: Key) -> bool {
        key.places().take(CROWDED).all(|place| self.entries[place].is_used)
    }

    fn free(&mut self, is_unneeded: impl Fn(&Entry) -> bool) {
        for entry in self.entries.iter_mut().filter(|entry| entry.is_used && is_unneeded(entry)) {
            *entry = Entry::UNUSED;
        }
    }
}

impl Key {
    fn mixed(self) -> u64 {
        const MIX: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 divided by the golden ratio
        (self.object ^ (u64::from(self.database) << 32)).wrapping_mul(MIX) >> 32
    }

    fn block(self) -> usize {
        self.mixed() as usize % BLOCKS
    }

    /// Where its entry can lie in its block, in the order of the search.
    fn places(self) -> impl Iterator<Item = usize> {
        let first = self.mixed() as usize / BLOCKS;
        (0..ENTRIES).map(move |n| (first + n) % ENTRIES)
    }
}

impl Entry {
    const UNUSED: Entry = Entry {
        is_used: false,
        name_length: 0,
        database: 0,
        object: 0,
        counts: [0; COUNTERS],
        stale_at: 0,
        stale_fence: 0,
        stale_stored: 0,
        name: [0; MAX_NAME_BYTES],
    };

    fn new(key: Key, name: &[u8]) -> Entry {
        let mut entry = Entry { is_used: true, database: key.database, object: key.object, ..Entry::UNUSED };
        let length = name.len().min(MAX_NAME_BYTES);
        entry.name_length = length as u8;
        entry.name[..length].copy_from_slice(&name[..length]);
        entry
    }

    fn key(&self) -> Key {
        Key { database: self.database, object: self.object }
    }

    fn is_of(&self, database: u32) -> bool {
        self.is_used && self.database == database
    }

    fn count(&mut self, counter: Counter, stale: Option<Stale>) {
        self.counts[counter as usize] += 1;
        if let Some(stale) = stale {
            (self.stale_at, self.stale_fence, self.stale_stored) = (stale.at, stale.fence, stale.stored);
        }
    }

    fn add(&mut self, other: &Entry) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        if other.stale_at > self.stale_at {
            let newest = (other.stale_at, other.stale_fence, other.stale_stored);
            (self.stale_at, self.stale_fence, self.stale_stored) = newest;
        }
    }

    fn read(&self) -> Counted {
        let stale = Stale { at: self.stale_at, fence: self.stale_fence, stored: self.stale_stored };
        Counted {
            key: Some(self.key()),
            name: self.name[..usize::from(self.name_length).min(MAX_NAME_BYTES)].to_vec(),
            counts: self.counts,
            stale: (stale.fence != 0).then_some(stale),
        }
    }
}

/// The memory; `None` where it cannot be had now, for example because the file system of shared memory is full. A claim
/// must not fail for a counter.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
fn shared() -> Option<&'static Shared> {
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
fn shared() -> Option<&'static Shared> {
    match MEMORY.get() {
        Memory::Attached(shared) => Some(shared),
        Memory::Unasked => None,
    }
}

/// Whether this session has rested since it did this last.
fn has_rested(last: &Cell<i64>) -> bool {
    let now = session::now();
    let rested = now.saturating_sub(last.get()) >= RETURN_REST_US;
    if rested {
        last.set(now);
    }
    rested
}

/// From the server's registry of shared segments, which makes it for whoever asks first.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
fn segment() -> Option<&'static Shared> {
    let mut found = false;
    // SAFETY: the segment has the size of the table, is made ready before anyone sees it, and lives as long as the server.
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
