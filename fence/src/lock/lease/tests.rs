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

/// An extension whatever time is left.
fn to(ms: u64) -> Extension {
    Extension { ttl: Millis(ms), only_longer: false }
}

fn moved(extended: Result<Extended, Lost>) -> Lease {
    match extended {
        Ok(Extended::Moved(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_is_live_until_its_deadline_and_not_at_it() {
    let lease = granted(ttl(10));
    assert_eq!(lease.state(10 * MS - 1), State::Held);
    assert_eq!(lease.state(10 * MS), State::Free);
}

#[test]
fn a_lease_is_due_at_its_deadline_and_then_at_the_end_of_its_delay() {
    let lease = granted(Terms { delay: Some(Millis(5)), ..ttl(10) });
    assert_eq!((lease.due_us(10 * MS - 1), lease.due_us(10 * MS)), (10 * MS, 15 * MS));
}

#[test]
fn a_fence_is_the_live_hold_until_the_deadline_and_no_other_fence_is() {
    let lease = granted(ttl(10));
    let (own, other) = (lease.fence, Fence::new(99).unwrap());
    assert!(lease.is_live_hold_of(own, 10 * MS - 1));
    assert!(!lease.is_live_hold_of(own, 10 * MS));
    assert!(!lease.is_live_hold_of(other, 1) && !lease.is_live_hold_of(other, 10 * MS));
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
    let shorter = moved(extend(by_a(lease), A, to(5), 50 * MS));
    assert_eq!(shorter.deadline_us, 55 * MS);
    assert_eq!(shorter.fence, lease.fence);
    assert_eq!(shorter.granted_us, 0);
}

#[test]
fn extend_after_the_deadline_is_refused() {
    let lease = granted(ttl(10));
    assert_eq!(extend(by_a(lease), A, to(10), 10 * MS), Err(Lost::Expired(lease.fence)));
    assert_eq!(extend(None, A, to(10), 1), Err(Lost::Gone));
}

#[test]
fn an_extension_that_may_only_lengthen_keeps_a_lease_that_is_as_long() {
    let lease = granted(ttl(100));
    let longer = |ms| Extension { only_longer: true, ..to(ms) };
    for ms in [5, 49, 50] {
        assert_eq!(extend(by_a(lease), A, longer(ms), 50 * MS), Ok(Extended::Kept(lease)));
    }
    assert_eq!(moved(extend(by_a(lease), A, longer(51), 50 * MS)).deadline_us, 101 * MS);
    assert_eq!(extend(by_a(lease), A, longer(51), 100 * MS), Err(Lost::Expired(lease.fence)));
    assert_eq!(extend(by_a(lease), B, longer(51), 50 * MS), Err(Lost::Another));
    let bounded = granted(Terms { max_hold: Some(Millis(30)), ..ttl(100) });
    assert_eq!(extend(by_a(bounded), A, longer(100), 29 * MS), Ok(Extended::Kept(bounded)));
}

#[test]
fn another_owner_or_another_fence_has_no_say() {
    let lease = granted(ttl(10));
    assert_eq!(release(by_a(lease), B, 1), Err(Lost::Another));
    let stale = Caller { owner: b"a", fence: Fence::new(99) };
    assert_eq!(release(by_a(lease), stale, 1), Err(Lost::Another));
    assert_eq!(extend(by_a(lease), stale, to(10), 1), Err(Lost::Another));
    let exact = Caller { owner: b"a", fence: Some(lease.fence) };
    assert_eq!(release(by_a(lease), exact, 1), Ok(lease));
}

#[test]
fn the_longest_hold_cuts_the_ttl_and_every_extension() {
    let terms = Terms { max_hold: Some(Millis(30)), ..ttl(100) };
    let lease = granted(terms);
    assert_eq!(lease.deadline_us, 30 * MS);
    let extended = moved(extend(by_a(lease), A, to(100), 29 * MS));
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
    assert_eq!(extend(by_a(lease), A, to(10), 15 * MS), Err(Lost::Expired(lease.fence)));
    assert_eq!(release(by_a(lease), A, 15 * MS), Err(Lost::Expired(lease.fence)));
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

fn takeover(from: Option<Fence>) -> Takeover<'static> {
    Takeover { owner: b"b", terms: ttl(10), from }
}

#[test]
fn a_steal_ends_a_live_lease_with_a_larger_fence() {
    let mut issuer = Issuer::default();
    let lease = grant(ttl(100), &mut issuer, at(0)).unwrap();
    let expected = Lease::grant(Fence::new(2).unwrap(), ttl(10), MS);
    for from in [None, Some(lease.fence)] {
        assert_eq!(steal(by_a(lease), takeover(from), &mut issuer.clone(), at(MS)), Ok(Stolen::Granted(expected)));
    }
    assert_eq!((lease.ending_by_steal(MS), lease.ending_by_steal(100 * MS)), (Ending::Stolen, Ending::Expired));
    // Its holder may take it from itself: its reply may have been lost.
    let by_itself = Takeover { owner: b"a", ..takeover(None) };
    assert_eq!(steal(by_a(lease), by_itself, &mut issuer, at(MS)), Ok(Stolen::Granted(expected)));
}

#[test]
fn a_steal_that_names_a_fence_takes_that_hold_alone() {
    let mut issuer = Issuer::default();
    let lease = grant(ttl(10), &mut issuer, at(0)).unwrap();
    let (before, other) = (issuer, Fence::new(99));
    for (hold, from, at_ms) in
        [(by_a(lease), other, 1), (by_a(lease), Some(lease.fence), 10), (None, Some(lease.fence), 1)]
    {
        assert_eq!(steal(hold, takeover(from), &mut issuer, at(at_ms * MS)), Err(Denied::NotThatHold));
    }
    assert_eq!(issuer, before);
}

#[test]
fn a_free_lock_is_stolen_from_nobody() {
    let mut issuer = Issuer::default();
    let lease = grant(ttl(10), &mut issuer, at(0)).unwrap();
    for hold in [None, by_a(lease)] {
        let fence = Fence::new(issuer.last() + 1).unwrap();
        let expected = Ok(Stolen::Granted(Lease::grant(fence, ttl(10), 10 * MS)));
        assert_eq!(steal(hold, takeover(None), &mut issuer, at(10 * MS)), expected);
    }
    issuer.observe(Fence::MAX);
    assert_eq!(steal(None, takeover(None), &mut issuer, at(0)), Err(Denied::FencesUsedUp));
}

#[test]
fn a_delay_comes_before_the_thief() {
    let mut issuer = Issuer::default();
    let lease = grant(Terms { delay: Some(Millis(20)), ..ttl(100) }, &mut issuer, at(0)).unwrap();
    let before = issuer;
    let Ok(Stolen::Delayed(ended)) = steal(by_a(lease), takeover(None), &mut issuer, at(5 * MS)) else { panic!() };
    assert_eq!((ended.fence, ended.deadline_us, ended.free_us()), (lease.fence, 5 * MS, 25 * MS));
    assert_eq!(steal(by_a(ended), takeover(None), &mut issuer, at(25 * MS - 1)), Err(Denied::Delayed));
    assert_eq!(steal(by_a(ended), takeover(Some(lease.fence)), &mut issuer, at(6 * MS)), Err(Denied::NotThatHold));
    assert_eq!(issuer, before);
    assert!(matches!(steal(by_a(ended), takeover(None), &mut issuer, at(25 * MS)), Ok(Stolen::Granted(_))));
}
