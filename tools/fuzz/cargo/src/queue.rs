//! The queues against plain lists.

use fence::lock::queue::{LockName, Queues, Ticket};

use crate::input::Input;

const ORIGIN_US: u64 = 1_700_000_000_000_000;
/// How late a waiter or a recheck may come out.
const TICK_US: u64 = 1_024;
/// Bits of a span: from nothing to some two minutes.
const SPAN_BITS: u8 = 27;
const LOCKS: u8 = 4;
const NAMES: [&[u8]; LOCKS as usize] = [b"", b"a", b"a", b"\0long name"];
const OWNERS: [&[u8]; 3] = [b"x", b"y", b""];

/// A sequence of operations.
pub fn run(data: &[u8]) {
    let mut test = Test {
        queues: Queues::new(ORIGIN_US),
        waiters: Vec::new(),
        rechecks: [None; LOCKS as usize],
        now_us: ORIGIN_US,
        next: 0,
    };
    let mut input = Input(data);
    while let Some(()) = test.step(&mut input) {
        test.compare();
    }
    while let Some(waiter) = test.waiters.pop() {
        assert_eq!(test.queues.leave(waiter.ticket), Some(waiter.id));
    }
    assert!(test.queues.is_empty());
    assert_eq!((test.queues.next_expiry_us(), test.queues.next_recheck_us()), (None, None));
}

fn name(lock: u8) -> LockName<'static> {
    LockName { db: i32::from(lock / 2), name: NAMES[usize::from(lock)] }
}

struct Listed {
    id: u32,
    lock: u8,
    owner: u8,
    deadline_us: u64,
    ticket: Ticket,
}

struct Test {
    queues: Queues<u32>,
    /// In the order of their joining.
    waiters: Vec<Listed>,
    /// When each queue is to be rechecked.
    rechecks: [Option<u64>; LOCKS as usize],
    now_us: u64,
    next: u32,
}

impl Test {
    fn step(&mut self, input: &mut Input) -> Option<()> {
        match input.below(10)? {
            0..=2 => {
                let (lock, owner) = (input.below(LOCKS)?, input.below(3)?);
                let deadline_us = self.now_us + input.span(SPAN_BITS)?;
                let id = self.id();
                let ticket = self.queues.join(name(lock), OWNERS[usize::from(owner)], deadline_us, id)?;
                self.waiters.push(Listed { id, lock, owner, deadline_us, ticket });
            }
            3 => {
                let (lock, owner) = (input.below(LOCKS)?, input.below(3)?);
                let deadline_us = self.now_us + input.span(SPAN_BITS)?;
                let id = self.id();
                let own = OWNERS[usize::from(owner)];
                let place = self.waiters.iter_mut().find(|listed| listed.lock == lock && listed.owner == owner);
                assert_eq!(self.queues.place_of(name(lock), own), place.as_ref().map(|place| place.ticket));
                let taken = self.queues.take_over(name(lock), own, deadline_us, id);
                assert_eq!(taken, place.as_ref().map(|place| (place.ticket, place.id)).ok_or(id));
                if let Some(place) = place {
                    (place.id, place.deadline_us) = (id, deadline_us);
                }
            }
            4 => {
                let at = input.place()? % self.waiters.len().max(1);
                if at < self.waiters.len() {
                    let gone = self.remove(at);
                    assert_eq!(self.queues.leave(gone.ticket), Some(gone.id));
                    assert_eq!(self.queues.leave(gone.ticket), None);
                }
            }
            5 => {
                let lock = input.below(LOCKS)?;
                let head = self.queues.head(name(lock)).map(|(ticket, &id)| (ticket, id));
                let first = self.waiters.iter().position(|listed| listed.lock == lock);
                assert_eq!(head, first.map(|at| (self.waiters[at].ticket, self.waiters[at].id)));
                if let (Some((ticket, id)), Some(at)) = (head, first) {
                    self.remove(at);
                    assert_eq!(self.queues.leave(ticket), Some(id));
                }
            }
            6 => {
                let (lock, due_us) = (input.below(LOCKS)?, self.now_us + input.span(SPAN_BITS)?);
                self.queues.recheck_at(name(lock), due_us);
                self.want_recheck(lock, due_us);
            }
            7 => {
                let (db, due_us) = (input.below(3)?, self.now_us + input.span(SPAN_BITS)?);
                self.queues.recheck_all((db < 2).then_some(i32::from(db)), due_us);
                for lock in (0..LOCKS).filter(|&lock| db == 2 || db == lock / 2) {
                    self.want_recheck(lock, due_us);
                }
            }
            8 => {
                let (lock, owner) = (input.below(LOCKS)?, input.below(3)?);
                let listed = |listed: &Listed| listed.lock == lock && listed.owner == owner;
                let ids: Vec<u32> = self.waiters.iter().filter(|one| listed(one)).map(|one| one.id).collect();
                assert_eq!(self.queues.leave_all_of(name(lock), OWNERS[usize::from(owner)]), ids);
                while let Some(at) = self.waiters.iter().position(listed) {
                    self.remove(at);
                }
            }
            _ => {
                self.now_us += input.span(SPAN_BITS)?;
                self.pop_all(usize::from(input.byte()?) + 1);
            }
        }
        Some(())
    }

    fn id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn remove(&mut self, at: usize) -> Listed {
        let gone = self.waiters.remove(at);
        if !self.waiters.iter().any(|listed| listed.lock == gone.lock) {
            self.rechecks[usize::from(gone.lock)] = None;
        }
        gone
    }

    fn want_recheck(&mut self, lock: u8, due_us: u64) {
        if self.waiters.iter().any(|listed| listed.lock == lock) {
            self.rechecks[usize::from(lock)] = Some(due_us);
        }
    }

    fn pop_all(&mut self, budget: usize) {
        loop {
            let mut left = budget;
            while let Some(id) = self.queues.pop_expired(self.now_us, &mut left) {
                let at = self.waiters.iter().position(|listed| listed.id == id).expect("a waiter comes out once");
                assert!(self.remove(at).deadline_us <= self.now_us, "waiter {id} is early");
            }
            while let Some((db, name)) = self.queues.pop_recheck(self.now_us, &mut left) {
                let named = |&lock: &u8| i32::from(lock / 2) == db && *NAMES[usize::from(lock)] == *name;
                let lock = (0..LOCKS).find(named).expect("one of ours");
                let due_us = self.rechecks[usize::from(lock)].take();
                assert!(due_us.is_some_and(|due_us| due_us <= self.now_us), "the recheck of {lock} is early");
            }
            if left > 0 {
                break;
            }
        }
        let late = |due_us: u64| due_us + TICK_US <= self.now_us;
        assert!(!self.waiters.iter().any(|listed| late(listed.deadline_us)), "a waiter is late");
        assert!(!self.rechecks.iter().flatten().any(|&due_us| late(due_us)), "a recheck is late");
    }

    fn compare(&self) {
        assert_eq!(self.queues.len(), self.waiters.len());
        for lock in 0..LOCKS {
            let waiting = self.waiters.iter().filter(|listed| listed.lock == lock).count();
            assert_eq!(self.queues.waiting(name(lock)), waiting);
        }
        for (next_us, earliest_us) in [
            (self.queues.next_expiry_us(), self.waiters.iter().map(|listed| listed.deadline_us).min()),
            (self.queues.next_recheck_us(), self.rechecks.iter().flatten().copied().min()),
        ] {
            assert_eq!(next_us.is_some(), earliest_us.is_some());
            assert!(next_us.zip(earliest_us).is_none_or(|(next, earliest)| next < earliest.max(self.now_us) + TICK_US));
        }
    }
}
