//! Who is woken at the end of the transaction, because a lock is free then or will be earlier.
//!
//! Invariant: nobody is woken before the transaction has given back its locks; woken earlier he would wait for them.

use crate::lease::names::Names;
use crate::server::callbacks;
use crate::server::session::MainThread;
use crate::server::sleep::Sleeper;
use std::cell::RefCell;

static SLEEPERS: MainThread<RefCell<Vec<Sleeper>>> = MainThread(RefCell::new(Vec::new()));

/// Called once, when the library is loaded.
pub(crate) fn watch_transactions() {
    callbacks::after_locks(|has_committed| {
        for sleeper in SLEEPERS.borrow_mut().drain(..).filter(|_| has_committed) {
            sleeper.wake();
        }
    });
}

/// Wakes the head of a lock's queue at COMMIT. To be called with the lock on the row: whoever becomes the head later waits
/// for that.
pub(crate) fn head_of(names: &Names) {
    if names.waiting() == 0 {
        return;
    }
    let mut sleepers = SLEEPERS.borrow_mut();
    for head in names.queue.holders() {
        if !sleepers.contains(&head) {
            sleepers.push(head);
        }
    }
}
