//! The fence: the number that grows with every grant, and how the next one is chosen.
//!
//! Not a counter per lock: one number serves a whole server, so no name needs a record after its release.
//! Invariant: an [`Issuer`] never gives out a fence at or below one it has issued, observed or been raised to.

use std::fmt;
use std::num::NonZeroU64;

/// A fence: a positive integer of at most 2^53 - 1, so that JavaScript, JSON and Lua numbers hold it exactly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fence(NonZeroU64);

impl Fence {
    /// The largest fence, 2^53 - 1. As microseconds since 1970 it is reached in the year 2255.
    pub const MAX: u64 = (1 << 53) - 1;

    /// The fence with this number, or `None` when it is 0 or above [`Fence::MAX`].
    pub const fn new(number: u64) -> Option<Fence> {
        if number > Fence::MAX {
            return None;
        }
        match NonZeroU64::new(number) {
            Some(number) => Some(Fence(number)),
            None => None,
        }
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a resource accepts as a fence from outside, so that one wrong call cannot lock out every later holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FenceLimits {
    /// The largest accepted number; at most [`Fence::MAX`].
    pub max: u64,
    /// How far a fence may be ahead of the clock, in microseconds.
    pub max_ahead_us: u64,
}

/// Why a number is not accepted as a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceRefused {
    /// Zero or negative.
    NotPositive,
    /// Above the largest accepted number, which is given.
    AboveMax(u64),
    /// Further ahead of the clock than is accepted; the largest number accepted now is given.
    AheadOfClock(u64),
}

impl FenceLimits {
    /// Accepts `number` as a fence when it is within the limits at the unix time `now_us` (microseconds).
    pub fn accept(self, number: i64, now_us: u64) -> Result<Fence, FenceRefused> {
        let number = u64::try_from(number).map_err(|_| FenceRefused::NotPositive)?;
        let max = self.max.min(Fence::MAX);
        if number > max {
            return Err(FenceRefused::AboveMax(max));
        }
        let horizon = now_us.saturating_add(self.max_ahead_us);
        if number > horizon {
            return Err(FenceRefused::AheadOfClock(horizon));
        }
        Fence::new(number).ok_or(FenceRefused::NotPositive)
    }
}

/// 1 January 2020 as microseconds since 1970. Fences that follow the clock are above it, counters and most ids below.
const CLOCK_FENCES_FROM: u64 = 1_577_836_800_000_000;

/// Whether a key looks like a fence that follows the clock while the fence beside it does not, so that a caller may
/// have passed each in the other's place. For error texts: no answer depends on it.
pub const fn may_be_swapped(key: i64, fence: i64) -> bool {
    follows_clock(key) && !follows_clock(fence)
}

const fn follows_clock(number: i64) -> bool {
    number >= CLOCK_FENCES_FROM as i64 && number <= Fence::MAX as i64
}

/// How a client brings a fence that this server may not know. One wrong call must not use up the numbers of years, so
/// each way has a limit past the clock. Each is wider than the one before, so that what one has admitted the next does not
/// refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Brought {
    /// RAISE.
    ByRaise,
    /// RESTORE, of a dump that another server made.
    ByRestore,
    /// A claim of a resource, or a write to it: in Redis, and in PostgreSQL unless its setting says otherwise.
    ByClaim,
    /// A lock whose slot moves here.
    ByMove,
}

impl Brought {
    /// The table of limits, in hours and in words.
    const fn limit(self) -> (u64, &'static str) {
        match self {
            // The skew of badly kept clocks.
            Brought::ByRaise => (1, "an hour"),
            // What RAISE admitted elsewhere, at a host that takes its local time for UTC.
            Brought::ByRestore => (24, "a day"),
            // What RESTORE admitted, at a resource whose clock is off by as much again.
            Brought::ByClaim => (48, "two days"),
            // A slot leaves no lock behind, even where a clock was wrong for long. But a client can look like the server
            // that had the slot.
            Brought::ByMove => (366 * 24, "a year"),
        }
    }

    /// How far past the clock the fence may be, in microseconds.
    pub const fn ahead_us(self) -> u64 {
        self.limit().0 * 3_600_000_000
    }

    /// The same in words, for errors.
    pub const fn ahead_in_words(self) -> &'static str {
        self.limit().1
    }
}

/// How many grants a server that counts without the clock may lose, in a crash or a failover, without repeating one: an
/// int4 column has room for 32,767 of these.
pub const SKIPPED: u64 = 65_536;

/// The source of fences of one server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Issuer {
    last: u64,
}

impl Issuer {
    /// The number last issued or observed; 0 when there was none.
    pub const fn last(self) -> u64 {
        self.last
    }

    /// The next fence: above every earlier one, and at least the unix time `now_us` (microseconds).
    /// Pass 0 to count 1, 2, 3 without the clock. `None` when the numbers are used up.
    ///
    /// The clock makes fences grow even over a lost state, as in hybrid logical clocks
    /// (Kulkarni et al., "Logical Physical Clocks", 2014).
    pub fn issue(&mut self, now_us: u64) -> Option<Fence> {
        let fence = Fence::new(self.last.checked_add(1)?.max(now_us))?;
        self.last = fence.get();
        Some(fence)
    }

    /// The largest fence that this server accepts from a client at the unix time `wall_us`: one that was issued or observed
    /// here, whatever the clock says now, or one that is not too far past the clock.
    pub fn largest_accepted(self, brought: Brought, wall_us: u64) -> u64 {
        self.last.max(wall_us.saturating_add(brought.ahead_us()))
    }

    /// Whether this server accepts `fence` from a client.
    pub fn accepts(self, fence: Fence, brought: Brought, wall_us: u64) -> bool {
        fence.get() <= self.largest_accepted(brought, wall_us)
    }

    /// Notes the fence of a stored hold that is about to be changed: what replaces it must be larger. False, and nothing
    /// noted, when it is further ahead than any server admits: it was restored where nobody judged it. Such a lock can
    /// only be deleted.
    pub fn observe_stored(&mut self, fence: Fence, wall_us: u64) -> bool {
        let accepted = self.accepts(fence, Brought::ByRestore, wall_us);
        if accepted {
            self.observe(fence.get());
        }
        accepted
    }

    /// Leaves out [`SKIPPED`] numbers: a server that counts without the clock and may have lost grants goes on above them.
    pub fn skip(&mut self) {
        self.observe(self.last.saturating_add(SKIPPED));
    }

    /// Notes a fence issued elsewhere: none at or below it is issued from now on.
    pub fn observe(&mut self, number: u64) {
        self.last = self.last.max(number.min(Fence::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_numbers_above_2_to_the_53_are_not_fences() {
        assert_eq!(Fence::new(0), None);
        assert_eq!(Fence::new(1).map(Fence::get), Some(1));
        assert_eq!(Fence::new(Fence::MAX).map(Fence::get), Some(9_007_199_254_740_991));
        assert_eq!(Fence::new(Fence::MAX + 1), None);
        assert_eq!(Fence::new(41).unwrap().to_string(), "41");
    }

    #[test]
    fn fences_follow_the_clock_and_grow_when_it_stands_or_steps_back() {
        let mut issuer = Issuer::default();
        let issued: Vec<u64> = [100, 100, 50, 102, 200].iter().map(|&now| issuer.issue(now).unwrap().get()).collect();
        assert_eq!(issued, [100, 101, 102, 103, 200]);
    }

    #[test]
    fn without_the_clock_fences_count_from_one() {
        let mut issuer = Issuer::default();
        assert_eq!((issuer.issue(0).unwrap().get(), issuer.issue(0).unwrap().get()), (1, 2));
    }

    #[test]
    fn numbers_that_may_have_been_issued_and_lost_are_skipped() {
        let mut issuer = Issuer::default();
        issuer.issue(0);
        issuer.skip();
        assert_eq!(issuer.issue(0).unwrap().get(), 1 + SKIPPED + 1);
        issuer.observe(Fence::MAX - 1);
        issuer.skip();
        assert_eq!((issuer.issue(0), issuer.last()), (None, Fence::MAX));
    }

    #[test]
    fn an_observed_fence_is_never_issued_again() {
        let mut issuer = Issuer::default();
        issuer.observe(500);
        issuer.observe(400);
        assert_eq!(issuer.issue(100).unwrap().get(), 501);
    }

    #[test]
    fn a_client_moves_the_fences_not_far_past_the_clock_and_each_way_admits_what_the_one_before_has() {
        let tiers = [Brought::ByRaise, Brought::ByRestore, Brought::ByClaim, Brought::ByMove];
        assert_eq!(tiers.map(|tier| tier.ahead_us() / 1_000_000), [3_600, 86_400, 172_800, 31_622_400]);
        assert_eq!(tiers.map(Brought::ahead_in_words), ["an hour", "a day", "two days", "a year"]);
        for tier in tiers {
            let mut issuer = Issuer::default();
            let at = |after: u64| Fence::new(100 + tier.ahead_us() + after).unwrap();
            assert!(issuer.accepts(at(0), tier, 100));
            assert!(!issuer.accepts(at(1), tier, 100));
            issuer.observe(at(1).get());
            assert!(issuer.accepts(at(1), tier, 100), "it is this server's own now");
            assert!(issuer.accepts(at(1), tier, 0), "whatever the clock says");
            assert_eq!(issuer.largest_accepted(tier, 0), at(1).get());
        }
    }

    #[test]
    fn what_is_stored_is_observed_before_it_is_replaced_unless_nobody_can_have_admitted_it() {
        let mut issuer = Issuer::default();
        let stored = |number| Fence::new(number).unwrap();
        assert!(issuer.observe_stored(stored(100 + Brought::ByRestore.ahead_us()), 100));
        assert_eq!(issuer.issue(100).unwrap().get(), 101 + Brought::ByRestore.ahead_us());
        let before = issuer;
        assert!(!issuer.observe_stored(stored(Fence::MAX), 100));
        assert_eq!(issuer, before);
    }

    #[test]
    fn used_up_numbers_are_refused_and_change_nothing() {
        let mut issuer = Issuer::default();
        issuer.observe(u64::MAX);
        assert_eq!(issuer.issue(0), None);
        assert_eq!(issuer.last(), Fence::MAX);
    }

    #[test]
    fn only_a_key_like_a_clocks_fence_beside_a_small_fence_looks_swapped() {
        let (clock, max) = (1_795_968_243_472_377, Fence::MAX as i64);
        let pairs = [(clock, 1), (max, 0), (CLOCK_FENCES_FROM as i64, CLOCK_FENCES_FROM as i64 - 1)];
        assert!(pairs.into_iter().all(|(key, fence)| may_be_swapped(key, fence)));
        let pairs = [(1, clock), (1, 1), (clock, clock), (max + 1, 1), (i64::MAX, 1), (-clock, 1), (0, 0)];
        assert!(!pairs.into_iter().any(|(key, fence)| may_be_swapped(key, fence)));
    }

    #[test]
    fn limits_say_which_bound_a_number_breaks() {
        let limits = FenceLimits { max: 1_000, max_ahead_us: 50 };
        assert_eq!(limits.accept(0, 10), Err(FenceRefused::NotPositive));
        assert_eq!(limits.accept(-1, 10), Err(FenceRefused::NotPositive));
        assert_eq!(limits.accept(61, 10), Err(FenceRefused::AheadOfClock(60)));
        assert_eq!(limits.accept(60, 10).map(Fence::get), Ok(60));
        assert_eq!(limits.accept(1_000, 1_000).map(Fence::get), Ok(1_000));
        assert_eq!(limits.accept(1_001, 10), Err(FenceRefused::AboveMax(1_000)));
        assert_eq!(limits.accept(i64::MAX, u64::MAX), Err(FenceRefused::AboveMax(1_000)));
    }
}
