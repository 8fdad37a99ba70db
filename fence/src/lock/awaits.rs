//! Who awaits the end of which hold, and when a server may say that it has ended.
//!
//! Not the clients: an awaiter is whatever the caller passes in. An end of another hold costs one look-up, however many
//! are awaited.
//! Invariant: an awaiter is here from `join` until exactly one call returns it.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};

use crate::fence::Fence;
use crate::lock::ending::Ending;
use crate::lock::lease::Lease;
use crate::lock::queue::{LockName, Queues, Ticket};

/// By what a server judges whether a stored hold has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judge {
    /// A primary: its clock, in microseconds.
    Clock(u64),
    /// A replica: what its primary has propagated, and no clock. The primary may have extended the lease meanwhile.
    Stream,
}

/// A hold as it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Its lease.
    pub lease: Lease,
    /// The primary has propagated that it ended: it is stored for its delay alone.
    pub is_over: bool,
}

impl Stored {
    /// Whether the hold has not ended.
    pub const fn is_live(&self, judge: Judge) -> bool {
        match judge {
            Judge::Clock(now_us) => self.lease.is_live(now_us),
            Judge::Stream => !self.is_over,
        }
    }

    /// Why it ended, if it has not been replaced or removed.
    pub const fn ending(&self, judge: Judge) -> Ending {
        match judge {
            Judge::Clock(now_us) => self.lease.ending(now_us),
            Judge::Stream => Ending::Unknown,
        }
    }
}

/// What a server knows of a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// It is the live hold.
    Live,
    /// It is not, and will not be.
    Over,
    /// Its fence is above all that this server knows: a replica may be behind.
    Ahead,
}

/// Looks for the hold of `fence` under a lock, whose stored hold is given. `last` is the last fence that is known.
pub fn find(stored: Option<Stored>, fence: Fence, last: u64, judge: Judge) -> Found {
    match stored.filter(|stored| stored.lease.fence == fence) {
        Some(stored) if stored.is_live(judge) => Found::Live,
        None if fence.get() > last => Found::Ahead,
        Some(_) | None => Found::Over,
    }
}

/// All awaiters of a server, of type `W`.
pub struct Awaits<W> {
    /// The places of a fence are those of one owner.
    places: Queues<Await<W>>,
    /// How many await each fence.
    fences: HashMap<Fence, usize, BuildHasherDefault<DefaultHasher>>,
    /// Those that were ahead when somebody asked, until they arrive or are passed.
    ahead: BTreeSet<(Fence, i32, Box<[u8]>)>,
}

struct Await<W> {
    fence: Fence,
    db: i32,
    name: Box<[u8]>,
    awaiter: W,
}

impl<W> Awaits<W> {
    /// No awaiters. `origin_us` is the earliest time on the clock of the deadlines.
    pub fn new(origin_us: u64) -> Awaits<W> {
        Awaits { places: Queues::new(origin_us), fences: HashMap::default(), ahead: BTreeSet::new() }
    }

    /// How many await something.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nobody awaits anything.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether somebody awaits the end of a hold with this fence.
    pub fn awaits(&self, fence: Fence) -> bool {
        !self.fences.is_empty() && self.fences.contains_key(&fence)
    }

    /// Adds an awaiter of the hold of `fence`, which is ahead or live. `None`, and nothing changed, when no more can be
    /// stored.
    pub fn join(
        &mut self,
        lock: LockName,
        fence: Fence,
        is_ahead: bool,
        deadline_us: u64,
        awaiter: W,
    ) -> Option<Ticket> {
        let place = Await { fence, db: lock.db, name: lock.name.into(), awaiter };
        let ticket = self.places.join(lock, &key(fence), deadline_us, place)?;
        if is_ahead {
            self.ahead.insert((fence, lock.db, lock.name.into()));
        }
        *self.fences.entry(fence).or_default() += 1;
        Some(ticket)
    }

    /// Removes an awaiter.
    pub fn leave(&mut self, ticket: Ticket) -> Option<W> {
        let place = self.places.leave(ticket)?;
        Some(self.forget(place))
    }

    /// Removes one awaiter whose deadline is at or before `now_us`. `budget` as for `Slots::pop`.
    pub fn pop_expired(&mut self, now_us: u64, budget: &mut usize) -> Option<W> {
        let place = self.places.pop_expired(now_us, budget)?;
        Some(self.forget(place))
    }

    /// Removes all who await the hold of `fence` under `lock`: it has ended.
    pub fn end(&mut self, lock: LockName, fence: Fence) -> Vec<W> {
        if !self.awaits(fence) {
            return Vec::new();
        }
        let places = self.places.leave_all_of(lock, &key(fence));
        places.into_iter().map(|place| self.forget(place)).collect()
    }

    /// The fences that are awaited under `lock`, without those ahead and without the one of the live hold.
    pub fn others(&self, lock: LockName, live: Option<Fence>) -> Vec<Fence> {
        let fences = self.places.owners(lock).filter_map(fence_of);
        fences.filter(|&fence| Some(fence) != live && !self.is_ahead(lock, fence)).collect()
    }

    /// The hold of `fence` has arrived under `lock`: it is not ahead any more.
    pub fn arrive(&mut self, lock: LockName, fence: Fence) {
        if !self.ahead.is_empty() {
            self.ahead.remove(&(fence, lock.db, lock.name.into()));
        }
    }

    /// Removes one lock with all who await a hold of it that was ahead and is passed: every fence up to `last` is known,
    /// and what has arrived was noted.
    pub fn pop_passed(&mut self, last: u64) -> Option<Vec<W>> {
        if self.ahead.first()?.0.get() > last {
            return None;
        }
        let (fence, db, name) = self.ahead.pop_first()?;
        Some(self.end(LockName { db, name: &name }, fence))
    }

    /// Asks for a recheck of `lock` at `due_us`, in place of any that was asked for. Nothing if nobody awaits a hold of it.
    pub fn recheck_at(&mut self, lock: LockName, due_us: u64) {
        self.places.recheck_at(lock, due_us);
    }

    /// Asks for a recheck of every lock of a database, or of all, at `due_us`.
    pub fn recheck_all(&mut self, db: Option<i32>, due_us: u64) {
        self.places.recheck_all(db, due_us);
    }

    /// One lock whose recheck is due, as its database and name. `budget` as for `Slots::pop`.
    pub fn pop_recheck(&mut self, now_us: u64, budget: &mut usize) -> Option<(i32, Box<[u8]>)> {
        self.places.pop_recheck(now_us, budget)
    }

    /// When to call `pop_expired` or `pop_recheck` next.
    pub fn next_us(&self) -> Option<u64> {
        let times = [self.places.next_expiry_us(), self.places.next_recheck_us()];
        times.into_iter().flatten().min()
    }

    /// Removes everybody.
    pub fn leave_all(&mut self) -> Vec<W> {
        self.fences.clear();
        self.ahead.clear();
        self.places.leave_all().into_iter().map(|place| place.awaiter).collect()
    }

    fn is_ahead(&self, lock: LockName, fence: Fence) -> bool {
        !self.ahead.is_empty() && self.ahead.contains(&(fence, lock.db, lock.name.into()))
    }

    /// Forgets a place that was removed.
    fn forget(&mut self, place: Await<W>) -> W {
        let Await { fence, db, name, awaiter } = place;
        if let Some(count) = self.fences.get_mut(&fence) {
            *count -= 1;
            if *count == 0 {
                self.fences.remove(&fence);
            }
        }
        if !self.ahead.is_empty() && self.places.place_of(LockName { db, name: &name }, &key(fence)).is_none() {
            self.ahead.remove(&(fence, db, name));
        }
        awaiter
    }
}

/// A fence as the owner of places.
fn key(fence: Fence) -> [u8; 8] {
    fence.get().to_be_bytes()
}

fn fence_of(key: &[u8]) -> Option<Fence> {
    Fence::new(u64::from_be_bytes(key.try_into().ok()?))
}

#[cfg(test)]
mod tests;
