//! Who uses a value, and who frees it: one mark for each user.
//!
//! Invariant: the last user that clears its mark has the value discarded, by the main thread.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use super::{EXPIRED, Header, IN_INDEX, IN_KEYSPACE, IN_SUSPECTS, OVER, USERS, Value};
use crate::ffi::system;

impl Value {
    /// Whether the index uses the value.
    pub(crate) fn is_in_index(&self) -> bool {
        self.has(IN_INDEX)
    }

    /// Whether the index has an entry for the value.
    pub(crate) fn is_in_wheel(&self) -> bool {
        self.has(IN_INDEX) && self.header().links.is_linked()
    }

    /// Clears the mark of the index. Returns true if the caller must discard the value.
    #[must_use]
    pub(crate) fn leave_index(&self) -> bool {
        self.clear(IN_INDEX)
    }

    /// Sets the mark of the list of suspects. Returns the handle for it, or `None` when the mark was set.
    pub(crate) fn enter_suspects(&self) -> Option<Value> {
        self.mark(IN_SUSPECTS).then_some(Value(self.0))
    }

    /// Clears the mark of the list of suspects. Returns true if the caller must discard the value.
    #[must_use]
    pub(crate) fn leave_suspects(&self) -> bool {
        self.clear(IN_SUSPECTS)
    }

    /// Whether the wheel has the value, and the list of suspects has not.
    pub(crate) fn is_in_wheel_only(&self) -> bool {
        self.is_in_wheel() && !self.has(IN_SUSPECTS)
    }

    /// Clears the mark of the keyspace. Returns true if the caller must discard the value.
    #[must_use]
    pub(crate) fn leave_keyspace(&self) -> bool {
        let is_last = self.clear(IN_KEYSPACE);
        if !is_last {
            LEFT_BEHIND.fetch_add(1, Ordering::Relaxed);
        }
        is_last
    }

    /// The same where the index cannot be reached, as on another thread: the next sweep discards the value.
    pub(crate) fn leave_keyspace_unseen(self) {
        if self.leave_keyspace() {
            self.push_orphan();
        }
    }

    /// Counts a value that is freed with all others, without touching it; false when that is not under way.
    pub(crate) fn count_freed_with_all() -> bool {
        let is_so = FREES_ALL.load(Ordering::Relaxed);
        if is_so {
            FREED.fetch_add(1, Ordering::Relaxed);
        }
        is_so
    }

    /// The main thread is about to free every value. They lie all over the memory, so each is only counted and none
    /// touched; a sweep of the pool finds them later. Has no effect if some value has no cell, because a sweep would
    /// miss it.
    pub(crate) fn begin_to_free_all() {
        FREED.store(0, Ordering::Relaxed);
        FREES_ALL.store(!HAS_LOOSE.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// All values are freed. Returns whether some were only counted.
    pub(crate) fn end_freeing_all() -> bool {
        FREES_ALL.swap(false, Ordering::Relaxed) && FREED.load(Ordering::Relaxed) > 0
    }

    /// How many values the module still uses that have left the keyspace.
    pub(crate) fn left_behind() -> isize {
        LEFT_BEHIND.load(Ordering::Relaxed)
    }

    /// One of them is used no longer.
    pub(crate) fn note_last_left() {
        LEFT_BEHIND.fetch_sub(1, Ordering::Relaxed);
    }

    /// Leaves a value that nobody uses to the main thread, which alone may free its cell.
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

    /// Takes the list of orphans: the first, which links to the next.
    pub(crate) fn take_orphans() -> Option<Value> {
        if !Value::has_orphans() {
            return None;
        }
        NonNull::new(ORPHANS.swap(ptr::null_mut(), Ordering::Acquire)).map(Value)
    }

    pub(crate) fn has_orphans() -> bool {
        !ORPHANS.load(Ordering::Relaxed).is_null()
    }

    /// The orphan after this one.
    pub(crate) fn next_orphan(&self) -> Option<Value> {
        NonNull::new(ptr::with_exposed_provenance_mut(self.header().deadline_us as usize)).map(Value)
    }

    /// Frees a value that has no cell.
    pub(crate) fn free_loose(self) {
        // SAFETY: nobody uses it any more, and `create` got it from the server's allocator.
        unsafe { system::free(self.as_raw()) }
    }

    /// Marks the lease as expired; false when it was marked.
    pub(crate) fn mark_expired(&self) -> bool {
        self.mark(EXPIRED)
    }

    pub(crate) fn is_marked_expired(&self) -> bool {
        self.has(EXPIRED)
    }

    /// Notes that the primary has propagated the end of the lease: the value is stored for its delay alone.
    pub(crate) fn mark_over(&self) {
        self.mark(OVER);
    }

    pub(crate) fn is_marked_over(&self) -> bool {
        self.has(OVER)
    }

    /// Whether some key, under whatever name, still holds the value.
    pub(crate) fn is_in_keyspace(&self) -> bool {
        self.has(IN_KEYSPACE)
    }

    pub(super) fn has(&self, mark: u8) -> bool {
        self.marks().load(Ordering::Acquire) & mark != 0
    }

    pub(super) fn mark(&self, mark: u8) -> bool {
        !self.has(mark) && self.marks().fetch_or(mark, Ordering::AcqRel) & mark == 0
    }

    /// Clears a mark; true when it was the last one of a user.
    fn clear(&self, user: u8) -> bool {
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

    /// The one field that another thread may touch. It is read apart from the others, which the main thread may write
    /// then.
    pub(super) fn marks(&self) -> &AtomicU8 {
        // SAFETY: alive while the caller's mark is set.
        unsafe { &(*self.0.as_ptr()).marks }
    }

    /// Notes that some value has no cell.
    pub(super) fn note_loose() {
        HAS_LOOSE.store(true, Ordering::Relaxed);
    }
}

/// Values that nobody uses, linked by `Header::deadline_us`. Only the main thread frees cells.
static ORPHANS: AtomicPtr<Header> = AtomicPtr::new(ptr::null_mut());

/// See `Value::begin_to_free_all`.
static FREES_ALL: AtomicBool = AtomicBool::new(false);
static FREED: AtomicUsize = AtomicUsize::new(0);
/// Some value has no cell.
static HAS_LOOSE: AtomicBool = AtomicBool::new(false);

/// See `Value::left_behind`. Another thread counts after it has cleared the mark, so this may be below 0 for a moment.
static LEFT_BEHIND: AtomicIsize = AtomicIsize::new(0);
