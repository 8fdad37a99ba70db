use super::*;

use crate::fence::Fence;
use crate::lock::codec::{ENCODED_MAX, Notes, Stamp, decode, encode};
use crate::lock::lease::Hold;

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
fn late_readings_of_one_round_forget_nothing() {
    let mut replica = Replica::new();
    (1..=20).for_each(|s| replica.receive(s * S, 300));
    for s in 21..=50 {
        replica.receive(s * S, 5 * S);
        let late_us = replica.ends_us(90 * S) as i64 - (90 * S) as i64;
        assert!((0..100_000).contains(&late_us), "{late_us} us late after the reading of {s} s");
    }
}

#[test]
fn a_few_readings_are_not_a_round_however_long_they_take() {
    let mut replica = Replica::new();
    (1..=20).for_each(|s| replica.receive(s * S, 300));
    for s in [60, 100, 140] {
        replica.receive(s * S, 5 * S);
        let late_us = replica.ends_us(200 * S) as i64 - (200 * S) as i64;
        assert!((0..200_000).contains(&late_us), "{late_us} us late after the reading of {s} s");
    }
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
    // The first word of the new one is late by 5 s, so everything is; the second is prompt.
    let received_us = now_us + 5 * S + APART_US;
    other.ahead_us = other.follower.receive(first, before, received_us, other.ahead_us);
    assert!(other.ends_us(90 * S).abs_diff(ends_us + 5 * S) < 100_000);
    let second = Reading { steady_us: clock_us + 6 * S, ..first };
    other.ahead_us = other.follower.receive(second, before, received_us + S, other.ahead_us);
    assert!(other.ends_us(90 * S).abs_diff(ends_us) < 100_000);
    let of_the_new_us = other.follower.place(Reading { incarnation: 8, steady_us: clock_us + 10 * S }).unwrap();
    let ends_us = of_the_new_us.wrapping_sub(other.ahead_us as u64) - APART_US;
    assert!(ends_us.abs_diff(51 * S) < 100_000, "{ends_us}");
    assert_eq!(heir.follower.place(first), Some(clock_us));
}

#[test]
fn an_heir_that_took_its_primary_to_be_behind_shortens_nothing() {
    for (heir_late_us, other_late_us) in [(6 * S, 300), (300, 6 * S), (300, 300)] {
        let (mut heir, mut other) = (Replica::new(), Replica::new());
        (1..=40).for_each(|s| heir.receive(s * S, heir_late_us));
        (1..=40).for_each(|s| other.receive(s * S, other_late_us));
        let now_us = 50 * S;
        // As the heir's machine has the same clock as the issuer's, plus what it is apart.
        let clock_us = (now_us + APART_US).wrapping_add(heir.ahead_us as u64);
        let before = heir.follower.become_issuer(8, clock_us);
        for (s, late_us) in [(0, 2 * S), (3, 500), (4, 500)] {
            let read = Reading { incarnation: 8, steady_us: clock_us + s * S };
            let before = before.map(|before| Reading { steady_us: before.steady_us + s * S, ..before });
            let received_us = now_us + s * S + late_us + APART_US;
            other.ahead_us = other.follower.receive(read, before, received_us, other.ahead_us);
            // What the new one grants for 8 s, and what the former one granted until 90 s.
            let placed_us = other.follower.place(Reading { steady_us: read.steady_us + 8 * S, ..read }).unwrap();
            let ends_us = placed_us.wrapping_sub(other.ahead_us as u64) - APART_US;
            assert!(ends_us >= now_us + (s + 8) * S, "{ends_us}");
            assert!(late_us == 2 * S || ends_us <= now_us + (s + 8) * S + 100_000, "{ends_us}");
            assert!(other.ends_us(90 * S) >= 90 * S);
        }
    }
}

#[test]
fn a_new_issuer_that_names_none_before_moves_no_earlier_lease() {
    let mut replica = Replica::new();
    (1..=40).for_each(|s| replica.receive(s * S, 300));
    let ends_us = replica.ends_us(90 * S);
    // It started again. Its first word is read 6 s late, the next ones are prompt.
    for (s, late_us) in [(50, 6 * S), (56, 400), (57, 300)] {
        let read = Reading { incarnation: 8, steady_us: s * S };
        replica.ahead_us = replica.follower.receive(read, None, s * S + late_us + APART_US, replica.ahead_us);
        assert_eq!(replica.ends_us(90 * S), ends_us);
        let placed_us = replica.follower.place(Reading { steady_us: (s + 8) * S, ..read }).unwrap();
        let of_the_new_us = placed_us.wrapping_sub(replica.ahead_us as u64) - APART_US;
        assert!((0..late_us + 1_000).contains(&(of_the_new_us - (s + 8) * S)), "{of_the_new_us}");
    }
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

/// The bytes of a record that the issuer wrote at `written_us`, of a lease that had `left_us` left.
fn written(written_us: u64, left_us: u64) -> Vec<u8> {
    let lease = Lease {
        fence: Fence::new(7).unwrap(),
        granted_us: written_us,
        deadline_us: written_us + left_us,
        limit_us: u64::MAX,
        delay_us: 0,
        ephemeral: false,
    };
    let stamp = Stamp::of_issuer(ISSUER, Clocks { steady_us: written_us, wall_us: 0 });
    encode(&Hold { lease, owner: b"o" }, stamp, Notes::default(), &mut [0; ENCODED_MAX]).to_vec()
}

#[test]
fn a_record_is_placed_by_the_clock_of_its_issuer_and_else_by_its_receipt() {
    let clocks = Clocks { steady_us: 700 * S, wall_us: 0 };
    let deadline_us =
        |replica: &Replica, bytes: &[u8]| replica.follower.lease(&decode(bytes).unwrap(), clocks).deadline_us;
    let mut replica = Replica::new();
    assert_eq!(deadline_us(&replica, &written(100 * S, 9 * S)), 709 * S, "the issuer is unknown");
    replica.follower.read_in_file(reading(100 * S), 690 * S);
    assert_eq!(deadline_us(&replica, &written(100 * S, 9 * S)), 699 * S);
    // A record from the far future is not believed, and no lease is longer than the longest.
    let latest_us = 100 * S + AHEAD_MAX_US + 10 * S;
    assert_eq!(deadline_us(&replica, &written(latest_us, 9 * S)), 700 * S + AHEAD_MAX_US + 9 * S);
    assert_eq!(deadline_us(&replica, &written(latest_us + 1, 9 * S)), 709 * S);
    let longest_us = LONGEST.as_micros();
    assert_eq!(deadline_us(&replica, &written(100 * S + 20 * S, longest_us)), 700 * S + longest_us);
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
    assert_eq!(follower.place(Reading { incarnation: 1, steady_us: 7 }), Some(7));
    assert_eq!(follower.reading(7), Some(Reading { incarnation: 1, steady_us: 7 }));
    (2..=5).for_each(|incarnation| follower.read_in_file(Reading { incarnation, steady_us: 0 }, 0));
    assert_eq!((1..=5).filter(|&incarnation| follower.knows(incarnation)).collect::<Vec<_>>(), [2, 3, 4, 5]);
    follower.read_in_file(Reading { incarnation: 2, steady_us: 0 }, 9);
    assert_eq!(follower.reading(9), Some(Reading { incarnation: 2, steady_us: 0 }));
    assert!(follower.knows(3));
}
