//! Marks free cells for AddressSanitizer, which cannot know them: the pool, and not the allocator, gives cells out.
//!
//! Built by `tools/fuzz/asan` alone. Invariant: what a free cell is still read for stays readable: the link of the free
//! list, and the marks, which a visit of the pool reads.

use std::ffi::c_void;
use std::ptr::NonNull;

/// What is poisoned of a cell: all but its first word, the link, and the word with the marks.
const POISONED: [(usize, usize); 2] = [(8, MARKS), (MARKS + 8, usize::MAX)];
/// The word with the marks.
pub(in crate::lock) const MARKS: usize = 32;

unsafe extern "C" {
    fn __asan_poison_memory_region(start: *const c_void, size: usize);
    fn __asan_unpoison_memory_region(start: *const c_void, size: usize);
}

/// From now on a use of this cell is reported.
pub(super) fn poison(cell: NonNull<u8>, size: usize) {
    for (from, to) in POISONED.map(|(from, to)| (from, to.min(size))) {
        if from < to {
            // SAFETY: bytes of the cell, which belongs to the pool.
            unsafe { __asan_poison_memory_region(cell.add(from).as_ptr().cast(), to - from) }
        }
    }
}

/// The cell may be used again, or the page be freed.
pub(super) fn unpoison(start: NonNull<u8>, size: usize) {
    // SAFETY: bytes that belong to the pool.
    unsafe { __asan_unpoison_memory_region(start.as_ptr().cast(), size) }
}
