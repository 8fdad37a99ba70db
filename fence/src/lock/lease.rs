//! The lease machine of one lock: grant, extend, release, and what a refused caller is told.
//!
//! Not a store and not a clock: the current hold and the time are arguments. Times are microseconds on a clock that never
//! steps (the caller's), except where a name says wall.
//! Invariant: a refused request returns facts and changes nothing; a lease that has ended is never revived.

use crate::fence::{Fence, Issuer};
use crate::lock::ending::Ending;

/// The longest lease, wait, hold or delay that exists: ten years. Nothing above it is issued, so nothing above it is loaded.
pub const LONGEST: Millis = Millis(10 * 366 * 24 * 3_600 * 1_000);

/// The longest owner, in bytes: room for any generated name, small enough to copy on every grant.
pub const OWNER_MAX: usize = 512;

/// A span of time in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Millis(pub u64);

impl Millis {
    /// The span in microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0.saturating_mul(1_000)
    }

    /// The span of `micros` microseconds, rounded up, so that what is left is never told as 0.
    pub const fn from_micros(micros: u64) -> Millis {
        Millis(micros.div_ceil(1_000))
    }
}

/// One moment on the two clocks of a server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Now {
    /// Microseconds on the clock that never steps. Leases are measured on it.
    pub steady_us: u64,
    /// Unix time in microseconds, or 0 when fences are to be counted without the clock.
    pub wall_us: u64,
}

/// What a client asks for with a grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Terms {
    /// The length of the lease.
    pub ttl: Millis,
    /// However often it is extended, the lease ends this long after the grant.
    pub max_hold: Option<Millis>,
    /// After a lease that ran out nobody gets the lock for this long.
    pub delay: Option<Millis>,
    /// The lease also ends when the connection that acquired it closes.
    pub ephemeral: bool,
}

/// A granted lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lease {
    /// The number issued with the grant.
    pub fence: Fence,
    /// When it was granted.
    pub granted_us: u64,
    /// When it ends unless extended or released.
    pub deadline_us: u64,
    /// The latest deadline that extensions can reach; `u64::MAX` without a longest hold.
    pub limit_us: u64,
    /// How long the lock stays shut after the lease has run out.
    pub delay_us: u64,
    /// Whether it is bound to a connection.
    pub ephemeral: bool,
}

/// What a lease amounts to at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Somebody holds the lock.
    Held,
    /// The lease ran out and the lock is shut for a while.
    Delay,
    /// The lock can be granted, whether or not an entry is still stored.
    Free,
}

impl Lease {
    /// The lease that a grant at `now_us` makes. A ttl above the longest hold is cut to it.
    pub fn grant(fence: Fence, terms: Terms, now_us: u64) -> Lease {
        let limit_us = terms.max_hold.map_or(u64::MAX, |hold| now_us.saturating_add(hold.as_micros()));
        Lease {
            fence,
            granted_us: now_us,
            deadline_us: limit_us.min(now_us.saturating_add(terms.ttl.as_micros())),
            limit_us,
            delay_us: terms.delay.map_or(0, Millis::as_micros),
            ephemeral: terms.ephemeral,
        }
    }

    /// Live while now < deadline. This is the one place that says so.
    pub const fn is_live(&self, now_us: u64) -> bool {
        now_us < self.deadline_us
    }

    /// When the lock is free again if nothing else happens: the deadline and the delay after it.
    pub const fn free_us(&self) -> u64 {
        self.deadline_us.saturating_add(self.delay_us)
    }

    /// When its state changes next, seen from `now_us`: at the deadline, or at the end of the delay.
    pub const fn due_us(&self, now_us: u64) -> u64 {
        if self.is_live(now_us) { self.deadline_us } else { self.free_us() }
    }

    /// What this lease amounts to at `now_us`.
    pub const fn state(&self, now_us: u64) -> State {
        if self.is_live(now_us) {
            State::Held
        } else if now_us < self.free_us() {
            State::Delay
        } else {
            State::Free
        }
    }

    /// How long it has been held, to its end at most, in microseconds.
    pub const fn held_us(&self, now_us: u64) -> u64 {
        let end_us = if self.is_live(now_us) { now_us } else { self.deadline_us };
        end_us.saturating_sub(self.granted_us)
    }

    /// What is left of the longest hold, rounded up; `None` without one.
    pub const fn max_hold_left(&self, now_us: u64) -> Option<Millis> {
        if self.limit_us == u64::MAX {
            return None;
        }
        Some(Millis::from_micros(self.limit_us.saturating_sub(now_us)))
    }

    /// Whether its deadline is that of the longest hold, which no extension can move.
    pub const fn is_at_limit(&self) -> bool {
        self.deadline_us == self.limit_us
    }

    /// Whether this is the live hold of `fence` at `now_us`.
    pub fn is_live_hold_of(&self, fence: Fence, now_us: u64) -> bool {
        self.fence == fence && self.is_live(now_us)
    }

    /// The lease as it is when it runs out at `now_us`, before its time: its connection closed.
    pub fn expire(self, now_us: u64) -> Lease {
        Lease { deadline_us: self.deadline_us.min(now_us), ..self }
    }

    /// The same lease, known to have ended by `now_us`. The delay after it ends when it would have.
    pub const fn ended_by(self, now_us: u64) -> Lease {
        if !self.is_live(now_us) || self.delay_us == 0 {
            return self;
        }
        Lease { deadline_us: now_us, delay_us: self.free_us() - now_us, ..self }
    }

    /// Why it has ended when it is replaced or removed at `now_us` in good order: while it is live, because its holder gave
    /// it back.
    pub const fn ending(&self, now_us: u64) -> Ending {
        if self.is_live(now_us) {
            Ending::Released
        } else if self.is_at_limit() {
            Ending::MaxHold
        } else {
            Ending::Expired
        }
    }

    /// The time left at `now_us`, rounded up: at least 1 ms while the lease is live, else 0.
    pub const fn left(&self, now_us: u64) -> Millis {
        Millis::from_micros(self.deadline_us.saturating_sub(now_us))
    }
}

/// The stored hold of a lock: its lease and its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold<'a> {
    /// The granted lease, which may have ended.
    pub lease: Lease,
    /// The bytes the client chose.
    pub owner: &'a [u8],
}

/// Who calls: an owner, and the fence if the call names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller<'a> {
    /// The bytes the client chose for its acquisition.
    pub owner: &'a [u8],
    /// With a fence the hold must match whole: a stale thread may share its owner with its successor.
    pub fence: Option<Fence>,
}

/// A request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The bytes the client chose for this acquisition.
    pub owner: &'a [u8],
    /// What it asks for.
    pub terms: Terms,
    /// It repeats an acquisition whose reply may have been lost.
    pub retry: bool,
}

/// What a request for a lock brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquired {
    /// A new lease, to be stored.
    Granted(Lease),
    /// The lease that an earlier call of this acquisition got; it is not changed.
    Again(Lease),
}

/// Why a lock was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// A live lease is stored.
    Held,
    /// The last lease ran out and its delay is not over.
    Delayed,
    /// Others came first and wait.
    Queued,
    /// Every fence up to the largest has been issued.
    FencesUsedUp,
}

/// Why a hold is not the caller's any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// Nothing is stored: released, removed, or never granted.
    Gone,
    /// It was the caller's and its time has passed.
    Expired,
    /// The stored hold is another acquisition.
    Another,
}

/// Grants the lock if it is free and nobody came first.
///
/// `others_wait` tells whether somebody is queued for it. Returns the new lease, to be stored in place of `current`, or
/// the one that this acquisition has already. No fence is used up by a refusal.
pub fn acquire(
    current: Option<Hold>,
    others_wait: bool,
    request: Request,
    issuer: &mut Issuer,
    now: Now,
) -> Result<Acquired, Denied> {
    match current.map_or(State::Free, |hold| hold.lease.state(now.steady_us)) {
        State::Held => match current {
            Some(hold) if request.retry && hold.owner == request.owner => Ok(Acquired::Again(hold.lease)),
            _ => Err(Denied::Held),
        },
        State::Delay => Err(Denied::Delayed),
        State::Free if others_wait => Err(Denied::Queued),
        State::Free => grant(request.terms, issuer, now).map(Acquired::Granted),
    }
}

/// Makes the lease of a grant: of a free lock to a caller, or of one to the head of its queue.
pub fn grant(terms: Terms, issuer: &mut Issuer, now: Now) -> Result<Lease, Denied> {
    let fence = issuer.issue(now.wall_us).ok_or(Denied::FencesUsedUp)?;
    Ok(Lease::grant(fence, terms, now.steady_us))
}

/// Finds the live hold of `caller`.
fn live_hold(current: Option<Hold>, caller: Caller, now_us: u64) -> Result<Lease, Lost> {
    let hold = current.ok_or(Lost::Gone)?;
    if hold.owner != caller.owner || caller.fence.is_some_and(|fence| fence != hold.lease.fence) {
        return Err(Lost::Another);
    }
    if !hold.lease.is_live(now_us) {
        return Err(Lost::Expired);
    }
    Ok(hold.lease)
}

/// Moves the deadline to `ttl` from `now_us`, cut by the longest hold; it replaces what was left.
///
/// Returns the lease to store. The fence stays. A lease that has ended is not revived.
pub fn extend(current: Option<Hold>, caller: Caller, ttl: Millis, now_us: u64) -> Result<Lease, Lost> {
    let lease = live_hold(current, caller, now_us)?;
    let deadline_us = lease.limit_us.min(now_us.saturating_add(ttl.as_micros()));
    Ok(Lease { deadline_us, ..lease })
}

/// Ends the lease of `caller` by its own wish, so without a delay.
///
/// Returns the lease that ended; the caller removes it or hands the lock on.
pub fn release(current: Option<Hold>, caller: Caller, now_us: u64) -> Result<Lease, Lost> {
    live_hold(current, caller, now_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;
    const A: Caller = Caller { owner: b"a", fence: None };
    const B: Caller = Caller { owner: b"b", fence: None };

    fn ttl(ms: u64) -> Terms {
        Terms { ttl: Millis(ms), max_hold: None, delay: None, ephemeral: false }
    }

    fn at(steady_us: u64) -> Now {
        Now { steady_us, wall_us: 0 }
    }

    fn by(owner: &[u8], terms: Terms) -> Request<'_> {
        Request { owner, terms, retry: false }
    }

    fn granted(terms: Terms) -> Lease {
        grant(terms, &mut Issuer::default(), at(0)).unwrap()
    }

    fn by_a(lease: Lease) -> Option<Hold<'static>> {
        Some(Hold { lease, owner: b"a" })
    }

    #[test]
    fn a_lease_is_live_until_its_deadline_and_not_at_it() {
        let lease = granted(ttl(10));
        assert_eq!(lease.state(10 * MS - 1), State::Held);
        assert_eq!(lease.state(10 * MS), State::Free);
    }

    #[test]
    fn a_held_lock_is_refused_and_uses_no_fence() {
        let mut issuer = Issuer::default();
        let lease = grant(ttl(10), &mut issuer, at(0)).unwrap();
        assert_eq!(acquire(by_a(lease), false, by(b"b", ttl(10)), &mut issuer, at(9 * MS)), Err(Denied::Held));
        let next = acquire(by_a(lease), false, by(b"b", ttl(10)), &mut issuer, at(10 * MS));
        let expected = Lease::grant(Fence::new(2).unwrap(), ttl(10), 10 * MS);
        assert_eq!(next, Ok(Acquired::Granted(expected)));
    }

    #[test]
    fn a_retry_of_the_holder_gets_the_same_lease_and_nobody_else_does() {
        let mut issuer = Issuer::default();
        let lease = grant(ttl(10), &mut issuer, at(0)).unwrap();
        let retry = |owner| Request { retry: true, ..by(owner, ttl(99)) };
        assert_eq!(acquire(by_a(lease), false, retry(b"a"), &mut issuer, at(5)), Ok(Acquired::Again(lease)));
        assert_eq!(acquire(by_a(lease), false, retry(b"b"), &mut issuer, at(5)), Err(Denied::Held));
        assert_eq!(acquire(by_a(lease), false, by(b"a", ttl(99)), &mut issuer, at(5)), Err(Denied::Held));
        assert_eq!(issuer.last(), 1);
    }

    #[test]
    fn a_newcomer_does_not_overtake_those_who_wait() {
        let mut issuer = Issuer::default();
        assert_eq!(acquire(None, true, by(b"b", ttl(10)), &mut issuer, at(0)), Err(Denied::Queued));
        assert_eq!(issuer.last(), 0);
    }

    #[test]
    fn a_lease_that_runs_out_early_has_its_delay_after_that() {
        let lease = granted(Terms { delay: Some(Millis(20)), ..ttl(100) });
        let ended = lease.expire(30 * MS);
        assert_eq!(
            (ended.state(30 * MS), ended.state(49 * MS), ended.state(50 * MS)),
            (State::Delay, State::Delay, State::Free)
        );
        assert_eq!(lease.expire(500 * MS), lease);
    }

    #[test]
    fn a_lease_that_is_known_to_have_ended_keeps_the_end_of_its_delay() {
        let lease = granted(Terms { delay: Some(Millis(20)), ..ttl(100) });
        let ended = lease.ended_by(99 * MS);
        assert_eq!((ended.state(99 * MS), ended.free_us()), (State::Delay, lease.free_us()));
        assert_eq!((lease.ended_by(100 * MS), lease.ended_by(150 * MS)), (lease, lease));
        assert_eq!(granted(ttl(100)).ended_by(1), granted(ttl(100)));
    }

    #[test]
    fn used_up_fences_grant_nothing() {
        let mut issuer = Issuer::default();
        issuer.observe(Fence::MAX);
        assert_eq!(acquire(None, false, by(b"a", ttl(10)), &mut issuer, at(0)), Err(Denied::FencesUsedUp));
    }

    #[test]
    fn an_extension_replaces_what_was_left_and_keeps_the_fence() {
        let lease = granted(ttl(100));
        let shorter = extend(by_a(lease), A, Millis(5), 50 * MS).unwrap();
        assert_eq!(shorter.deadline_us, 55 * MS);
        assert_eq!(shorter.fence, lease.fence);
        assert_eq!(shorter.granted_us, 0);
    }

    #[test]
    fn extend_after_the_deadline_is_refused() {
        let lease = granted(ttl(10));
        assert_eq!(extend(by_a(lease), A, Millis(10), 10 * MS), Err(Lost::Expired));
        assert_eq!(extend(None, A, Millis(10), 1), Err(Lost::Gone));
    }

    #[test]
    fn another_owner_or_another_fence_has_no_say() {
        let lease = granted(ttl(10));
        assert_eq!(release(by_a(lease), B, 1), Err(Lost::Another));
        let stale = Caller { owner: b"a", fence: Fence::new(99) };
        assert_eq!(release(by_a(lease), stale, 1), Err(Lost::Another));
        assert_eq!(extend(by_a(lease), stale, Millis(10), 1), Err(Lost::Another));
        let exact = Caller { owner: b"a", fence: Some(lease.fence) };
        assert_eq!(release(by_a(lease), exact, 1), Ok(lease));
    }

    #[test]
    fn the_longest_hold_cuts_the_ttl_and_every_extension() {
        let terms = Terms { max_hold: Some(Millis(30)), ..ttl(100) };
        let lease = granted(terms);
        assert_eq!(lease.deadline_us, 30 * MS);
        let extended = extend(by_a(lease), A, Millis(100), 29 * MS).unwrap();
        assert_eq!(extended.deadline_us, 30 * MS);
        assert_eq!(extended.left(29 * MS), Millis(1));
        assert!(extended.is_at_limit() && !granted(ttl(10)).is_at_limit());
        assert_eq!((extended.max_hold_left(29 * MS), granted(ttl(10)).max_hold_left(0)), (Some(Millis(1)), None));
        assert_eq!((extended.held_us(29 * MS), extended.held_us(99 * MS)), (29 * MS, 30 * MS));
    }

    #[test]
    fn in_the_delay_nobody_gets_extends_or_releases_the_lock() {
        let terms = Terms { delay: Some(Millis(20)), ..ttl(10) };
        let lease = granted(terms);
        let mut issuer = Issuer::default();
        assert_eq!(lease.state(15 * MS), State::Delay);
        let retry = Request { retry: true, ..by(b"a", terms) };
        assert_eq!(acquire(by_a(lease), false, retry, &mut issuer, at(15 * MS)), Err(Denied::Delayed));
        assert_eq!(extend(by_a(lease), A, Millis(10), 15 * MS), Err(Lost::Expired));
        assert_eq!(release(by_a(lease), A, 15 * MS), Err(Lost::Expired));
        assert!(acquire(by_a(lease), false, retry, &mut issuer, at(30 * MS)).is_ok());
    }

    #[test]
    fn a_lease_ends_by_its_holder_by_time_or_by_its_longest_hold() {
        let (plain, bounded) = (granted(ttl(10)), granted(Terms { max_hold: Some(Millis(10)), ..ttl(20) }));
        let ending = |lease: Lease, at_ms| lease.ending(at_ms * MS);
        assert_eq!([ending(plain, 9), ending(bounded, 9)], [Ending::Released; 2]);
        assert_eq!((ending(plain, 10), ending(bounded, 10)), (Ending::Expired, Ending::MaxHold));
        // Its connection closed before.
        assert_eq!(ending(bounded.expire(4 * MS), 5), Ending::Expired);
    }

    #[test]
    fn what_is_left_is_rounded_up() {
        let lease = granted(ttl(10));
        assert_eq!(lease.left(10 * MS - 1), Millis(1));
        assert_eq!(lease.left(0), Millis(10));
        assert_eq!(lease.left(99 * MS), Millis(0));
    }

    #[test]
    fn the_longest_terms_do_not_overflow() {
        let lease = Lease::grant(Fence::new(1).unwrap(), Terms { delay: Some(LONGEST), ..ttl(u64::MAX) }, u64::MAX - 5);
        assert_eq!(lease.free_us(), u64::MAX);
    }
}
