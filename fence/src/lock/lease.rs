//! The lease machine of one lock: grant, extend, release, and why a call is refused.
//!
//! Not a store and not a clock: the current hold and the time are arguments. Times are microseconds on the caller's
//! monotonic clock, except where a name says wall.
//! Invariant: a refused request returns facts and changes nothing; a lease that has ended is never revived.

use crate::fence::{Fence, Issuer};
use crate::lock::ending::Ending;

/// The longest lease, wait, hold or delay: ten years of 366 days. Nothing above it is issued, so nothing above it is loaded.
pub const LONGEST: Millis = Millis(316_224_000_000);

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

    /// The span of `micros` microseconds, rounded up: time that is left is never reported as 0.
    pub const fn from_micros(micros: u64) -> Millis {
        Millis(micros.div_ceil(1_000))
    }
}

/// One moment on the two clocks of a server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Now {
    /// Microseconds on the monotonic clock, on which leases are measured.
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
    /// How long nobody gets the lock after the lease has expired.
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
    /// How long nobody gets the lock after the lease has expired.
    pub delay_us: u64,
    /// Whether it is bound to a connection.
    pub ephemeral: bool,
}

/// The state of a lock at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Somebody holds the lock.
    Held,
    /// The lease has expired and the delay after it has not passed.
    Delay,
    /// The lock can be granted, whether or not an expired lease is still stored.
    Free,
}

impl Lease {
    /// The lease of a grant at `now_us`. A ttl above the longest hold is cut to it.
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

    /// The state of the lock at `now_us`.
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

    /// Expires the lease at `now_us`, before its deadline: its connection closed.
    pub fn expire(self, now_us: u64) -> Lease {
        Lease { deadline_us: self.deadline_us.min(now_us), ..self }
    }

    /// The same lease, known to have ended by `now_us`. The end of the delay stays where it was.
    pub const fn ended_by(self, now_us: u64) -> Lease {
        if !self.is_live(now_us) || self.delay_us == 0 {
            return self;
        }
        Lease { deadline_us: now_us, delay_us: self.free_us() - now_us, ..self }
    }

    /// Why it ended, when it is replaced or removed at `now_us` by the protocol: a live lease only ends so when its holder
    /// releases it.
    pub const fn ending(&self, now_us: u64) -> Ending {
        if self.is_live(now_us) {
            Ending::Released
        } else if self.is_at_limit() {
            Ending::MaxHold
        } else {
            Ending::Expired
        }
    }

    /// Why it ended, when somebody takes the lock over at `now_us`: a lease that had expired was not stolen.
    pub const fn ending_by_steal(&self, now_us: u64) -> Ending {
        if self.is_live(now_us) { Ending::Stolen } else { self.ending(now_us) }
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

/// What an extension asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extension {
    /// The length of the lease from now on.
    pub ttl: Millis,
    /// Whether a lease that would not become longer is kept.
    pub only_longer: bool,
}

/// The result of an extension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extended {
    /// The lease with its new deadline, to be stored.
    Moved(Lease),
    /// The stored lease, which would not have become longer.
    Kept(Lease),
}

/// A request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The bytes the client chose for this acquisition.
    pub owner: &'a [u8],
    /// What it asks for.
    pub terms: Terms,
    /// Whether it repeats an acquisition whose reply may have been lost.
    pub retry: bool,
}

/// The result of a request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquired {
    /// A new lease, to be stored.
    Granted(Lease),
    /// The lease that an earlier call of this acquisition was granted, unchanged.
    Again(Lease),
}

/// A request to take a lock over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Takeover<'a> {
    /// The bytes the client chose for this acquisition.
    pub owner: &'a [u8],
    /// What it asks for.
    pub terms: Terms,
    /// The hold to be taken over; `None` takes the lock whoever holds it.
    pub from: Option<Fence>,
}

/// The result of a request to take a lock over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stolen {
    /// A new lease, to be stored.
    Granted(Lease),
    /// The lease that was there, which has ended, to be stored: its delay comes first.
    Delayed(Lease),
}

/// Why a lock was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// A live lease is stored.
    Held,
    /// The last lease has expired and the delay after it has not passed.
    Delayed,
    /// Others came first and wait.
    Queued,
    /// Another hold than the one to be taken over is stored, or none.
    NotThatHold,
    /// Every fence up to the largest has been issued.
    FencesUsedUp,
}

/// Why a caller does not hold the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// Nothing is stored: released, removed, or never granted.
    Gone,
    /// It was the caller's, with this fence, and has expired.
    Expired(Fence),
    /// The stored hold is another acquisition.
    Another,
}

/// Grants the lock if it is free and nobody came first.
///
/// `others_wait` is whether somebody is queued for it. Returns the new lease, to be stored in place of `current`, or the
/// one that this acquisition has already. A refusal uses up no fence.
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

/// Takes the lock over, whoever holds it or waits for it: the holder is fenced by the next fence.
///
/// A delay is for resources that cannot compare fences, so a live lease with one only ends, and nobody gets the lock in
/// the delay. A refusal uses up no fence.
pub fn steal(current: Option<Hold>, takeover: Takeover, issuer: &mut Issuer, now: Now) -> Result<Stolen, Denied> {
    let live = current.filter(|hold| hold.lease.is_live(now.steady_us));
    if takeover.from.is_some_and(|fence| live.is_none_or(|hold| hold.lease.fence != fence)) {
        return Err(Denied::NotThatHold);
    }
    match current.map_or(State::Free, |hold| hold.lease.state(now.steady_us)) {
        State::Delay => Err(Denied::Delayed),
        State::Free => grant(takeover.terms, issuer, now).map(Stolen::Granted),
        State::Held => match live {
            Some(hold) if hold.lease.delay_us > 0 => Ok(Stolen::Delayed(hold.lease.expire(now.steady_us))),
            _ => grant(takeover.terms, issuer, now).map(Stolen::Granted),
        },
    }
}

/// Issues a fence and grants a free lock: to a caller, or to the head of its queue.
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
        return Err(Lost::Expired(hold.lease.fence));
    }
    Ok(hold.lease)
}

/// Moves the deadline to `ttl` from `now_us`, cut by the longest hold, whatever time was left; or only if that is later.
///
/// The fence stays. A lease that has ended is not revived.
pub fn extend(current: Option<Hold>, caller: Caller, extension: Extension, now_us: u64) -> Result<Extended, Lost> {
    let lease = live_hold(current, caller, now_us)?;
    let deadline_us = lease.limit_us.min(now_us.saturating_add(extension.ttl.as_micros()));
    if extension.only_longer && deadline_us <= lease.deadline_us {
        return Ok(Extended::Kept(lease));
    }
    Ok(Extended::Moved(Lease { deadline_us, ..lease }))
}

/// Ends the lease of `caller` at its own request, so without a delay.
///
/// Returns the lease that ended. The lock is then removed, or granted to the head of its queue.
pub fn release(current: Option<Hold>, caller: Caller, now_us: u64) -> Result<Lease, Lost> {
    live_hold(current, caller, now_us)
}

#[cfg(test)]
mod tests;
