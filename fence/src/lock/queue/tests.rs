use super::*;

const K: LockName = LockName { db: 0, name: b"k" };
const L: LockName = LockName { db: 1, name: b"k" };
const LATER: u64 = 1_000_000;

fn order(queues: &mut Queues<u32>, lock: LockName) -> Vec<u32> {
    let mut served = Vec::new();
    while let Some((ticket, &waiter)) = queues.head(lock) {
        served.push(waiter);
        queues.leave(ticket);
    }
    served
}

#[test]
fn waiters_are_served_in_the_order_in_which_they_came() {
    let mut queues = Queues::new(0);
    for waiter in 0..5 {
        queues.join(K, b"o", LATER, waiter).unwrap();
        queues.join(L, b"o", LATER, 10 + waiter).unwrap();
    }
    assert_eq!((queues.waiting(K), queues.len(), queues.is_empty()), (5, 10, false));
    assert_eq!(order(&mut queues, L), [10, 11, 12, 13, 14]);
    assert_eq!(order(&mut queues, K), [0, 1, 2, 3, 4]);
    assert!(queues.is_empty() && queues.names.is_empty() && queues.rechecks.is_empty());
}

#[test]
fn one_that_leaves_the_middle_leaves_no_gap() {
    let mut queues = Queues::new(0);
    let tickets: Vec<Ticket> = (0..5).map(|waiter| queues.join(K, b"o", LATER, waiter).unwrap()).collect();
    assert_eq!(queues.leave(tickets[2]), Some(2));
    assert_eq!(queues.leave(tickets[2]), None);
    assert_eq!(queues.leave(tickets[4]), Some(4));
    assert_eq!(order(&mut queues, K), [0, 1, 3]);
}

#[test]
fn waiters_whose_time_has_come_leave_by_themselves() {
    let mut queues = Queues::new(0);
    for waiter in 0..4u32 {
        queues.join(K, b"o", 10_000 * u64::from(4 - waiter), waiter).unwrap();
    }
    let mut budget = 100;
    assert!(queues.next_expiry_us().is_some_and(|next_us| (9_000..11_100).contains(&next_us)));
    assert_eq!(queues.pop_expired(9_000, &mut budget), None);
    assert_eq!(queues.pop_expired(11_100, &mut budget), Some(3));
    assert_eq!(queues.pop_expired(11_100, &mut budget), None);
    assert_eq!(order(&mut queues, K), [0, 1, 2]);
    assert_eq!(queues.next_expiry_us(), None);
}

#[test]
fn the_head_is_taken_out_when_its_time_has_come_and_not_before() {
    let mut queues = Queues::new(0);
    queues.join(K, b"a", 10_000, 1).unwrap();
    queues.join(K, b"b", LATER, 2).unwrap();
    queues.join(K, b"c", 10_000, 3).unwrap();
    assert_eq!(queues.pop_late_head(K, 9_999), None);
    assert_eq!((queues.pop_late_head(K, 10_000), queues.pop_late_head(K, 10_000)), (Some(1), None));
    assert_eq!(queues.pop_late_head(L, LATER), None);
    assert_eq!(order(&mut queues, K), [2, 3]);
}

#[test]
fn a_repeated_call_takes_over_the_place_and_the_deadline() {
    let mut queues = Queues::new(0);
    queues.join(K, b"a", 10_000, 1).unwrap();
    queues.join(K, b"b", LATER, 2).unwrap();
    assert_eq!(queues.take_over(K, b"c", LATER, 9), Err(9));
    assert_eq!(queues.take_over(L, b"a", LATER, 9), Err(9));
    let (_, before) = queues.take_over(K, b"a", LATER, 7).unwrap();
    assert_eq!(before, 1);
    assert_eq!(queues.pop_expired(20_000, &mut 100), None);
    assert_eq!(order(&mut queues, K), [7, 2]);
}

#[test]
fn every_place_of_an_owner_can_be_found_in_turn() {
    let mut queues = Queues::new(0);
    let tickets: Vec<Ticket> = (0..4).map(|waiter| queues.join(K, b"o", LATER, waiter).unwrap()).collect();
    queues.leave(tickets[1]);
    for left in [0, 2, 3] {
        let ticket = queues.place_of(K, b"o").unwrap();
        assert_eq!(queues.leave(ticket), Some(left));
    }
    assert_eq!(queues.place_of(K, b"o"), None);
}

#[test]
fn an_owner_leaves_a_queue_with_all_its_places_and_nobody_else_does() {
    let mut queues = Queues::new(0);
    for (waiter, owner) in [b"o", b"p", b"o", b"o", b"p"].into_iter().enumerate() {
        queues.join(K, owner, LATER, waiter as u32).unwrap();
    }
    queues.join(L, b"o", LATER, 9).unwrap();
    assert_eq!(queues.leave_all_of(K, b"o"), [0, 2, 3]);
    assert_eq!(queues.leave_all_of(K, b"o"), []);
    assert_eq!(order(&mut queues, K), [1, 4]);
    assert_eq!(order(&mut queues, L), [9]);
    assert!(queues.is_empty() && queues.names.is_empty());
}

#[test]
fn a_queue_is_rechecked_when_asked_and_never_after_it_is_empty() {
    let mut queues = Queues::new(0);
    queues.recheck_at(K, 5_000);
    assert_eq!(queues.next_recheck_us(), None);
    let ticket = queues.join(K, b"o", LATER, 1).unwrap();
    queues.recheck_at(K, 50_000);
    queues.recheck_at(K, 5_000);
    assert!(queues.next_recheck_us().is_some_and(|next_us| (4_000..6_200).contains(&next_us)));
    assert_eq!(queues.pop_recheck(4_000, &mut 100), None);
    assert_eq!(queues.pop_recheck(6_200, &mut 100), Some((0, b"k"[..].into())));
    assert_eq!(queues.pop_recheck(60_000, &mut 100), None);
    queues.recheck_all(Some(1), 70_000);
    assert_eq!(queues.pop_recheck(80_000, &mut 100), None);
    for db in [Some(0), None] {
        queues.recheck_all(db, 70_000);
        assert_eq!(queues.pop_recheck(80_000, &mut 100), Some((0, b"k"[..].into())));
    }
    queues.recheck_all(None, 90_000);
    queues.leave(ticket);
    assert_eq!(queues.pop_recheck(90_000, &mut 100), None);
}

#[test]
fn all_leave_at_once_and_every_owner_is_known_until_then() {
    let mut queues = Queues::new(0);
    for waiter in 0..3u32 {
        queues.join(K, &[b'a' + waiter as u8 / 2], LATER, waiter).unwrap();
        queues.join(L, b"o", LATER, 10 + waiter).unwrap();
    }
    queues.recheck_at(K, LATER);
    assert_eq!(queues.owners(K).collect::<Vec<_>>(), [b"a", b"b"]);
    assert_eq!(queues.owners(LockName { name: b"other", ..K }).count(), 0);
    assert_eq!(queues.leave_all(), [0, 1, 2, 10, 11, 12]);
    assert!(queues.is_empty() && queues.names.is_empty());
    assert_eq!((queues.next_expiry_us(), queues.next_recheck_us(), queues.leave_all()), (None, None, vec![]));
}
