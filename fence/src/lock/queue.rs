//! The queues in front of busy locks: first in, first out, with a deadline for each waiter.
//!
//! Not the clients: a waiter is whatever the caller passes in. Joining, leaving and being served cost the same with one
//! waiter as with ten thousand.
//! Invariant: a waiter is in its queue from `join` until exactly one of `leave`, `pop_expired` and `take_over` returns it.

use std::collections::BTreeMap;

use crate::slab::{Address, Slab};
use crate::wheel::{Links, Nodes, Slots};

/// Which lock: a database and a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockName<'a> {
    /// The number of the database.
    pub db: i32,
    /// The name of the key.
    pub name: &'a [u8],
}

/// A place in a queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(Address);

/// All queues of a server, for waiters of type `W`.
pub struct Queues<W> {
    names: BTreeMap<i32, BTreeMap<Box<[u8]>, Address>>,
    queues: Slab<Queue>,
    places: Slab<Place<W>>,
    deadlines: Slots,
    /// When a queue is to be rechecked, because its lock may be free then.
    rechecks: Slots,
}

struct Queue {
    db: i32,
    name: Box<[u8]>,
    first: Option<Address>,
    last: Option<Address>,
    len: usize,
    owners: BTreeMap<Box<[u8]>, Chain>,
    /// The next recheck, if one is wanted.
    recheck: Timer,
}

/// The places of one owner in one queue: mostly one.
#[derive(Clone, Copy)]
struct Chain {
    first: Address,
    last: Address,
}

struct Place<W> {
    waiter: W,
    owner: Box<[u8]>,
    queue: Address,
    deadline: Timer,
    in_queue: Neighbors,
    of_owner: Neighbors,
}

#[derive(Clone, Copy, Default)]
struct Neighbors {
    prev: Option<Address>,
    next: Option<Address>,
}

/// A time at which something is due, as a node of a wheel.
struct Timer {
    due_us: u64,
    links: Links,
}

impl Timer {
    /// Not in a wheel.
    const OFF: Timer = Timer { due_us: 0, links: Links::NONE };
}

/// What is due at a time.
trait Timed {
    fn timer(&self) -> &Timer;
    fn timer_mut(&mut self) -> &mut Timer;
}

impl Timed for Queue {
    fn timer(&self) -> &Timer {
        &self.recheck
    }

    fn timer_mut(&mut self) -> &mut Timer {
        &mut self.recheck
    }
}

impl<W> Timed for Place<W> {
    fn timer(&self) -> &Timer {
        &self.deadline
    }

    fn timer_mut(&mut self) -> &mut Timer {
        &mut self.deadline
    }
}

impl<T: Timed> Nodes for Slab<T> {
    fn due_us(&self, node: u32) -> u64 {
        self.at(node).1.timer().due_us
    }

    fn links_mut(&mut self, node: u32) -> &mut Links {
        &mut self.at_mut(node).timer_mut().links
    }
}

/// Sets when a stored value is due. A later time costs a store: the node moves when its old time comes.
fn schedule<T: Timed>(slots: &mut Slots, stored: &mut Slab<T>, address: Address, due_us: u64) {
    let Some(timer) = stored.get_mut(address).map(Timed::timer_mut) else { return };
    let stays = timer.links.is_linked() && due_us >= timer.due_us;
    timer.due_us = due_us;
    if !stays {
        slots.unlink(stored, address.index());
        slots.link(stored, address.index(), due_us);
    }
}

impl<W> Queues<W> {
    /// No queues. `origin_us` is the earliest time on the clock of the deadlines.
    pub fn new(origin_us: u64) -> Queues<W> {
        Queues {
            names: BTreeMap::new(),
            queues: Slab::new(),
            places: Slab::new(),
            deadlines: Slots::new(origin_us),
            rechecks: Slots::new(origin_us),
        }
    }

    /// How many wait, for whatever lock.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.places.len() == 0
    }

    /// How many wait for this lock.
    pub fn waiting(&self, lock: LockName) -> usize {
        self.queue_of(lock).map_or(0, |queue| queue.len)
    }

    /// Puts a waiter at the end of the queue of `lock`. `None`, and nothing changed, when no more can be stored.
    pub fn join(&mut self, lock: LockName, owner: &[u8], deadline_us: u64, waiter: W) -> Option<Ticket> {
        let queue = self.address_or_new(lock)?;
        let place = Place {
            waiter,
            owner: owner.into(),
            queue,
            deadline: Timer::OFF,
            in_queue: Neighbors::default(),
            of_owner: Neighbors::default(),
        };
        let Some(at) = self.places.insert(place) else {
            self.drop_if_empty(queue);
            return None;
        };
        self.append(queue, at, owner);
        schedule(&mut self.deadlines, &mut self.places, at, deadline_us);
        Some(Ticket(at))
    }

    /// Gives the first place of `owner` in the queue of `lock` to another waiter, with another deadline. Returns the place
    /// and the waiter that had it. The error is `waiter`, given back, when the owner has no place.
    pub fn take_over(&mut self, lock: LockName, owner: &[u8], deadline_us: u64, waiter: W) -> Result<(Ticket, W), W> {
        let Some(ticket) = self.place_of(lock, owner) else { return Err(waiter) };
        let Some(place) = self.places.get_mut(ticket.0) else { return Err(waiter) };
        let before = std::mem::replace(&mut place.waiter, waiter);
        schedule(&mut self.deadlines, &mut self.places, ticket.0, deadline_us);
        Ok((ticket, before))
    }

    /// The first place of `owner` in the queue of `lock`.
    pub fn place_of(&self, lock: LockName, owner: &[u8]) -> Option<Ticket> {
        self.queue_of(lock)?.owners.get(owner).map(|chain| Ticket(chain.first))
    }

    /// The waiter that is served next.
    pub fn head(&self, lock: LockName) -> Option<(Ticket, &W)> {
        let at = self.queue_of(lock)?.first?;
        Some((Ticket(at), &self.places.get(at)?.waiter))
    }

    /// Removes a waiter from its queue.
    pub fn leave(&mut self, ticket: Ticket) -> Option<W> {
        self.places.get(ticket.0)?;
        self.deadlines.unlink(&mut self.places, ticket.0.index());
        let place = self.places.remove(ticket.0)?;
        self.unlink(&place);
        self.drop_if_empty(place.queue);
        Some(place.waiter)
    }

    /// Removes every waiter of `owner` from the queue of `lock`, the first first.
    pub fn leave_all_of(&mut self, lock: LockName, owner: &[u8]) -> Vec<W> {
        let mut gone = Vec::new();
        while let Some(waiter) = self.place_of(lock, owner).and_then(|ticket| self.leave(ticket)) {
            gone.push(waiter);
        }
        gone
    }

    /// Removes every waiter of every queue, those of a queue in their order.
    pub fn leave_all(&mut self) -> Vec<W> {
        let mut gone = Vec::with_capacity(self.len());
        while let Some(&queue) = self.names.values().flat_map(BTreeMap::values).next() {
            let Some(first) = self.queues.get(queue).and_then(|queue| queue.first) else { break };
            gone.extend(self.leave(Ticket(first)));
        }
        gone
    }

    /// The owners that have a place in the queue of `lock`.
    pub fn owners(&self, lock: LockName) -> impl Iterator<Item = &[u8]> {
        self.queue_of(lock).into_iter().flat_map(|queue| queue.owners.keys().map(|owner| &**owner))
    }

    /// Removes one waiter whose deadline is at or before `now_us`. `budget` as for [`Slots::pop`].
    pub fn pop_expired(&mut self, now_us: u64, budget: &mut usize) -> Option<W> {
        let node = self.deadlines.pop(&mut self.places, now_us, budget)?;
        self.leave(Ticket(self.places.at(node).0))
    }

    /// Removes the waiter that is served next, if its deadline is at or before `now_us`.
    pub fn pop_late_head(&mut self, lock: LockName, now_us: u64) -> Option<W> {
        let at = self.queue_of(lock)?.first?;
        if now_us < self.places.get(at)?.deadline.due_us {
            return None;
        }
        self.leave(Ticket(at))
    }

    /// Asks for a recheck of the queue of `lock` at `due_us`, in place of any that was asked for. Nothing without a queue.
    pub fn recheck_at(&mut self, lock: LockName, due_us: u64) {
        if let Some(at) = self.address_of(lock) {
            schedule(&mut self.rechecks, &mut self.queues, at, due_us);
        }
    }

    /// Asks for a recheck of every queue of a database, or of all, at `due_us`.
    pub fn recheck_all(&mut self, db: Option<i32>, due_us: u64) {
        let in_db = |&(&of, _): &(&i32, _)| db.is_none_or(|db| db == of);
        for &at in self.names.iter().filter(in_db).flat_map(|(_, names)| names.values()) {
            schedule(&mut self.rechecks, &mut self.queues, at, due_us);
        }
    }

    /// One queue whose recheck is due, as its database and name. `budget` as for [`Slots::pop`].
    pub fn pop_recheck(&mut self, now_us: u64, budget: &mut usize) -> Option<(i32, Box<[u8]>)> {
        let node = self.rechecks.pop(&mut self.queues, now_us, budget)?;
        let (_, queue) = self.queues.at(node);
        Some((queue.db, queue.name.clone()))
    }

    /// When to call `pop_expired` next.
    pub fn next_expiry_us(&self) -> Option<u64> {
        self.deadlines.next_us()
    }

    /// When to call `pop_recheck` next.
    pub fn next_recheck_us(&self) -> Option<u64> {
        self.rechecks.next_us()
    }

    fn address_of(&self, lock: LockName) -> Option<Address> {
        self.names.get(&lock.db)?.get(lock.name).copied()
    }

    fn queue_of(&self, lock: LockName) -> Option<&Queue> {
        self.queues.get(self.address_of(lock)?)
    }

    fn address_or_new(&mut self, lock: LockName) -> Option<Address> {
        if let Some(at) = self.address_of(lock) {
            return Some(at);
        }
        let name: Box<[u8]> = lock.name.into();
        let at = self.queues.insert(Queue {
            db: lock.db,
            name: name.clone(),
            first: None,
            last: None,
            len: 0,
            owners: BTreeMap::new(),
            recheck: Timer::OFF,
        })?;
        self.names.entry(lock.db).or_default().insert(name, at);
        Some(at)
    }

    fn append(&mut self, queue: Address, at: Address, owner: &[u8]) {
        let Some(queue) = self.queues.get_mut(queue) else { return };
        let before = queue.last.replace(at);
        queue.first.get_or_insert(at);
        queue.len += 1;
        let mut same = None;
        match queue.owners.get_mut(owner) {
            Some(chain) => same = Some(std::mem::replace(&mut chain.last, at)),
            None => {
                queue.owners.insert(owner.into(), Chain { first: at, last: at });
            }
        }
        if let Some(before) = before {
            self.in_queue(before).next = Some(at);
        }
        if let Some(same) = same {
            self.of_owner(same).next = Some(at);
        }
        self.in_queue(at).prev = before;
        self.of_owner(at).prev = same;
    }

    /// Closes the gaps that a removed place leaves.
    fn unlink(&mut self, place: &Place<W>) {
        let Neighbors { prev, next } = place.in_queue;
        if let Some(prev) = prev {
            self.in_queue(prev).next = next;
        }
        if let Some(next) = next {
            self.in_queue(next).prev = prev;
        }
        let Neighbors { prev: prev_same, next: next_same } = place.of_owner;
        if let Some(prev) = prev_same {
            self.of_owner(prev).next = next_same;
        }
        if let Some(next) = next_same {
            self.of_owner(next).prev = prev_same;
        }
        let Some(queue) = self.queues.get_mut(place.queue) else { return };
        queue.len -= 1;
        queue.first = if prev.is_none() { next } else { queue.first };
        queue.last = if next.is_none() { prev } else { queue.last };
        let Some(chain) = queue.owners.get_mut(&place.owner) else { return };
        match (prev_same, next_same) {
            (None, None) => {
                queue.owners.remove(&place.owner);
            }
            (None, Some(next)) => chain.first = next,
            (Some(prev), None) => chain.last = prev,
            (Some(_), Some(_)) => {}
        }
    }

    fn in_queue(&mut self, at: Address) -> &mut Neighbors {
        &mut self.places.get_mut(at).expect("linked places are stored").in_queue
    }

    fn of_owner(&mut self, at: Address) -> &mut Neighbors {
        &mut self.places.get_mut(at).expect("linked places are stored").of_owner
    }

    fn drop_if_empty(&mut self, at: Address) {
        if self.queues.get(at).is_none_or(|queue| queue.len > 0) {
            return;
        }
        self.rechecks.unlink(&mut self.queues, at.index());
        let Some(queue) = self.queues.remove(at) else { return };
        if let Some(names) = self.names.get_mut(&queue.db) {
            names.remove(&queue.name);
            if names.is_empty() {
                self.names.remove(&queue.db);
            }
        }
    }
}

#[cfg(test)]
mod tests;
