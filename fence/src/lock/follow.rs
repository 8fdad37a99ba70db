//! The clock of leases of a server that follows others: where a replica places a deadline, so that it ends there when it
//! ends at the primary, however late the stream was read.
//!
//! Not a clock: readings are arguments. Each issuer reads its own clock of leases, and says so once a second and with every
//! record. A reading that arrives late says little; the smallest difference between receipt and reading says most.
//! Invariant: a deadline is never placed before its time, apart from what the clocks of two hosts drift in a minute. Until
//! a good reading has come it is too late, by as much as the first was late.

use crate::lock::codec::{Clocks, Reading, Record};
use crate::lock::lease::{LONGEST, Lease};

/// Incarnations that are remembered: those of the last fail-overs.
const KNOWN: usize = 4;
/// How long readings are collected before the oldest of them are forgotten, in microseconds.
const ROUND_US: u64 = 30 * 1_000_000;
/// How many readings at least: those that come in one go, after a stall, are one moment and forget nothing.
const ROUND_READINGS: u32 = 10;
/// How far a server's clock goes from its machine's, in microseconds: a month, more than drift and stalls make of it. What an
/// issuer says beyond that is not believed, nor that a record comes from so far in the future.
const AHEAD_MAX_US: u64 = 30 * 86_400 * 1_000_000;
/// How fast two clocks may drift apart: a thousandth, as both may be slewed by half of that.
const DRIFT: i64 = 1_000;

/// The clocks of the issuers that a server has followed, and of the one that it follows.
///
/// Deadlines are stored on a clock of the follower's own. To each incarnation belongs a constant, the base: a reading plus
/// the base is a time on that clock. What a better reading changes is how far the clock itself is ahead of the machine's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Follower {
    /// The last first.
    known: [Option<Known>; KNOWN],
    window: Option<Window>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    incarnation: u64,
    base_us: i64,
}

/// The smallest differences between receipt and reading of two rounds, less the drift to be expected since the start of the
/// issuer's clock: so that an old one loses against a new one by as much as both clocks may have drifted.
#[derive(Clone, Copy, Debug)]
struct Window {
    incarnation: u64,
    before: Option<i64>,
    now: i64,
    began_us: u64,
    readings: u32,
}

impl Follower {
    /// That of an issuer: what it writes itself is on its own clock.
    pub fn of_issuer(incarnation: u64) -> Follower {
        let mut follower = Follower::default();
        follower.know(incarnation, 0);
        follower
    }

    /// Goes on as an issuer, with the clock that this server has now. Returns the incarnation that it followed, with the
    /// reading of that clock at `clock_us`: who follows both then knows the one by the other.
    pub fn become_issuer(&mut self, incarnation: u64, clock_us: u64) -> Option<Reading> {
        let before = self.reading(clock_us);
        self.window = None;
        self.know(incarnation, 0);
        before
    }

    /// The time `clock_us` as a reading of the issuer that was last followed.
    pub fn reading(&self, clock_us: u64) -> Option<Reading> {
        let [Some(Known { incarnation, base_us }), ..] = self.known else { return None };
        Some(Reading { incarnation, steady_us: clock_us.wrapping_sub(base_us as u64) })
    }

    /// The time on this server's clock at which a reading was taken; `None` for an unknown incarnation.
    pub fn place(&self, reading: Reading) -> Option<u64> {
        Some(reading.steady_us.wrapping_add(self.base_us(reading.incarnation)? as u64))
    }

    /// Whether the incarnation is known.
    pub fn knows(&self, incarnation: u64) -> bool {
        self.base_us(incarnation).is_some()
    }

    /// Takes note of a reading in a file, which was taken at `clock_us` as far as the wall clock tells.
    pub fn read_in_file(&mut self, reading: Reading, clock_us: u64) {
        self.know(reading.incarnation, difference(clock_us, reading.steady_us));
    }

    /// Takes note of a reading from the link, received when the machine's clock read `local_us` and this server's
    /// `ahead_us` more. `before` is the same moment on the clock of the incarnation that the issuer followed. Returns how far
    /// this server's clock is ahead from now on.
    pub fn receive(&mut self, reading: Reading, before: Option<Reading>, local_us: u64, ahead_us: i64) -> i64 {
        let Reading { incarnation, steady_us } = reading;
        let follows = self.window.is_some_and(|window| window.incarnation == incarnation);
        if !follows {
            let seed = self.turn_to(reading, before, local_us, ahead_us);
            let sample = sample(local_us, steady_us);
            self.window = Some(Window { incarnation, before: seed, now: sample, began_us: local_us, readings: 0 });
        }
        let base_us = self.base_us(incarnation).unwrap_or_default();
        let Some(window) = &mut self.window else { return ahead_us };
        window.take(sample(local_us, steady_us), local_us);
        let offset_us = window.before.unwrap_or(i64::MAX).min(window.now).saturating_add(drift(steady_us));
        base_us.saturating_sub(offset_us).clamp(-(AHEAD_MAX_US as i64), AHEAD_MAX_US as i64)
    }

    /// The lease of a record from the link: where it was written on the issuer's clock, or on receipt if that is not known.
    pub fn lease(&self, record: &Record, clocks: Clocks) -> Lease {
        let latest_us = clocks.steady_us.saturating_add(AHEAD_MAX_US);
        let written_us = record.issued.and_then(|reading| self.place(reading)).filter(|&at_us| at_us <= latest_us);
        let lease = record.lease_written_at(written_us.unwrap_or(clocks.steady_us));
        let longest_us = clocks.steady_us.saturating_add(LONGEST.as_micros());
        Lease { deadline_us: lease.deadline_us.min(longest_us), ..lease }
    }

    /// Finds the base of a new issuer, and what is known already of the difference to its clock.
    fn turn_to(&mut self, reading: Reading, before: Option<Reading>, local_us: u64, ahead_us: i64) -> Option<i64> {
        let related = before.and_then(|before| Some((before, self.base_us(before.incarnation)?)));
        if let Some((before, base_us)) = related {
            let base_us = base_us.saturating_add(difference(before.steady_us, reading.steady_us));
            self.know(reading.incarnation, base_us);
            let follows = self.window.is_some_and(|window| window.incarnation == before.incarnation);
            return follows.then(|| base_us.saturating_sub(ahead_us).saturating_sub(drift(reading.steady_us)));
        }
        let base_us = self.base_us(reading.incarnation);
        // The clock goes on from where it is.
        let base_us = base_us.unwrap_or(difference(local_us, reading.steady_us).saturating_add(ahead_us));
        self.know(reading.incarnation, base_us);
        None
    }

    fn base_us(&self, incarnation: u64) -> Option<i64> {
        self.known.iter().flatten().find(|known| known.incarnation == incarnation).map(|known| known.base_us)
    }

    fn know(&mut self, incarnation: u64, base_us: i64) {
        let is_it = |known: &Option<Known>| known.is_some_and(|known| known.incarnation == incarnation);
        let at = self.known.iter().position(is_it).unwrap_or(KNOWN - 1);
        self.known[..=at].rotate_right(1);
        self.known[0] = Some(Known { incarnation, base_us });
    }
}

impl Window {
    fn take(&mut self, sample: i64, local_us: u64) {
        let is_over = local_us.saturating_sub(self.began_us) >= ROUND_US && self.readings >= ROUND_READINGS;
        if is_over {
            *self = Window { before: Some(self.now), now: sample, began_us: local_us, readings: 0, ..*self };
        }
        self.now = self.now.min(sample);
        self.readings = self.readings.saturating_add(1);
    }
}

/// The difference between receipt and reading, less the drift.
fn sample(local_us: u64, steady_us: u64) -> i64 {
    difference(local_us, steady_us).saturating_sub(drift(steady_us))
}

fn drift(steady_us: u64) -> i64 {
    steady_us as i64 / DRIFT
}

fn difference(one_us: u64, other_us: u64) -> i64 {
    one_us.wrapping_sub(other_us) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;
    /// How far the follower's machine is ahead of the issuer's.
    const APART_US: u64 = 500 * S;
    const ISSUER: u64 = 7;

    /// A follower and how far its clock is ahead of its machine's.
    #[derive(Clone, Copy)]
    struct Replica {
        follower: Follower,
        ahead_us: i64,
    }

    impl Replica {
        fn new() -> Replica {
            Replica { follower: Follower::of_issuer(1), ahead_us: 0 }
        }

        /// Receives what the issuer read at `at_us`, `late_us` later.
        fn receive(&mut self, at_us: u64, late_us: u64) {
            self.ahead_us = self.follower.receive(reading(at_us), None, at_us + late_us + APART_US, self.ahead_us);
        }

        /// When, on the issuer's clock, it takes a lease for ended that ends at `deadline_us`.
        fn ends_us(&self, deadline_us: u64) -> u64 {
            let placed_us = self.follower.place(reading(deadline_us)).unwrap();
            placed_us.wrapping_sub(self.ahead_us as u64) - APART_US
        }
    }

    fn reading(steady_us: u64) -> Reading {
        Reading { incarnation: ISSUER, steady_us }
    }

    #[test]
    fn a_lease_ends_on_time_after_a_stall_of_any_length() {
        for stall_s in [3, 50, 1_000] {
            let mut replica = Replica::new();
            (1..=40).for_each(|s| replica.receive(s * S, 300));
            // All that was sent meanwhile is received in one go.
            (41..=40 + stall_s).for_each(|s| replica.receive(s * S, (40 + stall_s - s) * S + 300));
            for deadline_s in [42, 45 + stall_s] {
                let late_us = replica.ends_us(deadline_s * S) as i64 - (deadline_s * S) as i64;
                assert!((0..100_000).contains(&late_us), "{late_us} us late after {stall_s} s");
            }
        }
    }

    #[test]
    fn during_the_stall_too_it_is_placed_by_the_last_good_reading() {
        let mut replica = Replica::new();
        (1..=20).for_each(|s| replica.receive(s * S, 300));
        replica.receive(21 * S, 3 * S);
        let late_us = replica.ends_us(30 * S) as i64 - (30 * S) as i64;
        assert!((0..20_000).contains(&late_us), "{late_us} us late");
    }

    #[test]
    fn before_a_good_reading_a_lease_is_too_long_and_the_first_good_one_puts_it_right() {
        let mut replica = Replica::new();
        replica.receive(S, 9 * S);
        assert_eq!(replica.ends_us(30 * S), 39 * S);
        replica.receive(10 * S, 500);
        let late_us = replica.ends_us(30 * S) as i64 - (30 * S) as i64;
        assert!((0..1_000).contains(&late_us), "{late_us} us late");
    }

    #[test]
    fn an_issuer_whose_clock_stood_still_shortens_nothing_for_longer_than_two_rounds() {
        let mut replica = Replica::new();
        (1..=100).for_each(|s| replica.receive(s * S, 300));
        // From then on the same readings are received 20 s later than before.
        (101..=165).for_each(|s| replica.receive(s * S, 20 * S));
        assert!(replica.ends_us(200 * S) >= 220 * S);
    }

    #[test]
    fn clocks_that_drift_make_no_lease_too_short() {
        // The issuer's clock loses half a millisecond in a second.
        let mut replica = Replica::new();
        (1..=1_000).for_each(|s| replica.receive(s * S, 300 + s * 500));
        let now_late_us = 300 + 1_000 * 500;
        let late_us = replica.ends_us(1_010 * S) as i64 - (1_010 * S + now_late_us) as i64;
        assert!((-1_000..100_000).contains(&late_us), "{late_us} us late");
    }

    #[test]
    fn a_fail_over_keeps_the_leases_of_the_former_issuer_where_they_are() {
        let (mut heir, mut other) = (Replica::new(), Replica::new());
        (1..=40).for_each(|s| heir.receive(s * S, 300));
        (1..=40).for_each(|s| other.receive(s * S, 700));
        let ends_us = other.ends_us(90 * S);
        let now_us = 41 * S;
        let clock_us = (now_us + APART_US).wrapping_add(heir.ahead_us as u64);
        let before = heir.follower.become_issuer(8, clock_us);
        let first = Reading { incarnation: 8, steady_us: clock_us };
        // The first word of the new one is late by 5 s.
        let received_us = now_us + 5 * S + APART_US;
        other.ahead_us = other.follower.receive(first, before, received_us, other.ahead_us);
        assert!(other.ends_us(90 * S).abs_diff(ends_us) < 100_000);
        let of_the_new_us = other.follower.place(Reading { incarnation: 8, steady_us: clock_us + 10 * S }).unwrap();
        let ends_us = of_the_new_us.wrapping_sub(other.ahead_us as u64) - APART_US;
        assert!(ends_us.abs_diff(51 * S) < 100_000, "{ends_us}");
        assert_eq!(heir.follower.place(first), Some(clock_us));
    }

    #[test]
    fn leases_from_a_file_stay_where_they_are_when_the_link_begins_late() {
        let mut replica = Replica::new();
        // The file says that the issuer read 30 s when this machine read 30 s.
        replica.follower.read_in_file(reading(30 * S), 30 * S + APART_US);
        for s in 31..=60 {
            replica.receive(s * S, (60 - s) * S + 300);
            assert!(replica.ends_us(90 * S) >= 90 * S);
        }
        assert!(replica.ends_us(90 * S) < 90 * S + 50_000);
    }

    #[test]
    fn readings_of_any_number_do_no_harm() {
        for one in [0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX] {
            for other in [0, u64::MAX / 2, u64::MAX] {
                let mut follower = Follower::of_issuer(1);
                let before = Some(Reading { incarnation: 1, steady_us: other });
                let ahead_us = follower.receive(reading(one), before, other, i64::MIN);
                follower.receive(Reading { incarnation: 3, steady_us: other }, None, one, ahead_us);
                assert!(ahead_us.unsigned_abs() <= AHEAD_MAX_US);
                follower.place(reading(other));
                follower.become_issuer(4, one);
            }
        }
    }

    #[test]
    fn the_last_few_incarnations_are_known() {
        let mut follower = Follower::of_issuer(1);
        (2..=5).for_each(|incarnation| follower.read_in_file(Reading { incarnation, steady_us: 0 }, 0));
        assert_eq!((1..=5).filter(|&incarnation| follower.knows(incarnation)).collect::<Vec<_>>(), [2, 3, 4, 5]);
        follower.read_in_file(Reading { incarnation: 2, steady_us: 0 }, 9);
        assert_eq!(follower.reading(9), Some(Reading { incarnation: 2, steady_us: 0 }));
        assert!(follower.knows(3));
    }
}
