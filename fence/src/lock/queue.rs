//! The queues in front of busy locks: first in, first out, with a deadline for each waiter.
//!
//! Not the clients: a waiter is whatever the caller puts in. Joining, leaving and being served cost the same with one
//! waiter as with ten thousand.
//! Invariant: a waiter is in its queue from `join` until it is taken out by exactly one of `leave`, `pop_expired` and
//! `take_over`.

use std::collections::BTreeMap;

use crate::slab::{Address, Slab};
use crate::wheel::{Handle, Wheel};

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
    deadlines: Wheel<Address>,
    /// When a queue is to be looked at again, because its lock may be free then.
    rechecks: Wheel<Address>,
}

struct Queue {
    db: i32,
    name: Box<[u8]>,
    first: Option<Address>,
    last: Option<Address>,
    len: usize,
    owners: BTreeMap<Box<[u8]>, Chain>,
    recheck: Option<Handle>,
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
    deadline: Option<Handle>,
    in_queue: Neighbors,
    of_owner: Neighbors,
}

#[derive(Clone, Copy, Default)]
struct Neighbors {
    prev: Option<Address>,
    next: Option<Address>,
}

impl<W> Queues<W> {
    /// No queue. `origin_us` is the earliest time of the clock of the deadlines.
    pub fn new(origin_us: u64) -> Queues<W> {
        Queues {
            names: BTreeMap::new(),
            queues: Slab::new(),
            places: Slab::new(),
            deadlines: Wheel::new(origin_us),
            rechecks: Wheel::new(origin_us),
        }
    }

    /// How many wait, for whatever lock.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many wait for this lock.
    pub fn waiting(&self, lock: LockName) -> usize {
        self.queue_of(lock).map_or(0, |queue| queue.len)
    }

    /// Puts a waiter at the end of the queue of `lock`. `None` (and nothing changed) when no more can be counted.
    pub fn join(&mut self, lock: LockName, owner: &[u8], deadline_us: u64, waiter: W) -> Option<Ticket> {
        let queue = self.address_or_new(lock);
        let place = Place {
            waiter,
            owner: owner.into(),
            queue,
            deadline: None,
            in_queue: Neighbors::default(),
            of_owner: Neighbors::default(),
        };
        let at = self.places.insert(place);
        let Some(deadline) = self.deadlines.insert(deadline_us, at) else {
            self.places.remove(at);
            self.drop_if_empty(queue);
            return None;
        };
        self.append(queue, at, owner);
        self.places.get_mut(at)?.deadline = Some(deadline);
        Some(Ticket(at))
    }

    /// Gives the first place that `owner` has in the queue of `lock` to another waiter, with another deadline. Returns the
    /// place and the waiter that had it; the error is `waiter`, given back, when the owner has no place.
    pub fn take_over(&mut self, lock: LockName, owner: &[u8], deadline_us: u64, waiter: W) -> Result<(Ticket, W), W> {
        let chain = self.queue_of(lock).and_then(|queue| queue.owners.get(owner)).copied();
        let Some(at) = chain.map(|chain| chain.first) else { return Err(waiter) };
        let Some(place) = self.places.get_mut(at) else { return Err(waiter) };
        let before = std::mem::replace(&mut place.waiter, waiter);
        if let Some(deadline) = place.deadline {
            self.deadlines.reschedule(deadline, deadline_us);
        }
        Ok((Ticket(at), before))
    }

    /// The first place that `owner` has in the queue of `lock`.
    pub fn place_of(&self, lock: LockName, owner: &[u8]) -> Option<Ticket> {
        self.queue_of(lock)?.owners.get(owner).map(|chain| Ticket(chain.first))
    }

    /// Who is served next.
    pub fn head(&self, lock: LockName) -> Option<(Ticket, &W)> {
        let at = self.queue_of(lock)?.first?;
        Some((Ticket(at), &self.places.get(at)?.waiter))
    }

    /// Takes a waiter out of its queue.
    pub fn leave(&mut self, ticket: Ticket) -> Option<W> {
        let place = self.places.remove(ticket.0)?;
        if let Some(deadline) = place.deadline {
            self.deadlines.remove(deadline);
        }
        self.unlink(&place);
        self.drop_if_empty(place.queue);
        Some(place.waiter)
    }

    /// Takes out every waiter that `owner` has in the queue of `lock`, the first first.
    pub fn leave_all_of(&mut self, lock: LockName, owner: &[u8]) -> Vec<W> {
        let mut gone = Vec::new();
        while let Some(waiter) = self.place_of(lock, owner).and_then(|ticket| self.leave(ticket)) {
            gone.push(waiter);
        }
        gone
    }

    /// Takes out one waiter whose deadline is at or before `now_us`. `budget` as for [`Wheel::pop`].
    pub fn pop_expired(&mut self, now_us: u64, budget: &mut usize) -> Option<W> {
        let at = self.deadlines.pop(now_us, budget)?;
        self.places.get_mut(at)?.deadline = None;
        self.leave(Ticket(at))
    }

    /// Takes out who would be served next if its deadline is at or before `now_us`.
    pub fn pop_late_head(&mut self, lock: LockName, now_us: u64) -> Option<W> {
        let at = self.queue_of(lock)?.first?;
        let deadline_us = self.deadlines.deadline_us(self.places.get(at)?.deadline?)?;
        if now_us < deadline_us {
            return None;
        }
        self.leave(Ticket(at))
    }

    /// Has the queue of `lock` looked at when `due_us` has come, in place of any earlier wish. Nothing without a queue.
    pub fn recheck_at(&mut self, lock: LockName, due_us: u64) {
        if let Some(at) = self.address_of(lock) {
            self.recheck(at, due_us);
        }
    }

    /// Has every queue of a database, or of all, looked at when `due_us` has come.
    pub fn recheck_all(&mut self, db: Option<i32>, due_us: u64) {
        let in_db = |&(&of, _): &(&i32, _)| db.is_none_or(|db| db == of);
        let found: Vec<Address> =
            self.names.iter().filter(in_db).flat_map(|(_, names)| names.values().copied()).collect();
        for at in found {
            self.recheck(at, due_us);
        }
    }

    /// One queue that is to be looked at now, as its database and name. `budget` as for [`Wheel::pop`].
    pub fn pop_recheck(&mut self, now_us: u64, budget: &mut usize) -> Option<(i32, Box<[u8]>)> {
        let at = self.rechecks.pop(now_us, budget)?;
        let queue = self.queues.get_mut(at)?;
        queue.recheck = None;
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

    fn recheck(&mut self, at: Address, due_us: u64) {
        let Some(queue) = self.queues.get_mut(at) else { return };
        match queue.recheck {
            Some(recheck) => self.rechecks.reschedule(recheck, due_us),
            None => queue.recheck = self.rechecks.insert(due_us, at),
        }
    }

    fn address_of(&self, lock: LockName) -> Option<Address> {
        self.names.get(&lock.db)?.get(lock.name).copied()
    }

    fn queue_of(&self, lock: LockName) -> Option<&Queue> {
        self.queues.get(self.address_of(lock)?)
    }

    fn address_or_new(&mut self, lock: LockName) -> Address {
        if let Some(at) = self.address_of(lock) {
            return at;
        }
        let name: Box<[u8]> = lock.name.into();
        let at = self.queues.insert(Queue {
            db: lock.db,
            name: name.clone(),
            first: None,
            last: None,
            len: 0,
            owners: BTreeMap::new(),
            recheck: None,
        });
        self.names.entry(lock.db).or_default().insert(name, at);
        at
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
        let Some(queue) = self.queues.remove(at) else { return };
        if let Some(recheck) = queue.recheck {
            self.rechecks.remove(recheck);
        }
        if let Some(names) = self.names.get_mut(&queue.db) {
            names.remove(&queue.name);
            if names.is_empty() {
                self.names.remove(&queue.db);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: LockName = LockName { db: 0, name: b"k" };
    const L: LockName = LockName { db: 1, name: b"k" };
    const LATER: u64 = 1_000_000;

    fn order(queues: &mut Queues<u32>, lock: LockName) -> Vec<u32> {
        let mut served = Vec::new();
        while let Some((ticket, &waiter)) = queues.head(lock) {
            served.push(waiter);
            queues.leave(ticket);
        }
        served
    }

    #[test]
    fn waiters_are_served_in_the_order_in_which_they_came() {
        let mut queues = Queues::new(0);
        for waiter in 0..5 {
            queues.join(K, b"o", LATER, waiter).unwrap();
            queues.join(L, b"o", LATER, 10 + waiter).unwrap();
        }
        assert_eq!((queues.waiting(K), queues.len()), (5, 10));
        assert_eq!(order(&mut queues, L), [10, 11, 12, 13, 14]);
        assert_eq!(order(&mut queues, K), [0, 1, 2, 3, 4]);
        assert!(queues.is_empty() && queues.names.is_empty() && queues.rechecks.is_empty());
    }

    #[test]
    fn one_that_leaves_the_middle_leaves_no_gap() {
        let mut queues = Queues::new(0);
        let tickets: Vec<Ticket> = (0..5).map(|waiter| queues.join(K, b"o", LATER, waiter).unwrap()).collect();
        assert_eq!(queues.leave(tickets[2]), Some(2));
        assert_eq!(queues.leave(tickets[2]), None);
        assert_eq!(queues.leave(tickets[4]), Some(4));
        assert_eq!(order(&mut queues, K), [0, 1, 3]);
    }

    #[test]
    fn waiters_whose_time_has_come_leave_by_themselves() {
        let mut queues = Queues::new(0);
        for waiter in 0..4u32 {
            queues.join(K, b"o", 10_000 * u64::from(4 - waiter), waiter).unwrap();
        }
        let mut budget = 100;
        assert_eq!(queues.pop_expired(9_000, &mut budget), None);
        assert_eq!(queues.pop_expired(11_100, &mut budget), Some(3));
        assert_eq!(queues.pop_expired(11_100, &mut budget), None);
        assert_eq!(order(&mut queues, K), [0, 1, 2]);
        assert_eq!(queues.next_expiry_us(), None);
    }

    #[test]
    fn the_head_is_taken_out_when_its_time_has_come_and_not_before() {
        let mut queues = Queues::new(0);
        queues.join(K, b"a", 10_000, 1).unwrap();
        queues.join(K, b"b", LATER, 2).unwrap();
        queues.join(K, b"c", 10_000, 3).unwrap();
        assert_eq!(queues.pop_late_head(K, 9_999), None);
        assert_eq!((queues.pop_late_head(K, 10_000), queues.pop_late_head(K, 10_000)), (Some(1), None));
        assert_eq!(queues.pop_late_head(L, LATER), None);
        assert_eq!(order(&mut queues, K), [2, 3]);
    }

    #[test]
    fn a_repeated_call_takes_over_the_place_and_the_deadline() {
        let mut queues = Queues::new(0);
        queues.join(K, b"a", 10_000, 1).unwrap();
        queues.join(K, b"b", LATER, 2).unwrap();
        assert_eq!(queues.take_over(K, b"c", LATER, 9), Err(9));
        assert_eq!(queues.take_over(L, b"a", LATER, 9), Err(9));
        let (_, before) = queues.take_over(K, b"a", LATER, 7).unwrap();
        assert_eq!(before, 1);
        assert_eq!(queues.pop_expired(20_000, &mut 100), None);
        assert_eq!(order(&mut queues, K), [7, 2]);
    }

    #[test]
    fn every_place_of_an_owner_can_be_found_in_turn() {
        let mut queues = Queues::new(0);
        let tickets: Vec<Ticket> = (0..4).map(|waiter| queues.join(K, b"o", LATER, waiter).unwrap()).collect();
        queues.leave(tickets[1]);
        for left in [0, 2, 3] {
            let ticket = queues.place_of(K, b"o").unwrap();
            assert_eq!(queues.leave(ticket), Some(left));
        }
        assert_eq!(queues.place_of(K, b"o"), None);
    }

    #[test]
    fn an_owner_leaves_a_queue_with_all_its_places_and_nobody_else_does() {
        let mut queues = Queues::new(0);
        for (waiter, owner) in [b"o", b"p", b"o", b"o", b"p"].into_iter().enumerate() {
            queues.join(K, owner, LATER, waiter as u32).unwrap();
        }
        queues.join(L, b"o", LATER, 9).unwrap();
        assert_eq!(queues.leave_all_of(K, b"o"), [0, 2, 3]);
        assert_eq!(queues.leave_all_of(K, b"o"), []);
        assert_eq!(order(&mut queues, K), [1, 4]);
        assert_eq!(order(&mut queues, L), [9]);
        assert!(queues.is_empty() && queues.names.is_empty());
    }

    #[test]
    fn a_queue_is_looked_at_when_asked_and_never_after_it_is_empty() {
        let mut queues = Queues::new(0);
        queues.recheck_at(K, 5_000);
        assert_eq!(queues.next_recheck_us(), None);
        let ticket = queues.join(K, b"o", LATER, 1).unwrap();
        queues.recheck_at(K, 50_000);
        queues.recheck_at(K, 5_000);
        assert_eq!(queues.pop_recheck(4_000, &mut 100), None);
        assert_eq!(queues.pop_recheck(6_200, &mut 100), Some((0, b"k"[..].into())));
        assert_eq!(queues.pop_recheck(60_000, &mut 100), None);
        queues.recheck_all(Some(1), 70_000);
        assert_eq!(queues.pop_recheck(80_000, &mut 100), None);
        queues.recheck_all(None, 70_000);
        queues.leave(ticket);
        assert_eq!(queues.pop_recheck(90_000, &mut 100), None);
    }
}
