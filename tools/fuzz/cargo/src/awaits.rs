//! Who awaits which hold, against a plain list.

use fence::Fence;
use fence::lock::awaits::Awaits;
use fence::lock::queue::{LockName, Ticket};

use crate::input::Input;

const ORIGIN_US: u64 = 1_700_000_000_000_000;
/// How late an awaiter or a recheck may come out.
const TICK_US: u64 = 1_024;
/// Bits of a span: from nothing to some two minutes.
const SPAN_BITS: u8 = 27;
const LOCKS: u8 = 4;
const FENCES: u8 = 5;
const NAMES: [&[u8]; LOCKS as usize] = [b"", b"a", b"a", b"\0long name"];

/// A sequence of operations.
pub fn run(data: &[u8]) {
    let mut test = Test {
        awaits: Awaits::new(ORIGIN_US),
        listed: Vec::new(),
        ahead: Vec::new(),
        rechecks: [None; LOCKS as usize],
        now_us: ORIGIN_US,
        next: 0,
    };
    let mut input = Input(data);
    while let Some(()) = test.step(&mut input) {
        test.compare();
    }
    let all: Vec<u32> = test.listed.iter().map(|one| one.id).collect();
    let mut left = test.awaits.leave_all();
    left.sort_unstable();
    assert_eq!(left, all);
    assert!(test.awaits.is_empty());
    assert_eq!(test.awaits.next_us(), None);
}

fn name(lock: u8) -> LockName<'static> {
    LockName { db: i32::from(lock / 2), name: NAMES[usize::from(lock)] }
}

fn fence(number: u8) -> Fence {
    Fence::new(u64::from(number) + 1).expect("a small number is a fence")
}

struct Listed {
    id: u32,
    hold: (u8, u8),
    deadline_us: u64,
    ticket: Ticket,
}

struct Test {
    awaits: Awaits<u32>,
    /// In the order of their joining.
    listed: Vec<Listed>,
    /// Holds, as lock and fence, that were ahead when somebody asked.
    ahead: Vec<(u8, u8)>,
    /// When each lock is to be rechecked.
    rechecks: [Option<u64>; LOCKS as usize],
    now_us: u64,
    next: u32,
}

impl Test {
    fn step(&mut self, input: &mut Input) -> Option<()> {
        match input.below(10)? {
            0..=2 => {
                let (hold, is_ahead) = (Self::hold(input)?, input.flag()?);
                let deadline_us = self.now_us + input.span(SPAN_BITS)?;
                self.next += 1;
                let ticket = self.awaits.join(name(hold.0), fence(hold.1), is_ahead, deadline_us, self.next)?;
                self.listed.push(Listed { id: self.next, hold, deadline_us, ticket });
                if is_ahead && !self.ahead.contains(&hold) {
                    self.ahead.push(hold);
                }
            }
            3 => {
                let at = input.place()? % self.listed.len().max(1);
                if at < self.listed.len() {
                    let gone = self.listed.remove(at);
                    assert_eq!(self.awaits.leave(gone.ticket), Some(gone.id));
                    assert_eq!(self.awaits.leave(gone.ticket), None);
                }
            }
            4 => {
                let hold = Self::hold(input)?;
                let ended = self.awaits.end(name(hold.0), fence(hold.1));
                assert_eq!(ended, self.take(|one| one.hold == hold));
            }
            5 => {
                let hold = Self::hold(input)?;
                self.awaits.arrive(name(hold.0), fence(hold.1));
                self.ahead.retain(|&one| one != hold);
            }
            6 => {
                let last = input.below(FENCES + 1)?;
                let mut passed = Vec::new();
                while let Some(ids) = self.awaits.pop_passed(u64::from(last)) {
                    passed.extend(ids);
                }
                passed.sort_unstable();
                let ahead = std::mem::take(&mut self.ahead);
                assert_eq!(passed, self.take(|one| one.hold.1 < last && ahead.contains(&one.hold)));
                self.ahead = ahead;
            }
            7 => {
                let (lock, due_us) = (input.below(LOCKS)?, self.now_us + input.span(SPAN_BITS)?);
                self.awaits.recheck_at(name(lock), due_us);
                self.want_recheck(lock, due_us);
            }
            8 => {
                let (db, due_us) = (input.below(3)?, self.now_us + input.span(SPAN_BITS)?);
                self.awaits.recheck_all((db < 2).then_some(i32::from(db)), due_us);
                for lock in (0..LOCKS).filter(|&lock| db == 2 || db == lock / 2) {
                    self.want_recheck(lock, due_us);
                }
            }
            _ => {
                self.now_us += input.span(SPAN_BITS)?;
                self.pop_all(usize::from(input.byte()?) + 1);
            }
        }
        // What was ahead, and when to recheck, are forgotten with the last that awaited it.
        let listed = &self.listed;
        self.ahead.retain(|hold| listed.iter().any(|one| one.hold == *hold));
        for (lock, recheck) in (0..LOCKS).zip(&mut self.rechecks) {
            recheck.take_if(|_| !listed.iter().any(|one| one.hold.0 == lock));
        }
        Some(())
    }

    /// A lock and a fence.
    fn hold(input: &mut Input) -> Option<(u8, u8)> {
        Some((input.below(LOCKS)?, input.below(FENCES)?))
    }

    /// Takes those from the list, in order.
    fn take(&mut self, is_one: impl Fn(&Listed) -> bool) -> Vec<u32> {
        self.listed.extract_if(.., |one| is_one(one)).map(|one| one.id).collect()
    }

    fn want_recheck(&mut self, lock: u8, due_us: u64) {
        if self.listed.iter().any(|one| one.hold.0 == lock) {
            self.rechecks[usize::from(lock)] = Some(due_us);
        }
    }

    fn pop_all(&mut self, budget: usize) {
        loop {
            let mut left = budget;
            while let Some(id) = self.awaits.pop_expired(self.now_us, &mut left) {
                let at = self.listed.iter().position(|one| one.id == id).expect("an awaiter comes out once");
                let gone = self.listed.remove(at);
                assert!(gone.deadline_us <= self.now_us, "awaiter {id} is early");
                if !self.listed.iter().any(|one| one.hold.0 == gone.hold.0) {
                    self.rechecks[usize::from(gone.hold.0)] = None;
                }
            }
            while let Some((db, named)) = self.awaits.pop_recheck(self.now_us, &mut left) {
                let is_it = |&lock: &u8| i32::from(lock / 2) == db && *NAMES[usize::from(lock)] == *named;
                let lock = (0..LOCKS).find(is_it).expect("one of ours");
                let due_us = self.rechecks[usize::from(lock)].take();
                assert!(due_us.is_some_and(|due_us| due_us <= self.now_us), "the recheck of {lock} is early");
            }
            if left > 0 {
                break;
            }
        }
        let late = |due_us: u64| due_us + TICK_US <= self.now_us;
        assert!(!self.listed.iter().any(|one| late(one.deadline_us)), "an awaiter is late");
        assert!(!self.rechecks.iter().flatten().any(|&due_us| late(due_us)), "a recheck is late");
    }

    fn compare(&self) {
        assert_eq!((self.awaits.len(), self.awaits.is_empty()), (self.listed.len(), self.listed.is_empty()));
        for number in 0..FENCES {
            assert_eq!(self.awaits.awaits(fence(number)), self.listed.iter().any(|one| one.hold.1 == number));
        }
        for lock in 0..LOCKS {
            let live = fence(0);
            let others = (1..FENCES)
                .filter(|&number| self.listed.iter().any(|one| one.hold == (lock, number)))
                .filter(|&number| !self.ahead.contains(&(lock, number)))
                .map(fence);
            assert_eq!(self.awaits.others(name(lock), Some(live)), others.collect::<Vec<_>>());
        }
        let deadlines = self.listed.iter().map(|one| one.deadline_us);
        let earliest_us = deadlines.chain(self.rechecks.iter().flatten().copied()).min();
        assert_eq!(self.awaits.next_us().is_some(), earliest_us.is_some());
        let is_in_time = |(next_us, earliest_us): (u64, u64)| next_us < earliest_us.max(self.now_us) + TICK_US;
        assert!(self.awaits.next_us().zip(earliest_us).is_none_or(is_in_time));
    }
}
