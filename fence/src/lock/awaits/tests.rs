use super::*;
use crate::lock::lease::{Millis, Terms};

const K: LockName = LockName { db: 0, name: b"k" };
const L: LockName = LockName { db: 1, name: b"k" };
const LATER: u64 = 1_000_000;

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

fn stored(number: u64, is_over: bool) -> Option<Stored> {
    let terms = Terms { ttl: Millis(10), max_hold: None, delay: Some(Millis(5)), ephemeral: false };
    Some(Stored { lease: Lease::grant(fence(number), terms, 0), is_over })
}

#[test]
fn a_primary_judges_by_its_clock() {
    let judge = |at_ms: u64| Judge::Clock(at_ms * 1_000);
    assert_eq!(find(stored(7, false), fence(7), 9, judge(9)), Found::Live);
    assert_eq!(find(stored(7, false), fence(7), 9, judge(10)), Found::Over);
    // A restored lock may have a fence above the last known.
    assert_eq!(find(stored(7, false), fence(7), 3, judge(9)), Found::Live);
    assert_eq!(find(stored(7, false), fence(7), 3, judge(10)), Found::Over);
}

#[test]
fn a_replica_judges_by_the_stream_alone() {
    assert_eq!(find(stored(7, false), fence(7), 9, Judge::Stream), Found::Live);
    assert_eq!(find(stored(7, true), fence(7), 9, Judge::Stream), Found::Over);
    let ending = |judge| stored(7, true).unwrap().ending(judge);
    assert_eq!((ending(Judge::Stream), ending(Judge::Clock(10_000))), (Ending::Unknown, Ending::Expired));
}

#[test]
fn a_fence_that_is_not_the_hold_is_over_once_it_is_known() {
    for judge in [Judge::Clock(0), Judge::Stream] {
        assert_eq!(find(stored(7, false), fence(6), 9, judge), Found::Over);
        assert_eq!(find(stored(7, false), fence(9), 9, judge), Found::Over);
        assert_eq!(find(stored(7, false), fence(10), 9, judge), Found::Ahead);
        assert_eq!((find(None, fence(9), 9, judge), find(None, fence(10), 9, judge)), (Found::Over, Found::Ahead));
    }
}

#[test]
fn the_end_of_a_hold_returns_those_who_await_it_in_their_order_and_nobody_else() {
    let mut awaits = Awaits::new(0);
    for awaiter in 0..3 {
        awaits.join(K, fence(7), false, LATER, awaiter).unwrap();
        awaits.join(L, fence(7), false, LATER, 10 + awaiter).unwrap();
        awaits.join(K, fence(8), false, LATER, 20 + awaiter).unwrap();
    }
    assert!(awaits.awaits(fence(7)) && !awaits.awaits(fence(9)));
    assert_eq!((awaits.end(K, fence(9)), awaits.end(L, fence(8))), (vec![], vec![]));
    assert_eq!(awaits.end(K, fence(7)), [0, 1, 2]);
    assert!(awaits.awaits(fence(7)));
    assert_eq!(awaits.end(L, fence(7)), [10, 11, 12]);
    assert!(!awaits.awaits(fence(7)));
    assert_eq!((awaits.len(), awaits.is_empty()), (3, false));
    assert_eq!(awaits.leave_all(), [20, 21, 22]);
    assert!(awaits.is_empty() && !awaits.awaits(fence(8)));
}

#[test]
fn one_that_leaves_or_whose_time_is_over_is_not_returned_again() {
    let mut awaits = Awaits::new(0);
    let ticket = awaits.join(K, fence(7), false, LATER, 1).unwrap();
    awaits.join(K, fence(7), false, 5_000, 2).unwrap();
    awaits.join(K, fence(7), false, LATER, 3).unwrap();
    assert_eq!((awaits.leave(ticket), awaits.leave(ticket)), (Some(1), None));
    assert!(awaits.next_us().is_some_and(|next_us| next_us <= 6_100));
    let mut budget = 100;
    assert_eq!(awaits.pop_expired(4_000, &mut budget), None);
    assert_eq!(awaits.pop_expired(6_100, &mut budget), Some(2));
    assert_eq!(awaits.end(K, fence(7)), [3]);
    assert_eq!(awaits.next_us(), None);
}

#[test]
fn a_recheck_names_every_fence_but_the_live_one_and_those_ahead() {
    let mut awaits = Awaits::new(0);
    for (number, is_ahead) in [(5, false), (7, false), (9, true)] {
        awaits.join(K, fence(number), is_ahead, LATER, number).unwrap();
    }
    awaits.join(L, fence(6), false, LATER, 6).unwrap();
    assert_eq!(awaits.others(K, Some(fence(7))), [fence(5)]);
    assert_eq!(awaits.others(K, None), [fence(5), fence(7)]);
    awaits.recheck_at(K, 2_000);
    awaits.recheck_all(Some(1), 1_000);
    let mut budget = 100;
    assert_eq!(awaits.pop_recheck(2_100, &mut budget), Some((1, b"k"[..].into())));
    assert_eq!(awaits.pop_recheck(4_100, &mut budget), Some((0, b"k"[..].into())));
    assert_eq!(awaits.pop_recheck(LATER, &mut budget), None);
}

#[test]
fn what_is_passed_without_having_arrived_is_over() {
    let mut awaits = Awaits::new(0);
    for awaiter in [1, 2] {
        awaits.join(K, fence(7), true, LATER, awaiter).unwrap();
    }
    awaits.join(K, fence(9), true, LATER, 3).unwrap();
    awaits.join(L, fence(8), true, LATER, 4).unwrap();
    assert_eq!(awaits.pop_passed(6), None);
    awaits.arrive(L, fence(8));
    assert_eq!(awaits.pop_passed(8), Some(vec![1, 2]));
    assert_eq!(awaits.pop_passed(8), None);
    assert_eq!(awaits.others(L, None), [fence(8)]);
    assert_eq!(awaits.pop_passed(9), Some(vec![3]));
    assert_eq!(awaits.end(L, fence(8)), [4]);
    assert!(awaits.is_empty() && awaits.ahead.is_empty());
}

#[test]
fn the_last_that_leaves_takes_what_was_ahead_along() {
    let mut awaits = Awaits::new(0);
    let tickets = [1, 2].map(|awaiter| awaits.join(K, fence(7), true, LATER, awaiter).unwrap());
    awaits.leave(tickets[0]);
    assert_eq!(awaits.ahead.len(), 1);
    awaits.leave(tickets[1]);
    assert!(awaits.ahead.is_empty() && awaits.fences.is_empty());
}
