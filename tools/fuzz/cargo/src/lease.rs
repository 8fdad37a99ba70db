//! The lease machine against a plain account of one lock, over calls, time, restarts and moves to another server.

use fence::lock::codec::{Clocks, ENCODED_MAX, Notes, Route, Stamp, decode, encode};
use fence::lock::lease::{
    self, Acquired, Caller, Denied, Extended, Extension, Hold, Lease, Lost, Millis, Now, Request, State, Stolen,
    Takeover, Terms,
};
use fence::{Fence, Issuer};

use crate::input::Input;

/// Where the clocks of a server start: far enough from 0 for every step back below.
const FAR_US: u64 = 1 << 50;
/// Bits of a span in milliseconds and of a jump of a clock in microseconds.
const MS_BITS: u8 = 7;
const JUMP_BITS: u8 = 40;
const OWNERS: [&[u8]; 3] = [b"a", b"b", &[0; 512]];

/// A sequence of operations.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let Some(counts) = input.flag() else { return };
    let clocks = Clocks { steady_us: FAR_US, wall_us: if counts { 0 } else { FAR_US } };
    let mut test = Test { stored: None, account: None, issuer: Issuer::default(), last: 0, clocks, counts };
    while let Some(()) = test.step(&mut input) {
        test.compare();
    }
}

/// The plain account of the last hold. Times are on the steady clock; signed, as nothing is cut in it.
#[derive(Clone, Copy)]
struct Account {
    owner: u8,
    fence: u64,
    granted_us: i128,
    ends_us: i128,
    max_hold_us: Option<i128>,
    delay_us: i128,
    ephemeral: bool,
}

struct Test {
    stored: Option<(Lease, u8)>,
    account: Option<Account>,
    issuer: Issuer,
    last: u64,
    clocks: Clocks,
    /// Fences are counted without the clock.
    counts: bool,
}

impl Test {
    fn now(&self) -> i128 {
        i128::from(self.clocks.steady_us)
    }

    fn hold(&self) -> Option<Hold<'static>> {
        self.stored.map(|(lease, owner)| Hold { lease, owner: OWNERS[usize::from(owner)] })
    }

    fn live(&self) -> Option<Account> {
        self.account.filter(|account| self.now() < account.ends_us)
    }

    fn is_shut(&self) -> bool {
        let shut = |account: Account| account.ends_us <= self.now() && self.now() < account.ends_us + account.delay_us;
        self.account.is_some_and(shut)
    }

    fn step(&mut self, input: &mut Input) -> Option<()> {
        match input.below(9)? {
            0..=2 => self.acquire(input)?,
            3 => self.extend(input)?,
            4 => self.release(input)?,
            5 => {
                let by_us = input.span(17)?;
                self.clocks.steady_us += by_us;
                self.clocks.wall_us += if self.counts { 0 } else { by_us };
            }
            6 => self.expire(),
            7 => {
                let raised = self.last + input.span(10)?;
                self.issuer.observe(raised);
                self.last = self.last.max(raised);
            }
            _ => self.carry(input)?,
        }
        Some(())
    }

    fn acquire(&mut self, input: &mut Input) -> Option<()> {
        let (owner, flags) = (input.below(3)?, input.byte()?);
        let mut ms = || Some(Millis(input.span(MS_BITS)? + 1));
        let ttl = ms()?;
        let max_hold = if flags & 1 != 0 { Some(ms()?) } else { None };
        let delay = if flags & 2 != 0 { Some(ms()?) } else { None };
        let (retry, others_wait, ephemeral) = (flags & 4 != 0, flags & 24 == 24, flags & 32 != 0);
        let terms = Terms { ttl, max_hold, delay, ephemeral };
        if flags & 192 == 192 {
            return self.steal(owner, terms, flags & 4 != 0, others_wait);
        }
        let request = Request { owner: OWNERS[usize::from(owner)], terms, retry };
        let now = Now { steady_us: self.clocks.steady_us, wall_us: self.clocks.wall_us };
        let got = lease::acquire(self.hold(), others_wait, request, &mut self.issuer, now);
        match (self.live(), got) {
            (Some(live), Ok(Acquired::Again(lease))) => {
                assert!(retry && live.owner == owner);
                assert_eq!(Some((lease, owner)), self.stored);
            }
            (Some(live), got) => {
                assert_eq!(got, Err(Denied::Held));
                assert!(!(retry && live.owner == owner));
            }
            (None, got) if self.is_shut() => assert_eq!(got, Err(Denied::Delayed)),
            (None, got) if others_wait => assert_eq!(got, Err(Denied::Queued)),
            (None, Ok(Acquired::Granted(lease))) => self.note_grant(lease, owner, terms),
            (None, got) => panic!("a free lock answered {got:?}"),
        }
        Some(())
    }

    fn note_grant(&mut self, lease: Lease, owner: u8, terms: Terms) {
        let us = |span: Millis| i128::from(span.0) * 1_000;
        self.last = (self.last + 1).max(self.clocks.wall_us);
        let max_hold_us = terms.max_hold.map(us);
        self.account = Some(Account {
            owner,
            fence: self.last,
            granted_us: self.now(),
            ends_us: self.now() + max_hold_us.map_or(us(terms.ttl), |hold_us| hold_us.min(us(terms.ttl))),
            max_hold_us,
            delay_us: terms.delay.map_or(0, us),
            ephemeral: terms.ephemeral,
        });
        self.stored = Some((lease, owner));
    }

    /// Names a fence, the live one or another, or none.
    fn steal(&mut self, owner: u8, terms: Terms, names: bool, another: bool) -> Option<()> {
        let from = names.then(|| self.account.map_or(1, |account| account.fence) + u64::from(another));
        let takeover = Takeover { owner: OWNERS[usize::from(owner)], terms, from: from.and_then(Fence::new) };
        let now = Now { steady_us: self.clocks.steady_us, wall_us: self.clocks.wall_us };
        let got = lease::steal(self.hold(), takeover, &mut self.issuer, now);
        let (live, is_shut, now) = (self.live(), self.is_shut(), self.now());
        if from.is_some_and(|from| live.is_none_or(|live| live.fence != from)) {
            assert_eq!(got, Err(Denied::NotThatHold));
        } else if is_shut {
            assert_eq!(got, Err(Denied::Delayed));
        } else if let Some(delayed) = self.account.as_mut().filter(|live| now < live.ends_us && live.delay_us > 0) {
            let Ok(Stolen::Delayed(lease)) = got else { panic!("a delay answered {got:?}") };
            delayed.ends_us = now;
            self.stored = self.stored.map(|(_, owner)| (lease, owner));
        } else {
            let Ok(Stolen::Granted(lease)) = got else { panic!("a steal answered {got:?}") };
            self.note_grant(lease, owner, terms);
        }
        Some(())
    }

    fn caller(&self, input: &mut Input) -> Option<(u8, Option<Fence>)> {
        let owner = input.below(3)?;
        let fence = match input.below(3)? {
            0 => None,
            1 => Fence::new(self.account.map_or(1, |account| account.fence)),
            _ => Fence::new(self.account.map_or(1, |account| account.fence + 1)),
        };
        Some((owner, fence))
    }

    /// Why a caller is refused, or nothing.
    fn refusal(&self, owner: u8, fence: Option<Fence>) -> Option<Lost> {
        match self.account {
            None => Some(Lost::Gone),
            Some(account) if account.owner != owner || fence.is_some_and(|fence| fence.get() != account.fence) => {
                Some(Lost::Another)
            }
            Some(account) => {
                (account.ends_us <= self.now()).then(|| Lost::Expired(Fence::new(account.fence).expect("a fence")))
            }
        }
    }

    fn extend(&mut self, input: &mut Input) -> Option<()> {
        let (owner, fence) = self.caller(input)?;
        let ttl = Millis(input.span(MS_BITS)? + 1);
        let caller = Caller { owner: OWNERS[usize::from(owner)], fence };
        // Even lengths stand for GT: kept inputs have no byte for it.
        let extension = Extension { ttl, only_longer: ttl.0.is_multiple_of(2) };
        let got = lease::extend(self.hold(), caller, extension, self.clocks.steady_us);
        assert_eq!(got.err(), self.refusal(owner, fence));
        let now = self.now();
        if let (Ok(got), Some(account)) = (got, self.account.as_mut()) {
            let latest_us = account.max_hold_us.map_or(i128::MAX, |hold_us| account.granted_us + hold_us);
            let ends_us = latest_us.min(now + i128::from(ttl.0) * 1_000);
            match got {
                Extended::Kept(lease) => {
                    assert!(extension.only_longer && ends_us <= account.ends_us);
                    assert_eq!(Some((lease, owner)), self.stored);
                }
                Extended::Moved(lease) => {
                    assert!(!extension.only_longer || ends_us > account.ends_us);
                    account.ends_us = ends_us;
                    self.stored = Some((lease, owner));
                }
            }
        }
        Some(())
    }

    fn release(&mut self, input: &mut Input) -> Option<()> {
        let (owner, fence) = self.caller(input)?;
        let caller = Caller { owner: OWNERS[usize::from(owner)], fence };
        let got = lease::release(self.hold(), caller, self.clocks.steady_us);
        assert_eq!(got.err(), self.refusal(owner, fence));
        if got.is_ok() {
            (self.stored, self.account) = (None, None);
        }
        Some(())
    }

    /// The connection of the holder closes.
    fn expire(&mut self) {
        let now = self.now();
        if let (Some((lease, _)), Some(account)) = (self.stored.as_mut(), self.account.as_mut()) {
            *lease = lease.expire(self.clocks.steady_us);
            account.ends_us = account.ends_us.min(now);
        }
    }

    /// The hold goes to another server: in the stream at once, or in a file, some time later, with a clock that stepped.
    fn carry(&mut self, input: &mut Input) -> Option<()> {
        let in_file = input.flag()?;
        let passed_us = if in_file { input.span(JUMP_BITS)? } else { 0 };
        let step_us = input.span(JUMP_BITS)? as i128 - input.span(JUMP_BITS)? as i128;
        let steady_us = FAR_US + input.span(JUMP_BITS)?;
        let keeps_last = input.flag()?;
        let before = self.clocks;
        let wall_us = (i128::from(before.wall_us) + i128::from(passed_us) + step_us).max(0);
        let after = Clocks { steady_us, wall_us: if self.counts { 0 } else { wall_us as u64 } };
        let seen_us = if in_file { after.wall_us.saturating_sub(before.wall_us) } else { 0 };
        if !keeps_last {
            (self.issuer, self.last) = (Issuer::default(), 0);
        }
        if let Some(hold) = self.hold() {
            let mut buffer = [0; ENCODED_MAX];
            let written = encode(&hold, Stamp::of_issuer(1, before), Notes::default(), &mut buffer);
            let record = decode(written).expect("what was encoded decodes");
            let route = if in_file { Route::File } else { Route::Stream };
            self.issuer.observe(record.fence().get());
            self.stored = self.stored.map(|(_, owner)| (record.lease(after, route), owner));
        }
        if let Some(account) = self.account.as_mut() {
            let by_us = i128::from(after.steady_us) - i128::from(before.steady_us) - i128::from(seen_us);
            account.granted_us += by_us;
            account.ends_us += by_us;
            self.last = self.last.max(account.fence);
        }
        self.clocks = after;
        Some(())
    }

    fn compare(&self) {
        assert_eq!(self.issuer.last(), self.last);
        assert_eq!(self.stored.is_some(), self.account.is_some());
        let (Some((lease, owner)), Some(account)) = (self.stored, self.account) else { return };
        let (now_us, now) = (self.clocks.steady_us, self.now());
        let rounded = |us: i128| ((us.max(0) + 999) / 1_000) as u64;
        let expected = match (self.live(), self.is_shut()) {
            (Some(_), _) => State::Held,
            (None, true) => State::Delay,
            (None, false) => State::Free,
        };
        assert_eq!((lease.state(now_us), lease.is_live(now_us)), (expected, expected == State::Held));
        assert_eq!((lease.fence.get(), owner, lease.ephemeral), (account.fence, account.owner, account.ephemeral));
        assert_eq!(lease.left(now_us).0, rounded(account.ends_us - now));
        let free_us = account.ends_us + account.delay_us;
        let due_us = if expected == State::Held { account.ends_us } else { free_us };
        assert_eq!((i128::from(lease.free_us()), i128::from(lease.due_us(now_us))), (free_us, due_us));
        assert_eq!(i128::from(lease.held_us(now_us)), now.min(account.ends_us) - account.granted_us);
        let left = account.max_hold_us.map(|hold_us| rounded(account.granted_us + hold_us - now));
        assert_eq!(lease.max_hold_left(now_us).map(|left| left.0), left);
        assert!(lease.is_live_hold_of(lease.fence, now_us) == (expected == State::Held));
    }
}
