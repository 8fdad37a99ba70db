//! State that belongs to the main thread, in statics that every thread can name.
//!
//! Invariant: only the thread that loaded the module reaches it; a debug build asserts that.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

/// State of the main thread.
pub(crate) struct MainThread<T>(T);

// SAFETY: the server calls commands, events, timers, loading and saving on its main thread, one at a time; a child that
// saves is a process of its own. The one callback that runs beside them, the type's `free`, asks `is_main_thread`
// first.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    pub(crate) const fn new(state: T) -> MainThread<T> {
        MainThread(state)
    }
}

impl<T> Deref for MainThread<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        debug_assert!(is_main_thread(), "state of the main thread on another one");
        &self.0
    }
}

static MAIN_THREAD: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    safe fn pthread_self() -> usize;
}

/// Makes the calling thread, which loads the module, the main one.
pub(crate) fn begin() {
    MAIN_THREAD.store(pthread_self(), Ordering::Relaxed);
}

pub(crate) fn is_main_thread() -> bool {
    pthread_self() == MAIN_THREAD.load(Ordering::Relaxed)
}
