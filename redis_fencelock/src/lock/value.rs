//! The stored lock: lease, owner and name in one cell of the pool, shared by the keyspace and the deadline index.
//!
//! It knows no rule of leases. Each user has a mark, and the cell is free once the last mark is cleared. The keyspace
//! may clear its own on another thread, so the marks are atomic; everything else belongs to the main thread. Invariant:
//! a user reads the value only while its mark is set.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use fence::Fence;
use fence::lock::lease::{Hold, Lease};
use fence::wheel::{Links, Nodes};
use redis_module::raw;

use crate::ffi::{Content, FromServer, Key, system};
use crate::lock::pool::Pool;

mod users;

/// The keyspace uses the value.
const IN_KEYSPACE: u8 = 1;
/// The deadline index uses the value.
const IN_INDEX: u8 = 2;
/// The list of values that may have left their key uses the value.
const IN_SUSPECTS: u8 = 4;
const USERS: u8 = IN_KEYSPACE | IN_INDEX | IN_SUSPECTS;
const EPHEMERAL: u8 = 8;
/// The longest hold and the delay follow the lengths: see `Header`.
const HAS_TERMS: u8 = 16;
/// It has been counted that the lease expired.
const EXPIRED: u8 = 32;

/// The number of the database, which is not 0, follows the lengths.
const HAS_DB: u8 = 64;

/// The primary has propagated that the lease ended.
const OVER: u8 = 128;

/// The pool had no cell left: the value was allocated alone.
const NO_CELL: u32 = u32::MAX;

/// The fixed part. Behind `marks`, without padding: lengths of owner and key as LEB128, the database and the terms if
/// flagged, the owner, the key. With a 36-byte owner and a name of 11 bytes that is 86 bytes.
#[repr(C)]
struct Header {
    fence: u64,
    granted_us: u64,
    /// Of an orphan: the address of the next.
    deadline_us: u64,
    /// The number of its cell.
    cell: u32,
    links: Links,
    marks: AtomicU8,
}

const TAIL: usize = offset_of!(Header, marks) + 1;
const TERMS: usize = 2 * size_of::<u64>();
#[cfg(feature = "poison")]
const _: () = assert!(offset_of!(Header, marks) / 8 * 8 == crate::lock::pool::poison::MARKS);

/// A handle of a stored lock, for one of its users: see the marks. What it lends ends with it; who has its mark cleared
/// gives it up.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Value(NonNull<Header>);

// SAFETY: the keyspace passes values of the type, whose mark is set during the call.
unsafe impl FromServer for Value {
    type Raw = *mut c_void;

    unsafe fn from_server(raw: *mut c_void) -> Value {
        // SAFETY: a value of the type is never null.
        Value(unsafe { NonNull::new_unchecked(raw.cast()) })
    }
}

/// A value that a callback of the type may not change.
pub(crate) struct Viewed(pub Value);

// SAFETY: as for `Value`.
unsafe impl FromServer for Viewed {
    type Raw = *const c_void;

    unsafe fn from_server(raw: *const c_void) -> Viewed {
        // SAFETY: as promised.
        Viewed(unsafe { Value::from_server(raw.cast_mut()) })
    }
}

/// The values in their cells are the nodes of the wheel.
impl Nodes for Pool {
    fn due_us(&self, node: u32) -> u64 {
        Value::in_cell(self, node).due_us()
    }

    fn links_mut(&mut self, node: u32) -> &mut Links {
        // SAFETY: the node is a value in the wheel; the links live in its cell as long as the pool, which is borrowed.
        unsafe { &mut (*Value::in_cell(self, node).0.as_ptr()).links }
    }
}

/// What a key holds.
pub(crate) enum Stored {
    Nothing,
    Lock(Value),
    Other,
}

/// Where the parts behind the header begin.
struct Parts {
    db: u32,
    terms: usize,
    owner: usize,
    key: usize,
    end: usize,
}

impl Value {
    /// A new value that belongs to the keyspace and, if it has a cell, to the index.
    pub(crate) fn create(pool: &mut Pool, hold: &Hold, db: u32, key: &[u8]) -> Value {
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
        let (cell, start) = pool.allocate(size).unwrap_or_else(|| {
            Value::note_loose();
            (NO_CELL, system::allocate(size).cast())
        });
        let marks = IN_KEYSPACE
            | if cell != NO_CELL { IN_INDEX } else { 0 }
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
                cell,
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

    /// The value in a cell of the pool that was given out. Its marks say who uses it.
    pub(crate) fn in_cell(pool: &Pool, cell: u32) -> Value {
        Value(pool.at(cell).cast())
    }

    /// The value in a cell that a visit of the pool has come to. Its marks say whether there is one.
    pub(crate) fn visited(start: NonNull<u8>) -> Value {
        Value(start.cast())
    }

    pub(crate) fn as_raw(&self) -> NonNull<c_void> {
        self.0.cast()
    }

    /// What is under an open key.
    pub(crate) fn in_key(key: &Key) -> Stored {
        match key.content(lock_type()) {
            Content::Nothing => Stored::Nothing,
            Content::Ours(value) => Stored::Lock(Value(value.cast())),
            Content::Other => Stored::Other,
        }
    }

    /// Puts a new value under a key, which owns it from now on, in place of anything that is there.
    pub(crate) fn store(&self, key: &Key) {
        // SAFETY: the value is of the type.
        unsafe { key.set(lock_type(), self.as_raw()) }
    }

    /// The same in place of another lock, which is not freed.
    pub(crate) fn store_over_lock(&self, key: &Key) {
        // SAFETY: both are of the type: the caller has seen the other one.
        unsafe { key.replace(lock_type(), self.as_raw()) }
    }

    /// How many bytes it takes.
    pub(crate) fn memory(&self) -> usize {
        Pool::rounded(self.parts().end)
    }

    pub(crate) fn lease(&self) -> Lease {
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

    pub(crate) fn fence(&self) -> Fence {
        // Only numbers that are fences are ever stored.
        Fence::new(self.header().fence).unwrap_or_else(|| unreachable!())
    }

    pub(crate) fn owner(&self) -> &[u8] {
        let parts = self.parts();
        self.tail(parts.owner, parts.key)
    }

    pub(crate) fn hold(&self) -> Hold<'_> {
        Hold { lease: self.lease(), owner: self.owner() }
    }

    /// The name under which it was stored. A renamed key has another one now.
    pub(crate) fn key(&self) -> &[u8] {
        let parts = self.parts();
        self.tail(parts.key, parts.end)
    }

    /// The number under which the index knows the database.
    pub(crate) fn db(&self) -> u32 {
        if self.has(HAS_DB) { self.parts().db } else { 0 }
    }

    /// Whether the lease may end with a connection.
    pub(crate) fn is_ephemeral(&self) -> bool {
        self.has(EPHEMERAL)
    }

    pub(crate) fn deadline_us(&self) -> u64 {
        self.header().deadline_us
    }

    /// To an earlier one only while the value is not in the wheel.
    pub(crate) fn set_deadline(&self, deadline_us: u64) {
        // SAFETY: alive, and only the main thread writes this field.
        unsafe { (*self.0.as_ptr()).deadline_us = deadline_us }
    }

    /// When something happens to it next: the lease ends or, if that was counted, the delay after it.
    pub(crate) fn due_us(&self) -> u64 {
        if self.has(EXPIRED) { self.lease().free_us() } else { self.header().deadline_us }
    }

    /// The number of its cell in the pool.
    pub(crate) fn cell(&self) -> Option<u32> {
        let cell = self.header().cell;
        (cell != NO_CELL).then_some(cell)
    }

    fn header(&self) -> &Header {
        // SAFETY: alive while the caller's mark is set.
        unsafe { self.0.as_ref() }
    }

    fn terms(&self) -> (u64, u64) {
        let at = self.parts().terms;
        let term = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(self.tail(at, at + 8));
            u64::from_le_bytes(bytes)
        };
        (term(at), term(at + 8))
    }

    fn parts(&self) -> Parts {
        let mut at = TAIL;
        let owner_length = self.leb128(&mut at) as usize;
        let key_length = self.leb128(&mut at) as usize;
        let db = if self.has(HAS_DB) { self.leb128(&mut at) as u32 } else { 0 };
        let owner = at + if self.has(HAS_TERMS) { TERMS } else { 0 };
        let key = owner + owner_length;
        Parts { db, terms: at, owner, key, end: key + key_length }
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

static LOCK_TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());

pub(crate) fn lock_type() -> *mut raw::RedisModuleType {
    LOCK_TYPE.load(Ordering::Relaxed)
}

/// Notes the type that the server has registered.
pub(crate) fn set_lock_type(registered: *mut raw::RedisModuleType) {
    LOCK_TYPE.store(registered, Ordering::Relaxed);
}
