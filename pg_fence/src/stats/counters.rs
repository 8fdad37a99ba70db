//! The counters in shared memory: a fixed number of entries, found by hash, without a lock that a writer could wait for.
//!
//! Preloaded, the memory is reserved when the server starts; else the server's registry of shared segments gives it at
//! the first count, which it can from version 17 on. Invariants: an entry whose state is `NAMED` keeps its key until it
//! is freed; all zeros is an empty table.

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
use crate::server::log;
use crate::server::session::{self, MainThread};
use pg_forms::text;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64};

/// Entries of each kind: tables must not be crowded out by guards, which can have any number of names.
const ENTRIES: usize = 1_024;
/// How many entries are looked at for a key. One that finds no place there is counted with the others of its kind.
const MAX_PROBES: usize = 64;
/// A name is for people; keys are compared by their hash.
pub(crate) const MAX_NAME_BYTES: usize = 128;
/// Another writer holds an entry for some ten instructions. One that does not let go is passed over.
const MAX_SPINS: usize = 10_000;

/// A key that is not among so many entries makes the caller give back the entries of what is gone, if it has rested.
const CROWDED_PROBES: usize = 8;
/// How long a session rests between two such times: it looks at every entry of its database.
const RETURN_REST_US: i64 = 1_000_000;
/// How long a session rests after the memory could not be had.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
const ATTACH_REST_US: i64 = 60_000_000;

/// The number is that of the layout below. Sessions of another library version get a segment of their own.
const SEGMENT: &CStr = c"pg_fence counters 1";

const FREE: u32 = 0;
const BEING_NAMED: u32 = 1;
const NAMED: u32 = 2;
/// Freed by a reset: free to be named, but others may lie behind it.
const FREED: u32 = 3;

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
#[derive(Clone, Copy)]
pub(crate) struct Key {
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
    pub(crate) name: Vec<u8>,
    /// By [`Counter`].
    pub(crate) counts: [u64; COUNTERS],
    pub(crate) stale: Option<Stale>,
}

#[repr(C)]
struct Shared {
    tables: Entries,
    guards: Entries,
}

#[repr(C)]
struct Entries {
    named: [Entry; ENTRIES],
    others: Entry,
}

/// All fields are atomic, so that any number of processes can use them; all zeros is a free one.
#[repr(C)]
struct Entry {
    state: AtomicU32,
    database: AtomicU32,
    object: AtomicU64,
    counts: [AtomicU64; COUNTERS],
    stale_is_held: AtomicU32,
    name_length: AtomicU32,
    stale_at: AtomicI64,
    stale_fence: AtomicI64,
    stale_stored: AtomicI64,
    name: [AtomicU8; MAX_NAME_BYTES],
}

static SHARED: MainThread<Cell<Option<&'static Shared>>> = MainThread(Cell::new(None));
static REQUESTED_BEFORE: MainThread<Cell<pg_sys::shmem_request_hook_type>> = MainThread(Cell::new(None));
static STARTED_BEFORE: MainThread<Cell<pg_sys::shmem_startup_hook_type>> = MainThread(Cell::new(None));

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

/// Whether there is memory for counters: not before version 17 without preloading.
pub(crate) fn are_there() -> bool {
    shared().is_some()
}

/// Counts one call. `subject` is asked when the key has no entry yet.
pub(crate) fn count(kind: Kind, key: Key, counter: Counter, stale: Option<Stale>, subject: &impl Named) {
    let Some(shared) = shared() else { return };
    let entry = shared.of(kind).entry(key, subject);
    entry.counts[counter as usize].fetch_add(1, Relaxed);
    if let Some(stale) = stale {
        entry.set_stale(stale);
    }
}

/// All entries of a database, and last the others of the kind, of whatever database.
pub(crate) fn read(kind: Kind, database: u32) -> Vec<Counted> {
    let Some(shared) = shared() else { return Vec::new() };
    let entries = shared.of(kind);
    let named = entries.named.iter().filter(|entry| entry.is_of(database)).map(Entry::read);
    named.chain([Counted { key: None, ..entries.others.read() }]).collect()
}

/// Forgets the counts of a database, and those of the others of each kind.
pub(crate) fn reset(database: u32) {
    let Some(shared) = shared() else { return };
    for entries in [&shared.tables, &shared.guards] {
        entries.others.clear();
        entries.named.iter().filter(|entry| entry.is_of(database)).for_each(Entry::free);
    }
}

/// What the caller knows of the subjects of entries.
pub(crate) trait Named {
    /// The name of a new entry; `None` where it shall have none, and is counted with the others.
    fn name(&self) -> Option<Vec<u8>>;

    /// Whether what this key counts can never be counted again: its table or its database has been dropped.
    fn is_gone(&self, key: Key) -> bool;
}

impl Shared {
    fn of(&self, kind: Kind) -> &Entries {
        match kind {
            Kind::Table => &self.tables,
            Kind::Guard => &self.guards,
        }
    }
}

impl Entries {
    /// The entry of a key, made if there is none. Two that are made at the same moment are added up when they are read.
    fn entry(&self, key: Key, subject: &impl Named) -> &Entry {
        let mut place = self.place_of(key);
        if let Some(entry) = place.found {
            return entry;
        }
        let Some(name) = subject.name() else { return &self.others };
        if place.passed >= CROWDED_PROBES && has_rested(&RETURNED_AT, RETURN_REST_US) {
            self.give_back(|key| subject.is_gone(key));
            place = self.place_of(key);
        }
        match place.free {
            Some(entry) if entry.name(key, &name) => entry,
            // Another process has just taken it, and perhaps for the same key.
            Some(_) => self.place_of(key).found.unwrap_or(&self.others),
            None => &self.others,
        }
    }

    fn place_of(&self, key: Key) -> Place<'_> {
        let first = key.place();
        let mut place = Place { found: None, free: None, passed: 0 };
        for entry in (0..MAX_PROBES).map(|n| &self.named[(first + n) % ENTRIES]) {
            match entry.settled_state() {
                NAMED if entry.is(key) => {
                    place.found = Some(entry);
                    return place;
                }
                FREED => place.free = place.free.or(Some(entry)),
                FREE => {
                    place.free = place.free.or(Some(entry));
                    return place;
                }
                _ => place.passed += 1,
            }
        }
        place
    }

    /// Frees the entries of what is gone.
    fn give_back(&self, is_gone: impl Fn(Key) -> bool) {
        let named = self.named.iter().filter(|entry| entry.settled_state() == NAMED);
        named.filter(|entry| is_gone(entry.key())).for_each(Entry::free);
    }
}

/// Where a key is, or could be.
struct Place<'a> {
    found: Option<&'a Entry>,
    free: Option<&'a Entry>,
    /// How many entries of others were looked at.
    passed: usize,
}

/// When this session gave entries back, in the server's own time.
static RETURNED_AT: MainThread<Cell<i64>> = MainThread(Cell::new(i64::MIN));
/// When it failed to have the memory.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
static FAILED_AT: MainThread<Cell<i64>> = MainThread(Cell::new(i64::MIN));

/// Whether so much time has passed since this was last so.
fn has_rested(last: &Cell<i64>, rest_us: i64) -> bool {
    let now = session::now();
    let rested = now.saturating_sub(last.get()) >= rest_us;
    if rested {
        last.set(now);
    }
    rested
}

impl Key {
    fn place(self) -> usize {
        const MIX: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 divided by the golden ratio
        let mixed = (self.object ^ (u64::from(self.database) << 32)).wrapping_mul(MIX);
        (mixed >> 32) as usize % ENTRIES
    }
}

impl Entry {
    fn is(&self, key: Key) -> bool {
        (self.database.load(Relaxed), self.object.load(Relaxed)) == (key.database, key.object)
    }

    fn is_of(&self, database: u32) -> bool {
        self.settled_state() == NAMED && self.database.load(Relaxed) == database
    }

    /// The state, after whoever is naming the entry is done.
    fn settled_state(&self) -> u32 {
        for _ in 0..MAX_SPINS {
            match self.state.load(Acquire) {
                BEING_NAMED => std::hint::spin_loop(),
                state => return state,
            }
        }
        BEING_NAMED
    }

    fn key(&self) -> Key {
        Key { database: self.database.load(Relaxed), object: self.object.load(Relaxed) }
    }

    fn free(&self) {
        self.clear();
        self.state.store(FREED, Release);
    }

    fn name(&self, key: Key, name: &[u8]) -> bool {
        let take = |from| self.state.compare_exchange(from, BEING_NAMED, Acquire, Relaxed).is_ok();
        if !take(FREE) && !take(FREED) {
            return false;
        }
        let kept = &name[..name.len().min(MAX_NAME_BYTES)];
        self.database.store(key.database, Relaxed);
        self.object.store(key.object, Relaxed);
        kept.iter().zip(&self.name).for_each(|(&byte, place)| place.store(byte, Relaxed));
        self.name_length.store(kept.len() as u32, Relaxed);
        self.state.store(NAMED, Release);
        true
    }

    fn set_stale(&self, stale: Stale) {
        self.holding_stale(|| {
            self.stale_at.store(stale.at, Relaxed);
            self.stale_fence.store(stale.fence, Relaxed);
            self.stale_stored.store(stale.stored, Relaxed);
        });
    }

    /// The three numbers belong together.
    fn holding_stale<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let take = |_: &usize| self.stale_is_held.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
        (0..MAX_SPINS).find(take)?;
        let answer = act();
        self.stale_is_held.store(0, Release);
        Some(answer)
    }

    fn read(&self) -> Counted {
        let length = (self.name_length.load(Relaxed) as usize).min(MAX_NAME_BYTES);
        let stale = self.holding_stale(|| Stale {
            at: self.stale_at.load(Relaxed),
            fence: self.stale_fence.load(Relaxed),
            stored: self.stale_stored.load(Relaxed),
        });
        Counted {
            key: Some(self.key()),
            name: self.name[..length].iter().map(|byte| byte.load(Relaxed)).collect(),
            counts: std::array::from_fn(|n| self.counts[n].load(Relaxed)),
            stale: stale.filter(|stale| stale.fence != 0),
        }
    }

    fn clear(&self) {
        self.counts.iter().for_each(|count| count.store(0, Relaxed));
        self.set_stale(Stale { at: 0, fence: 0, stored: 0 });
    }
}

fn shared() -> Option<&'static Shared> {
    if SHARED.get().is_none() {
        SHARED.set(attached());
    }
    SHARED.get()
}

/// The segment of the server's registry; `None` where it cannot be had now, for example because the file system of shared
/// memory is full. A claim must not fail for a counter.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
fn attached() -> Option<&'static Shared> {
    if session::now().saturating_sub(FAILED_AT.get()) < ATTACH_REST_US {
        return None;
    }
    let segment = session::unless_refused(segment);
    if segment.is_none() {
        FAILED_AT.set(session::now());
        log::log_line(text![
            "pg_fence cannot have its shared memory, so this session does not count its calls for a while"
        ]);
    }
    segment.flatten()
}

#[cfg(any(feature = "pg15", feature = "pg16"))]
fn attached() -> Option<&'static Shared> {
    None
}

/// From the server's registry of shared segments, which makes it for whoever asks first.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
fn segment() -> Option<&'static Shared> {
    let mut found = false;
    // SAFETY: the segment has the size of the table, is filled with zeros before anyone sees it, and lives as long as
    // the server.
    unsafe {
        #[cfg(not(feature = "pg19"))]
        let segment = pg_sys::GetNamedDSMSegment(SEGMENT.as_ptr(), size_of::<Shared>(), Some(clear), &mut found);
        #[cfg(feature = "pg19")]
        let segment = pg_sys::GetNamedDSMSegment(
            SEGMENT.as_ptr(),
            size_of::<Shared>(),
            Some(clear),
            &mut found,
            std::ptr::null_mut(),
        );
        segment.cast::<Shared>().as_ref()
    }
}

#[cfg(any(feature = "pg17", feature = "pg18"))]
#[pg_guard]
unsafe extern "C-unwind" fn clear(segment: *mut std::ffi::c_void) {
    // SAFETY: the segment has the size of the table, and nobody else uses it yet.
    unsafe { segment.cast::<Shared>().write_bytes(0, 1) };
}

#[cfg(feature = "pg19")]
#[pg_guard]
unsafe extern "C-unwind" fn clear(segment: *mut std::ffi::c_void, _argument: *mut std::ffi::c_void) {
    // SAFETY: the segment has the size of the table, and nobody else uses it yet.
    unsafe { segment.cast::<Shared>().write_bytes(0, 1) };
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
            memory.write_bytes(0, 1);
        }
        SHARED.set(memory.as_ref());
    }
}
