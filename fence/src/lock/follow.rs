//! Where a replica places a deadline on its own clock, so that a lease ends there when it ends at the primary, however late
//! the replication stream was read.
//!
//! Not a clock: readings are arguments. An issuer (the primary) sends a reading of its monotonic clock once a second and
//! with every record. The smallest difference between receipt and reading is the most exact: the others arrived late.
//! Invariant: a deadline is never placed too early, apart from what the clocks of two hosts drift in a minute. Until a
//! reading arrives promptly it is too late, by as much as the promptest one so far.

use crate::lock::codec::{Clocks, Reading, Record};
use crate::lock::lease::{LONGEST, Lease};

/// How many incarnations are remembered: those of the last failovers.
const KNOWN: usize = 4;
/// How long readings are collected before the oldest are forgotten, in microseconds.
const ROUND_US: u64 = 30_000_000;
/// How many are collected at least: after a stall many arrive at one moment, which must not replace the earlier ones.
const ROUND_READINGS: u32 = 10;
/// How far a replica's clock may differ from its machine's, in microseconds: 30 days, more than drift and stalls amount to.
/// Readings and records further in the future are not believed.
const AHEAD_MAX_US: u64 = 2_592_000_000_000;
/// Two clocks may drift apart by one part in so many: both may be slewed by half of that.
const DRIFT: i64 = 1_000;

/// The clocks of the issuers that a server has followed, and of the one that it follows.
///
/// Deadlines are stored on the follower's own clock. Each incarnation has a constant, its base: a reading plus the base is a
/// time on that clock. A better reading moves no deadline. It changes how far the clock is ahead of the machine's; of an
/// issuer whose clock nothing relates to this one it changes the base, for what is placed from then on, if there may be leases of others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Follower {
    /// The latest first.
    known: [Option<Known>; KNOWN],
    window: Option<Window>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    incarnation: u64,
    base_us: i64,
}

/// The smallest differences between receipt and reading in two rounds, less the drift to be expected since the start of the
/// issuer's clock. So an old difference loses against a new one by as much as the clocks may have drifted in between.
#[derive(Clone, Copy, Debug)]
struct Window {
    incarnation: u64,
    /// Whether a better reading changes the base, and not the clock.
    moves_base: bool,
    before: Option<i64>,
    now: i64,
    began_us: u64,
    readings: u32,
}

impl Follower {
    /// An issuer: what it writes is on its own clock.
    pub fn of_issuer(incarnation: u64) -> Follower {
        let mut follower = Follower::default();
        follower.know(incarnation, 0);
        follower
    }

    /// Becomes an issuer, with the clock that this server has now. Returns the reading of the incarnation that it followed,
    /// at `clock_us`: by that, replicas of both relate the two clocks.
    pub fn become_issuer(&mut self, incarnation: u64, clock_us: u64) -> Option<Reading> {
        let before = self.reading(clock_us);
        self.window = None;
        self.know(incarnation, 0);
        before
    }

    /// The time `clock_us` as a reading of the issuer that was followed last.
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

    /// Notes a reading from a file. By the wall clock it was taken at `clock_us`.
    pub fn read_in_file(&mut self, reading: Reading, clock_us: u64) {
        self.know(reading.incarnation, difference(clock_us, reading.steady_us));
    }

    /// Notes a reading from the replication link, received when the machine's clock was at `local_us` and this server's
    /// ahead of it by `ahead_us`. `before` is the same moment on the clock of the incarnation that the issuer followed
    /// before. Returns how far this server's clock is ahead from now on.
    pub fn receive(&mut self, reading: Reading, before: Option<Reading>, local_us: u64, ahead_us: i64) -> i64 {
        let Reading { incarnation, steady_us } = reading;
        let follows = self.window.is_some_and(|window| window.incarnation == incarnation);
        if !follows {
            let moves_base = self.turn_to(reading, before, local_us, ahead_us);
            let now = sample(local_us, steady_us);
            self.window = Some(Window { incarnation, moves_base, before: None, now, began_us: local_us, readings: 0 });
        }
        let Some(window) = &mut self.window else { return ahead_us };
        window.take(sample(local_us, steady_us), local_us);
        let offset_us = window.before.unwrap_or(i64::MAX).min(window.now).saturating_add(drift(steady_us));
        if window.moves_base {
            self.know(incarnation, offset_us.saturating_add(ahead_us));
            return ahead_us;
        }
        let base_us = self.base_us(incarnation).unwrap_or_default();
        base_us.saturating_sub(offset_us).clamp(-(AHEAD_MAX_US as i64), AHEAD_MAX_US as i64)
    }

    /// The lease of a record from the replication link, placed by the issuer's clock, or by its receipt if that is unknown.
    pub fn lease(&self, record: &Record, clocks: Clocks) -> Lease {
        let latest_us = clocks.steady_us.saturating_add(AHEAD_MAX_US);
        let written_us = record.issued.and_then(|reading| self.place(reading)).filter(|&at_us| at_us <= latest_us);
        let lease = record.lease_written_at(written_us.unwrap_or(clocks.steady_us));
        let longest_us = clocks.steady_us.saturating_add(LONGEST.as_micros());
        Lease { deadline_us: lease.deadline_us.min(longest_us), ..lease }
    }

    /// Finds the base of a new issuer. Returns whether it is a guess that better readings correct: to move the clock instead
    /// would move the leases of earlier issuers too, of whose clocks this one says nothing.
    ///
    /// The new issuer may take the clock of the one before for later than it was, as every follower may, and then this
    /// server's clock goes back with it. So nothing that was learned from the one before says how late the new one's
    /// readings are.
    fn turn_to(&mut self, reading: Reading, before: Option<Reading>, local_us: u64, ahead_us: i64) -> bool {
        let related = before.and_then(|before| {
            let base_us = self.base_us(before.incarnation)?;
            Some(base_us.saturating_add(difference(before.steady_us, reading.steady_us)))
        });
        let base_us = related.or_else(|| self.base_us(reading.incarnation));
        // One is its own.
        let has_followed = self.known.iter().flatten().count() > 1;
        let guess_us = difference(local_us, reading.steady_us).saturating_add(ahead_us);
        self.know(reading.incarnation, base_us.unwrap_or(guess_us));
        base_us.is_none() && has_followed
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
mod tests;
