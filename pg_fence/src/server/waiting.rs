//! The name under which `pg_stat_activity` shows what a session waits for.
//!
//! Not the wait: that is the server's own, in a queue that is first in, first out, knows deadlocks and keeps to
//! `lock_timeout`. The server shows all such waits as one, `userlock`. From version 17 on an extension can name its own.
//! Invariant: the name is shown while the session waits, and no longer.

use pgrx::pg_sys;

/// What a session waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Awaited {
    /// That it may enter a guard.
    Guard,
    /// That it is granted a lock.
    Lease,
}

/// Before version 17 there are no names: what sleeps shows `Extension`.
#[cfg(any(feature = "pg15", feature = "pg16"))]
impl Awaited {
    pub(crate) fn event(self) -> u32 {
        pg_sys::PG_WAIT_EXTENSION
    }
}

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
impl Awaited {
    /// Its number in this server. The server has room for 128 names; without room it is `Extension`.
    pub(crate) fn event(self) -> u32 {
        use crate::server::session::{MainThread, unless_refused};
        use std::cell::OnceCell;
        static EVENTS: MainThread<[OnceCell<u32>; 2]> = MainThread([const { OnceCell::new() }; 2]);
        let name = match self {
            Awaited::Guard => c"pg_fence_guard",
            Awaited::Lease => c"pg_fence_lease",
        };
        *EVENTS[self as usize].get_or_init(|| {
            // SAFETY: the server copies the name.
            unless_refused(|| unsafe { pg_sys::WaitEventExtensionNew(name.as_ptr()) })
                .unwrap_or(pg_sys::PG_WAIT_EXTENSION)
        })
    }
}

/// As long as this lives, the session is shown as one that waits for this, whatever the server would show of the wait
/// itself.
pub(crate) struct Shown {
    /// Where the server notes what the session waits for; none where there is no name.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    place: Option<*mut u32>,
}

/// There a wait for a lock stays what it is, a `userlock`: `Extension` would say less.
#[cfg(any(feature = "pg15", feature = "pg16"))]
impl Shown {
    pub(crate) fn of(_awaited: Awaited) -> Shown {
        Shown {}
    }
}

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
impl Shown {
    pub(crate) fn of(awaited: Awaited) -> Shown {
        let event = awaited.event();
        if event == pg_sys::PG_WAIT_EXTENSION {
            return Shown { place: None };
        }
        // SAFETY: the place is a number of this process's entry in shared memory, which others read at any time and only
        // this process writes. What the server notes meanwhile goes to a number that nobody reads, and that lives as long
        // as the process: it ends where it is, if it ends by an order to do so.
        unsafe {
            let place = pg_sys::my_wait_event_info;
            place.write_volatile(event);
            pg_sys::pgstat_set_wait_event_storage(&raw mut UNSEEN);
            Shown { place: Some(place) }
        }
    }
}

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
static mut UNSEEN: u32 = 0;

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
impl Drop for Shown {
    fn drop(&mut self) {
        const NOTHING: u32 = 0;
        let Some(place) = self.place else { return };
        // SAFETY: the place is still there.
        unsafe {
            pg_sys::pgstat_set_wait_event_storage(place);
            place.write_volatile(NOTHING);
        }
    }
}
