//! A lease that is kept longer than the clock on which it is measured runs: in a table, over a restart of the host.
//!
//! Not a clock and not a table. The steady clock of a host begins with its boot, so a time on it is kept with the boot and
//! with what leads from it to the wall clock. Invariant: within one boot the wall clock moves no deadline.

use crate::lock::lease::{LONGEST, Lease, Now};

/// A steady clock: of which boot it is, and how far the wall clock was ahead of it at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boot {
    /// A number of the boot; 0 where it is not known, which is never the same boot.
    pub epoch: u64,
    /// Unix time less the time on the steady clock, in microseconds.
    pub offset_us: i64,
}

impl Boot {
    /// The boot of this number at one moment.
    pub fn at(epoch: u64, now: Now) -> Boot {
        Boot { epoch, offset_us: (now.wall_us as i64).saturating_sub(now.steady_us as i64) }
    }

    fn is(self, other: Boot) -> bool {
        self.epoch != 0 && self.epoch == other.epoch
    }
}

/// The lease that was stored in the boot `written`, on the steady clock of the boot `here` at `now_us`.
///
/// In the same boot it is unchanged. Else the wall clocks relate the two, and no lease is longer than one that is granted now.
pub fn place(lease: Lease, written: Boot, here: Boot, now_us: u64) -> Lease {
    let by_us = if written.is(here) { 0 } else { written.offset_us.saturating_sub(here.offset_us) };
    let moved = |at_us: u64| if at_us == u64::MAX { at_us } else { at_us.saturating_add_signed(by_us) };
    let latest_us = now_us.saturating_add(LONGEST.as_micros());
    Lease {
        granted_us: moved(lease.granted_us),
        deadline_us: moved(lease.deadline_us).min(latest_us),
        limit_us: moved(lease.limit_us),
        delay_us: lease.delay_us.min(LONGEST.as_micros()),
        ..lease
    }
}

#[cfg(test)]
mod tests {
    use super::{Boot, place};
    use crate::fence::Fence;
    use crate::lock::lease::{LONGEST, Lease, Millis, Now, State, Terms};

    const S: u64 = 1_000_000;
    const WALL: u64 = 1_800_000_000 * S;

    fn granted_at(steady_us: u64, max_hold: Option<Millis>) -> Lease {
        let terms = Terms { ttl: Millis(10_000), max_hold, delay: Some(Millis(5_000)), ephemeral: false };
        Lease::grant(Fence::new(7).unwrap(), terms, steady_us)
    }

    fn boot(epoch: u64, steady_us: u64, wall_us: u64) -> Boot {
        Boot::at(epoch, Now { steady_us, wall_us })
    }

    #[test]
    fn within_a_boot_the_wall_clock_moves_no_deadline() {
        let lease = granted_at(500 * S, Some(Millis(20_000)));
        let written = boot(1, 500 * S, WALL);
        for wall_us in [0, WALL - 3_600 * S, WALL, WALL + 3_600 * S] {
            assert_eq!(place(lease, written, boot(1, 504 * S, wall_us), 504 * S), lease);
        }
    }

    #[test]
    fn after_another_boot_the_wall_clock_says_what_is_left() {
        let lease = granted_at(500 * S, Some(Millis(20_000)));
        let here = place(lease, boot(1, 500 * S, WALL), boot(2, 30 * S, WALL + 4 * S), 30 * S);
        assert_eq!((here.granted_us, here.deadline_us, here.limit_us), (26 * S, 36 * S, 46 * S));
        assert_eq!((here.fence, here.delay_us), (lease.fence, lease.delay_us));
        assert_eq!([35, 37, 42].map(|at| here.state(at * S)), [State::Held, State::Delay, State::Free]);
    }

    #[test]
    fn a_boot_that_is_not_known_is_never_the_same() {
        let lease = granted_at(500 * S, None);
        let here = place(lease, boot(0, 500 * S, WALL), boot(0, 500 * S, WALL + 4 * S), 500 * S);
        assert_eq!(here.deadline_us, lease.deadline_us - 4 * S);
        assert_eq!(here.limit_us, u64::MAX, "without a longest hold there is none afterwards");
    }

    #[test]
    fn no_stored_lease_is_longer_than_one_granted_now() {
        let longest = LONGEST.as_micros();
        let stored = Lease { deadline_us: u64::MAX, delay_us: u64::MAX, ..granted_at(0, None) };
        let written = Boot { epoch: 1, offset_us: i64::MAX };
        for here in [written, Boot { epoch: 2, offset_us: i64::MIN }] {
            let here = place(stored, written, here, 9 * S);
            assert_eq!((here.deadline_us, here.delay_us), (9 * S + longest, longest));
        }
        let past = place(granted_at(S, None), written, Boot { epoch: 2, offset_us: i64::MAX - 1 }, 9 * S);
        assert_eq!(past.deadline_us, 11 * S + 1);
        let gone = place(granted_at(S, None), Boot { epoch: 1, offset_us: i64::MIN }, boot(2, 9 * S, WALL), 9 * S);
        assert_eq!(gone.deadline_us, 0);
    }
}
