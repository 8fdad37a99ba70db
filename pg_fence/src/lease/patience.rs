//! How long a call may wait, and for what: for a lock of the server, or until something changes.
//!
//! Invariant: a wait ends at its time, at the session's `lock_timeout`, or by a cancel, whichever comes first.

use crate::errors::Refused;
use crate::server::boot;
use crate::server::locks::{LockMode, NamedLock};
use crate::server::session;
use crate::server::sleep;
use crate::server::text::Bytes;
use crate::server::waiting::Awaited;
use crate::stats::Subject;
use crate::stats::waits::Wait;
use fence::lock::lease::Millis;
use std::cell::Cell;

/// Whoever changes a row by hand wakes nobody: then it is noticed after so long.
const RECHECK_US: u64 = 60_000_000;

/// The time that a call has.
pub(crate) struct Patience<'c> {
    lock: Bytes<'c>,
    began_us: u64,
    end_us: u64,
    /// Whether it keeps no snapshot while it waits.
    keeps_no_snapshot: bool,
    has_waited: Cell<bool>,
}

impl<'c> Patience<'c> {
    /// For this lock, from now on.
    pub(crate) fn of(lock: Bytes<'c>, wait: Millis, keeps_no_snapshot: bool) -> Patience<'c> {
        let began_us = boot::steady_us();
        Patience {
            lock,
            began_us,
            end_us: began_us.saturating_add(wait.as_micros()),
            keeps_no_snapshot,
            has_waited: Cell::new(false),
        }
    }

    /// Whether the time has passed.
    pub(crate) fn is_over(&self) -> bool {
        boot::steady_us() >= self.end_us
    }

    /// Whether it has waited at all.
    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited.get()
    }

    /// Takes a lock of the server alone. Answers whether.
    pub(crate) fn take(&self, lock: &NamedLock) -> bool {
        while !self.is_over() {
            let _wait = self.wait();
            let left = Millis::from_micros(self.end_us.saturating_sub(boot::steady_us()));
            if lock.take_within(i32::try_from(left.0).unwrap_or(i32::MAX)) {
                return true;
            }
        }
        false
    }

    /// Sleeps until it is woken, or until `due_us` on the steady clock.
    pub(crate) fn sleep_until(&self, due_us: u64) -> Result<(), Refused> {
        let now_us = boot::steady_us();
        let timeout_us = session::lock_timeout_us().map(|timeout| self.began_us.saturating_add(timeout));
        if timeout_us.is_some_and(|timeout| now_us >= timeout && timeout < self.end_us) {
            return Err(Refused::LockTimeout);
        }
        let due_us = due_us.min(self.end_us).min(timeout_us.unwrap_or(u64::MAX));
        let _wait = self.wait();
        sleep::sleep(due_us.saturating_sub(now_us).min(RECHECK_US), Awaited::Lease);
        Ok(())
    }

    fn wait(&self) -> Wait<'c> {
        let is_first = !self.has_waited.replace(true);
        let wait = Wait::begin(Subject::Lock(self.lock.bytes()), Awaited::Lease, is_first);
        if self.keeps_no_snapshot {
            sleep::forget_catalog_snapshot();
        }
        wait
    }
}

/// Takes a lock of the server alone, without waiting where the call has no time. Answers whether.
pub(crate) fn take(lock: &NamedLock, patience: Option<&Patience>) -> bool {
    lock.try_take(LockMode::Alone) || patience.is_some_and(|patience| patience.take(lock))
}
