//! The stored lock: lease, owner and name in one place of the pool, shared by the keyspace and the deadline index.
//!
//! No rule of leases: it only keeps one. When the last of its users lets go its place is free; the keyspace may let go on
//! another thread, so that mark alone is atomic, and everything else belongs to the main thread.
//! Invariant: whoever has its mark set may read the value; nobody else may.

use std::ffi::{CStr, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use fence::Fence;
use fence::lock::codec::{self, ENCODED_MAX, Notes};
use fence::lock::lease::{Hold, Lease};
use fence::lock::queue::LockName;
use fence::wheel::Links;
use redis_module::raw;

use crate::ffi::{Ctx, Io, Name, api, callback, warn};
use crate::lock::pool::Pool;
use crate::replication::APPLY;
use crate::server::{Arrival, server};

/// The name of the type in snapshots: nine characters, for ever.
const TYPE_NAME: &CStr = c"fencelock";
/// The version of what the type writes around the record, which has a version of its own.
const ENCODING: c_int = 2;
/// In the first one nothing followed the last fence.
const FIRST_ENCODING: c_int = 1;

/// The keyspace uses the value.
const IN_KEYSPACE: u8 = 1;
/// The deadline index uses the value.
const IN_INDEX: u8 = 2;
/// The list of values to look at again uses the value.
const IN_SUSPECTS: u8 = 4;
const USERS: u8 = IN_KEYSPACE | IN_INDEX | IN_SUSPECTS;
const EPHEMERAL: u8 = 8;
/// The longest hold and the delay follow the lengths.
const HAS_TERMS: u8 = 16;
/// It has been counted that the lease ran out.
const RAN_OUT: u8 = 32;

/// The number of the database follows the lengths: it is not 0.
const HAS_DB: u8 = 64;

/// Not a place of the pool, which had no numbers left.
const NO_PLACE: u32 = u32::MAX;

/// The fixed part. Behind `marks`, without padding: lengths of owner and key as LEB128, the database and the terms if
/// flagged, the owner, the key. With a 36-byte owner and a name of 11 bytes that is 86 bytes.
#[repr(C)]
struct Header {
    fence: u64,
    granted_us: u64,
    /// Of an orphan: the address of the next.
    deadline_us: u64,
    /// The number of the place that this is.
    place: u32,
    links: Links,
    marks: AtomicU8,
}

const TAIL: usize = offset_of!(Header, marks) + 1;
const TERMS: usize = 2 * size_of::<u64>();

/// A pointer to a stored lock. Copies are cheap and own nothing: see the marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Value(NonNull<Header>);

/// Where the parts behind the header begin.
struct Layout {
    db: u32,
    terms: usize,
    owner: usize,
    key: usize,
    end: usize,
}

impl Value {
    /// A new value that belongs to the keyspace and, if it has a place, to the index.
    pub fn create(pool: &mut Pool, hold: &Hold, db: u32, key: &[u8]) -> Value {
        let lease = &hold.lease;
        let has_terms = lease.limit_us != u64::MAX || lease.delay_us != 0;
        let mut lengths = Lengths { bytes: [0; 3 * LEB128_MAX], used: 0 };
        lengths.push(hold.owner.len() as u64);
        lengths.push(key.len() as u64);
        if db != 0 {
            lengths.push(u64::from(db));
        }
        let mut terms = [0; TERMS];
        terms[..8].copy_from_slice(&lease.limit_us.to_le_bytes());
        terms[8..].copy_from_slice(&lease.delay_us.to_le_bytes());
        let terms = if has_terms { &terms[..] } else { &[] };
        let parts = [&lengths.bytes[..lengths.used], terms, hold.owner, key];
        let size = (TAIL + parts.iter().map(|part| part.len()).sum::<usize>()).max(size_of::<Header>());
        let (place, start) = pool.allocate(size).unwrap_or_else(|| {
            HAS_PLACELESS.store(true, Ordering::Relaxed);
            // SAFETY: the server's allocator never fails: it ends the server.
            (NO_PLACE, unsafe { NonNull::new_unchecked(api!(RedisModule_Alloc)(size).cast()) })
        });
        let marks = IN_KEYSPACE
            | if place != NO_PLACE { IN_INDEX } else { 0 }
            | if has_terms { HAS_TERMS } else { 0 }
            | if lease.ephemeral { EPHEMERAL } else { 0 }
            | if db != 0 { HAS_DB } else { 0 };
        let header = start.cast::<Header>();
        // SAFETY: `size` bytes are ours, aligned for a header; the parts are written behind it, inside `size`.
        unsafe {
            header.write(Header {
                fence: lease.fence.get(),
                granted_us: lease.granted_us,
                deadline_us: lease.deadline_us,
                place,
                links: Links::NONE,
                marks: AtomicU8::new(marks),
            });
            let mut to = start.as_ptr().add(TAIL);
            for part in parts {
                ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        Value(header)
    }

    /// The value in a place of the pool. Its marks tell whether there is one.
    pub fn at(place: NonNull<u8>) -> Value {
        Value(place.cast())
    }

    pub fn from_raw(value: *mut c_void) -> Option<Value> {
        NonNull::new(value.cast()).map(Value)
    }

    pub fn into_raw(self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    pub fn lease(&self) -> Lease {
        let header = self.header();
        let (limit_us, delay_us) = if self.has(HAS_TERMS) { self.terms() } else { (u64::MAX, 0) };
        Lease {
            fence: self.fence(),
            granted_us: header.granted_us,
            deadline_us: header.deadline_us,
            limit_us,
            delay_us,
            ephemeral: self.has(EPHEMERAL),
        }
    }

    pub fn fence(&self) -> Fence {
        // Only numbers that are fences are ever stored.
        Fence::new(self.header().fence).unwrap_or_else(|| unreachable!())
    }

    pub fn owner(&self) -> &[u8] {
        let layout = self.layout();
        self.tail(layout.owner, layout.key)
    }

    pub fn hold(&self) -> Hold<'_> {
        Hold { lease: self.lease(), owner: self.owner() }
    }

    /// The name under which it was stored. A renamed key has another one now.
    pub fn key(&self) -> &[u8] {
        let layout = self.layout();
        self.tail(layout.key, layout.end)
    }

    /// The number under which the index knows the database.
    pub fn db(&self) -> u32 {
        if self.has(HAS_DB) { self.layout().db } else { 0 }
    }

    /// Whether the lease may end with a connection.
    pub fn is_ephemeral(&self) -> bool {
        self.has(EPHEMERAL)
    }

    pub fn deadline_us(&self) -> u64 {
        self.header().deadline_us
    }

    /// To an earlier one only while the value is not in the wheel.
    pub fn set_deadline(self, deadline_us: u64) {
        // SAFETY: alive, and only the main thread writes this field.
        unsafe { (*self.0.as_ptr()).deadline_us = deadline_us }
    }

    /// When something happens to it next: the lease ends or, if that was counted, the delay after it.
    pub fn due_us(&self) -> u64 {
        if self.has(RAN_OUT) { self.lease().free_us() } else { self.header().deadline_us }
    }

    /// The number of its place in the pool.
    pub fn place(&self) -> Option<u32> {
        let place = self.header().place;
        (place != NO_PLACE).then_some(place)
    }

    /// Where the wheel keeps its links. For the main thread.
    pub fn links(&self) -> *mut Links {
        // SAFETY: alive.
        unsafe { &raw mut (*self.0.as_ptr()).links }
    }

    /// Whether the index uses the value.
    pub fn is_in_index(&self) -> bool {
        self.has(IN_INDEX)
    }

    /// Whether the index has an entry for the value.
    pub fn is_in_wheel(&self) -> bool {
        self.has(IN_INDEX) && self.header().links.is_linked()
    }

    /// The index uses the value no more. True when nobody does: it is to be discarded then.
    #[must_use]
    pub fn leave_index(self) -> bool {
        self.let_go(IN_INDEX)
    }

    /// The list of suspects uses the value from now on; false when it did already.
    pub fn enter_suspects(self) -> bool {
        self.mark(IN_SUSPECTS)
    }

    /// The list of suspects uses the value no more. True when nobody does: it is to be discarded then.
    #[must_use]
    pub fn leave_suspects(self) -> bool {
        self.let_go(IN_SUSPECTS)
    }

    /// The keyspace uses the value no more: it may be gone after this. On any thread.
    pub fn leave_keyspace(self) {
        if FREES_ALL.load(Ordering::Relaxed) && is_main_thread() {
            FREED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let index = is_main_thread().then(|| server().index.try_borrow_mut().ok()).flatten();
        let Some(mut index) = index else { return self.leave_keyspace_alone() };
        // Dropped without a word, as by RESTORE. What was flushed is forgotten in slices.
        if self.is_in_wheel() && !self.has(IN_SUSPECTS) && !index.is_flushed(self) {
            index.remove(self);
        }
        if self.let_go(IN_KEYSPACE) {
            index.discard(self);
        } else {
            LEFT_BEHIND.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The same where the index cannot be reached: it is left to the next sweep.
    fn leave_keyspace_alone(self) {
        if self.let_go(IN_KEYSPACE) {
            self.push_orphan();
        } else {
            LEFT_BEHIND.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// From now on the main thread frees every value that there is, so that none needs to be touched: they lie all over the
    /// memory. Not if one of them has no place, by which it could be found later.
    pub fn begin_to_free_all() {
        FREED.store(0, Ordering::Relaxed);
        FREES_ALL.store(!HAS_PLACELESS.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// That is over; true if it was so.
    pub fn has_freed_all() -> bool {
        FREES_ALL.swap(false, Ordering::Relaxed) && FREED.load(Ordering::Relaxed) > 0
    }

    /// The keyspace uses the value no more, which was freed with all others. It may be gone after this; true if it is to be
    /// discarded.
    #[must_use]
    pub fn forget_key(self) -> bool {
        let is_last = self.let_go(IN_KEYSPACE);
        if !is_last {
            LEFT_BEHIND.fetch_add(1, Ordering::Relaxed);
        }
        is_last
    }

    /// How many values have left the keyspace that the module still uses.
    pub fn left_behind() -> isize {
        LEFT_BEHIND.load(Ordering::Relaxed)
    }

    /// One of them is used no more.
    pub fn note_last_left() {
        LEFT_BEHIND.fetch_sub(1, Ordering::Relaxed);
    }

    /// Leaves a value that nobody uses to the main thread.
    fn push_orphan(self) {
        let mut head = ORPHANS.load(Ordering::Relaxed);
        loop {
            // SAFETY: nobody uses the value, so it is ours until it is in the list.
            unsafe { (*self.0.as_ptr()).deadline_us = head.expose_provenance() as u64 };
            match ORPHANS.compare_exchange_weak(head, self.0.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes over the values that nobody uses any more: the first, which knows the next.
    pub fn take_orphans() -> Option<Value> {
        if !Value::has_orphans() {
            return None;
        }
        NonNull::new(ORPHANS.swap(ptr::null_mut(), Ordering::Acquire)).map(Value)
    }

    pub fn has_orphans() -> bool {
        !ORPHANS.load(Ordering::Relaxed).is_null()
    }

    /// The orphan after this one.
    pub fn next_orphan(&self) -> Option<Value> {
        NonNull::new(ptr::with_exposed_provenance_mut(self.header().deadline_us as usize)).map(Value)
    }

    /// Gives the memory back of a value that has no place in the pool.
    pub fn free_placeless(self) {
        // SAFETY: nobody uses it any more, and `create` got it from the server's allocator.
        unsafe { api!(RedisModule_Free)(self.into_raw()) }
    }

    /// Notes that the lease ran out; true the first time.
    pub fn note_run_out(self) -> bool {
        self.mark(RAN_OUT)
    }

    pub fn has_run_out(&self) -> bool {
        self.has(RAN_OUT)
    }

    /// Whether some key, under whatever name, still holds the value.
    pub fn is_in_keyspace(&self) -> bool {
        self.has(IN_KEYSPACE)
    }

    fn has(&self, mark: u8) -> bool {
        self.marks().load(Ordering::Acquire) & mark != 0
    }

    fn mark(self, mark: u8) -> bool {
        !self.has(mark) && self.marks().fetch_or(mark, Ordering::AcqRel) & mark == 0
    }

    /// Takes a mark away; true when it was the last of the users.
    fn let_go(self, user: u8) -> bool {
        let marks = self.marks();
        let before = marks.load(Ordering::Acquire);
        if before & USERS == user {
            // Nobody else can reach the value, so no other thread writes the marks.
            marks.store(before & !user, Ordering::Relaxed);
            return true;
        }
        let before = marks.fetch_and(!user, Ordering::AcqRel);
        before & user != 0 && before & USERS & !user == 0
    }

    /// The one field that another thread may touch, apart from the others that the main thread writes meanwhile.
    fn marks(&self) -> &AtomicU8 {
        // SAFETY: alive while the caller's mark is set.
        unsafe { &(*self.0.as_ptr()).marks }
    }

    fn header(&self) -> &Header {
        // SAFETY: alive while the caller's mark is set.
        unsafe { self.0.as_ref() }
    }

    fn terms(&self) -> (u64, u64) {
        let at = self.layout().terms;
        let term = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(self.tail(at, at + 8));
            u64::from_le_bytes(bytes)
        };
        (term(at), term(at + 8))
    }

    fn layout(&self) -> Layout {
        let mut at = TAIL;
        let owner_length = self.leb128(&mut at) as usize;
        let key_length = self.leb128(&mut at) as usize;
        let db = if self.has(HAS_DB) { self.leb128(&mut at) as u32 } else { 0 };
        let owner = at + if self.has(HAS_TERMS) { TERMS } else { 0 };
        let key = owner + owner_length;
        Layout { db, terms: at, owner, key, end: key + key_length }
    }

    fn leb128(&self, at: &mut usize) -> u64 {
        let [first, ..] = *self.tail(*at, *at + 1) else { return 0 };
        if first & 0x80 == 0 {
            *at += 1;
            return u64::from(first);
        }
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.tail(*at, *at + 1)[0];
            *at += 1;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        number
    }

    fn tail(&self, from: usize, to: usize) -> &[u8] {
        // SAFETY: `create` wrote the allocation up to `end`, and all callers stay below it.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>().add(from), to - from) }
    }
}

/// Numbers in LEB128: one byte for each that is below 128, as lengths mostly are.
struct Lengths {
    bytes: [u8; 3 * LEB128_MAX],
    used: usize,
}

/// The most bytes of a 64-bit number in LEB128.
const LEB128_MAX: usize = 10;

impl Lengths {
    fn push(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes[self.used] = number as u8 | 0x80;
            self.used += 1;
            number >>= 7;
        }
        self.bytes[self.used] = number as u8;
        self.used += 1;
    }
}

/// Values that nobody uses, and whose places only the main thread may give back.
static ORPHANS: AtomicPtr<Header> = AtomicPtr::new(ptr::null_mut());

/// See `Value::begin_to_free_all`.
static FREES_ALL: AtomicBool = AtomicBool::new(false);
static FREED: AtomicUsize = AtomicUsize::new(0);
/// The pool had no number for some value.
static HAS_PLACELESS: AtomicBool = AtomicBool::new(false);

/// See `Value::left_behind`. The other thread counts after it has let go, so it may be below 0 for a moment.
static LEFT_BEHIND: AtomicIsize = AtomicIsize::new(0);

static MAIN_THREAD: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    safe fn pthread_self() -> usize;
}

fn is_main_thread() -> bool {
    pthread_self() == MAIN_THREAD.load(Ordering::Relaxed)
}

static LOCK_TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());

pub(crate) fn lock_type() -> *mut raw::RedisModuleType {
    LOCK_TYPE.load(Ordering::Relaxed)
}

/// Registers the type; false when the server refuses it.
pub(crate) fn register(ctx: Ctx) -> bool {
    MAIN_THREAD.store(pthread_self(), Ordering::Relaxed);
    // The servers write the module's name into a snapshot where one of these is set.
    let (aux_save, aux_save2) =
        if server().save_last_fence.get() { (Some(aux_save as _), Some(aux_save_if_any as _)) } else { (None, None) };
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load),
        rdb_save: Some(rdb_save),
        aof_rewrite: Some(aof_rewrite),
        free: Some(free),
        mem_usage: Some(mem_usage),
        digest: Some(digest),
        aux_load: Some(aux_load),
        // Redis 7.0 knows the first alone; later servers prefer the second, which may write nothing at all.
        aux_save,
        aux_save2,
        aux_save_triggers: raw::REDISMODULE_AUX_BEFORE_RDB as c_int,
        unlink2: Some(unlinked),
        // Two live copies of one hold must not be: COPY is refused without these.
        copy: None,
        copy2: None,
        unlink: None,
        free_effort: None,
        free_effort2: None,
        mem_usage2: None,
        // The index points at the value, so defragmentation must not move it.
        defrag: None,
    };
    // SAFETY: the name ends in NUL and the server copies the methods.
    let registered = unsafe { api!(RedisModule_CreateDataType)(ctx.0, TYPE_NAME.as_ptr(), ENCODING, &mut methods) };
    LOCK_TYPE.store(registered, Ordering::Relaxed);
    !registered.is_null()
}

callback! {
    fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) -> (), else fail_the_save();
    {
        if let Some(value) = Value::from_raw(value) {
            Io(io).save_bytes(encoded(&value, &mut [0; ENCODED_MAX]));
        }
    }
}

callback! {
    fn aof_rewrite(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) -> (), else fail_the_save();
    {
        if let Some(value) = Value::from_raw(value) {
            Io(io).emit_blob(APPLY, Name(key), encoded(&value, &mut [0; ENCODED_MAX]));
        }
    }
}

/// Ends a child that saves, so that the server keeps the file that it has. In the server itself a save cannot be failed.
fn fail_the_save() {
    unsafe extern "C" {
        safe fn _exit(status: c_int) -> !;
    }
    if Ctx(ptr::null_mut()).flags() & raw::REDISMODULE_CTX_FLAGS_IS_CHILD != 0 {
        _exit(1);
    }
}

fn encoded<'b>(value: &Value, buffer: &'b mut [u8; ENCODED_MAX]) -> &'b [u8] {
    let server = server();
    codec::encode(&value.hold(), server.stamp(server.exact_clocks()), Notes::default(), buffer)
}

callback! {
    fn rdb_load(io: *mut raw::RedisModuleIO, encoding: c_int) -> *mut c_void, else ptr::null_mut();
    {
        if !is_known(encoding) {
            warn(&format!("a lock in encoding {encoding} cannot be read: this module reads up to {ENCODING}"));
            return ptr::null_mut();
        }
        let Some(loaded) = Io(io).load_bytes() else { return ptr::null_mut() };
        let name = Io(io).key_name().map_or(&[][..], Name::bytes);
        match server().take_in(loaded.bytes(), Arrival { db: Io(io).db(), key: name }) {
            Ok(value) => value.into_raw(),
            Err(reason) => {
                warn(&format!("a lock is refused while loading: {reason}"));
                ptr::null_mut()
            }
        }
    }
}

callback! {
    /// Called on another thread too.
    fn free(value: *mut c_void) -> (), else ();
    {
        if let Some(value) = Value::from_raw(value) {
            value.leave_keyspace();
        }
    }
}

callback! {
    fn mem_usage(value: *const c_void) -> usize, else 0;
    {
        Value::from_raw(value.cast_mut()).map_or(0, |value| Pool::rounded(value.layout().end))
    }
}

callback! {
    /// What must be equal on a replica: not the deadline, which each server has on its own clock.
    fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) -> (), else ();
    {
        let Some(value) = Value::from_raw(value) else { return };
        let owner = value.owner();
        // SAFETY: the digest is that of the running call; pointer and length are of one slice.
        unsafe {
            api!(RedisModule_DigestAddLongLong)(digest, value.lease().fence.get() as i64);
            api!(RedisModule_DigestAddStringBuffer)(digest, owner.as_ptr().cast(), owner.len());
            api!(RedisModule_DigestEndSequence)(digest);
        }
    }
}

callback! {
    /// A value left its key: deleted, overwritten, evicted, renamed or moved. Which of them shows a moment later.
    fn unlinked(context: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) -> (), else ();
    {
        let Some(value) = Value::from_raw(value.cast_mut()) else { return };
        // A lock that was released in good order, as most are: its name is not worth two calls into the server.
        if !value.is_in_wheel() && server().queues.borrow().is_empty() {
            return;
        }
        // SAFETY: the context is that of the running call.
        let (db, name) = unsafe {
            (api!(RedisModule_GetDbIdFromOptCtx)(context), api!(RedisModule_GetKeyNameFromOptCtx)(context))
        };
        if !name.is_null() {
            server().unlinked(value, LockName { db, name: Name(name.cast_mut()).bytes() });
        }
    }
}

fn is_known(encoding: c_int) -> bool {
    (FIRST_ENCODING..=ENCODING).contains(&encoding)
}

callback! {
    fn aux_save(io: *mut raw::RedisModuleIO, _when: c_int) -> (), else fail_the_save();
    { save_last_fence(Io(io)) }
}

callback! {
    /// Writes nothing while no fence was issued, so that such a snapshot loads without the module.
    fn aux_save_if_any(io: *mut raw::RedisModuleIO, _when: c_int) -> (), else fail_the_save();
    {
        if server().issuer().last() != 0 {
            save_last_fence(Io(io));
        }
    }
}

/// The last issued fence, and the fields of which there are none yet.
fn save_last_fence(io: Io) {
    io.save_number(server().issuer().last());
    io.save_bytes(&[]);
}

fn load_last_fence(io: Io, encoding: c_int) -> Option<u64> {
    let last = io.load_number().filter(|&last| last <= Fence::MAX)?;
    if encoding != FIRST_ENCODING {
        codec::read_snapshot_fields(io.load_bytes()?.bytes()).ok()?;
    }
    Some(last)
}

callback! {
    fn aux_load(io: *mut raw::RedisModuleIO, encoding: c_int, _when: c_int) -> c_int, else raw::REDISMODULE_ERR as c_int;
    {
        match is_known(encoding).then(|| load_last_fence(Io(io), encoding)).flatten() {
            Some(last) => {
                server().observe(last);
                raw::REDISMODULE_OK as c_int
            }
            None => {
                warn("the last issued fence in this snapshot cannot be read");
                raw::REDISMODULE_ERR as c_int
            }
        }
    }
}
