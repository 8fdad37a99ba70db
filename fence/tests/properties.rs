//! Properties over random inputs: the wheel against a sorted map, the queues against lists, the lease machine against a
//! plain account of who holds what, the resource against a plain account of who claimed it, the codec against itself.

use std::collections::BTreeMap;

use fence::life::ReadIn;
use fence::lock::awaits::Awaits;
use fence::lock::codec::{Clocks, ENCODED_MAX, Notes, Reading, Route, Stamp, decode, encode};
use fence::lock::ending::Ending;
use fence::lock::follow::Follower;
use fence::lock::lease::{
    self, Acquired, Caller, Extended, Extension, Hold, LONGEST, Lease, Millis, Now, OWNER_MAX, Request, Stolen,
    Takeover, Terms,
};
use fence::lock::queue::{LockName, Queues, Ticket};
use fence::resource::{Bearer, DuplicateFence, GuardVerdict, Owned, PlainVerdict, Step, Verdict, judge_plain};
use fence::wheel::{Links, Nodes, Slots};
use fence::{Fence, Issuer};
use proptest::prelude::*;

const ORIGIN_US: u64 = 1_700_000_000_000_000;

#[derive(Clone, Debug)]
enum Op {
    Insert { after_us: u64 },
    Remove { which: usize },
    Reschedule { which: usize, after_us: u64 },
    Advance { by_us: u64, budget: usize },
}

fn span() -> impl Strategy<Value = u64> {
    // Spans of every size, so that every level of the wheel is used.
    (0u32..50).prop_flat_map(|bits| 0..=(1u64 << bits))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => span().prop_map(|after_us| Op::Insert { after_us }),
        2 => any::<usize>().prop_map(|which| Op::Remove { which }),
        2 => (any::<usize>(), span()).prop_map(|(which, after_us)| Op::Reschedule { which, after_us }),
        3 => (span(), 1usize..20).prop_map(|(by_us, budget)| Op::Advance { by_us, budget }),
    ]
}

#[derive(Clone, Debug)]
enum Wait {
    Join { lock: u8, owner: u8, after_us: u64 },
    TakeOver { lock: u8, owner: u8, after_us: u64 },
    Leave { which: usize },
    Serve { lock: u8 },
    Advance { by_us: u64 },
}

fn wait() -> impl Strategy<Value = Wait> {
    let after = 0..50_000u64;
    prop_oneof![
        4 => (0..3u8, 0..3u8, after.clone()).prop_map(|(lock, owner, after_us)| Wait::Join { lock, owner, after_us }),
        1 => (0..3u8, 0..3u8, after).prop_map(|(lock, owner, after_us)| Wait::TakeOver { lock, owner, after_us }),
        2 => any::<usize>().prop_map(|which| Wait::Leave { which }),
        2 => (0..3u8).prop_map(|lock| Wait::Serve { lock }),
        2 => (0..20_000u64).prop_map(|by_us| Wait::Advance { by_us }),
    ]
}

/// A waiter as the plain list has it.
#[derive(Clone, Debug)]
struct Listed {
    id: u32,
    lock: u8,
    owner: u8,
    deadline_us: u64,
    ticket: Ticket,
}

#[derive(Clone, Debug)]
enum AwaitStep {
    Join {
        lock: u8,
        fence: u64,
        is_ahead: bool,
        after_us: u64,
    },
    Leave {
        which: usize,
    },
    End {
        lock: u8,
        fence: u64,
    },
    Arrive {
        lock: u8,
        fence: u64,
    },
    /// Every fence up to this one is known.
    Pass {
        last: u64,
    },
    Advance {
        by_us: u64,
    },
}

fn await_step() -> impl Strategy<Value = AwaitStep> {
    let (lock, fence) = (0..3u8, 1..6u64);
    prop_oneof![
        5 => (lock.clone(), fence.clone(), any::<bool>(), 0..50_000u64)
            .prop_map(|(lock, fence, is_ahead, after_us)| AwaitStep::Join { lock, fence, is_ahead, after_us }),
        2 => any::<usize>().prop_map(|which| AwaitStep::Leave { which }),
        2 => (lock.clone(), fence.clone()).prop_map(|(lock, fence)| AwaitStep::End { lock, fence }),
        1 => (lock, fence.clone()).prop_map(|(lock, fence)| AwaitStep::Arrive { lock, fence }),
        1 => fence.prop_map(|last| AwaitStep::Pass { last }),
        2 => (0..20_000u64).prop_map(|by_us| AwaitStep::Advance { by_us }),
    ]
}

/// An awaiter as the plain list has it.
#[derive(Clone, Debug)]
struct Awaiting {
    id: u32,
    lock: u8,
    fence: u64,
    deadline_us: u64,
    ticket: Ticket,
}

#[derive(Clone, Debug)]
enum Call {
    Acquire {
        owner: u8,
        ttl: u64,
        max_hold: Option<u64>,
        delay: Option<u64>,
        retry: bool,
        others_wait: bool,
    },
    Extend {
        owner: u8,
        ttl: u64,
        own_fence: bool,
        only_longer: bool,
    },
    Release {
        owner: u8,
        own_fence: bool,
    },
    /// `own_fence`: names the live hold, or another one.
    Steal {
        owner: u8,
        ttl: u64,
        delay: Option<u64>,
        own_fence: Option<bool>,
    },
    /// The connection of the holder closes.
    Close,
    Advance {
        by_ms: u64,
    },
    /// The wall clock is set.
    SetClock {
        wall_us: u64,
    },
}

fn call() -> impl Strategy<Value = Call> {
    let ms = 1..40u64;
    let some_ms = || prop::option::of(1..60u64);
    prop_oneof![
        3 => (0..3u8, ms.clone(), some_ms(), some_ms(), any::<bool>(), prop::bool::weighted(0.1)).prop_map(
            |(owner, ttl, max_hold, delay, retry, others_wait)| {
                Call::Acquire { owner, ttl, max_hold, delay, retry, others_wait }
            }
        ),
        1 => (0..3u8, ms.clone(), some_ms(), prop::option::of(prop::bool::weighted(0.7))).prop_map(
            |(owner, ttl, delay, own_fence)| Call::Steal { owner, ttl, delay, own_fence }
        ),
        2 => (0..3u8, ms, any::<bool>(), any::<bool>()).prop_map(|(owner, ttl, own_fence, only_longer)| {
            Call::Extend { owner, ttl, own_fence, only_longer }
        }),
        1 => (0..3u8, any::<bool>()).prop_map(|(owner, own_fence)| Call::Release { owner, own_fence }),
        1 => Just(Call::Close),
        3 => (0..30u64).prop_map(|by_ms| Call::Advance { by_ms }),
        1 => prop_oneof![Just(0), 0..40u64, 0..Fence::MAX].prop_map(|wall_us| Call::SetClock { wall_us }),
    ]
}

/// A step at a resource and the fence that it brings.
fn touch() -> impl Strategy<Value = (Step, u64)> {
    let step = prop_oneof![3 => Just(Step::Claim), 3 => Just(Step::Update), 1 => Just(Step::Write)];
    (step, prop_oneof![9 => 1..6u64, 1 => Fence::MAX - 2..=Fence::MAX])
}

/// The plain account of a lock, in milliseconds.
#[derive(Clone, Debug)]
struct Account {
    owner: u8,
    fence: u64,
    ends: u64,
    last_end: u64,
    shut_until: u64,
}

/// A tick of the wheel: how late a node may come out.
const TICK_US: u64 = 1_024;

/// The nodes that are in the wheel, with the deadline of each.
#[derive(Default)]
struct Stored(BTreeMap<u32, (u64, Links)>);

impl Nodes for Stored {
    fn due_us(&self, node: u32) -> u64 {
        self.0[&node].0
    }

    fn links_mut(&mut self, node: u32) -> &mut Links {
        &mut self.0.get_mut(&node).unwrap().1
    }
}

proptest! {
    #[test]
    fn the_wheel_agrees_with_a_sorted_map(ops in prop::collection::vec(op(), 1..200)) {
        let mut slots = Slots::new(ORIGIN_US);
        let mut nodes = Stored::default();
        let mut now_us = ORIGIN_US;
        for (number, op) in (0u32..).zip(ops) {
            let pick = |which: usize| nodes.0.keys().nth(which % nodes.0.len().max(1)).copied();
            match op {
                Op::Insert { after_us } => {
                    nodes.0.insert(number, (now_us + after_us, Links::NONE));
                    slots.link(&mut nodes, number, now_us + after_us);
                }
                Op::Remove { which } => if let Some(node) = pick(which) {
                    slots.unlink(&mut nodes, node);
                    prop_assert_eq!(nodes.0.remove(&node).unwrap().1, Links::NONE);
                },
                Op::Reschedule { which, after_us } => if let Some(node) = pick(which) {
                    let due_us = now_us + after_us;
                    // A later deadline needs no move.
                    if due_us < nodes.due_us(node) {
                        slots.unlink(&mut nodes, node);
                        slots.link(&mut nodes, node, due_us);
                    }
                    nodes.0.get_mut(&node).unwrap().0 = due_us;
                },
                Op::Advance { by_us, budget } => {
                    now_us += by_us;
                    loop {
                        let mut left = budget;
                        while let Some(node) = slots.pop(&mut nodes, now_us, &mut left) {
                            let (due_us, _) = nodes.0.remove(&node).unwrap();
                            prop_assert!(due_us <= now_us, "node {node} is {} early", due_us - now_us);
                        }
                        if left > 0 {
                            break;
                        }
                    }
                    let overdue = nodes.0.values().filter(|(due_us, _)| due_us + TICK_US <= now_us).count();
                    prop_assert_eq!(overdue, 0);
                }
            }
            prop_assert_eq!(slots.len(), nodes.0.len());
            prop_assert!(nodes.0.values().all(|(_, links)| links.is_linked()));
            let earliest = nodes.0.values().map(|&(due_us, _)| due_us).min();
            match (slots.next_us(), earliest) {
                (Some(next_us), Some(earliest_us)) => prop_assert!(next_us < earliest_us.max(now_us) + TICK_US),
                (next, earliest) => prop_assert_eq!(next, earliest),
            }
        }
    }

    #[test]
    fn the_queues_agree_with_plain_lists(waits in prop::collection::vec(wait(), 1..150)) {
        let mut queues = Queues::new(ORIGIN_US);
        let mut list: Vec<Listed> = Vec::new();
        let mut now_us = ORIGIN_US;
        let names: Vec<Vec<u8>> = (0..3u8).map(|lock| vec![lock]).collect();
        let name = |lock: u8| LockName { db: i32::from(lock % 2), name: &names[lock as usize] };
        for (id, wait) in (0u32..).zip(waits) {
            match wait {
                Wait::Join { lock, owner, after_us } => {
                    let deadline_us = now_us + after_us;
                    let ticket = queues.join(name(lock), &[owner], deadline_us, id).unwrap();
                    list.push(Listed { id, lock, owner, deadline_us, ticket });
                }
                Wait::TakeOver { lock, owner, after_us } => {
                    let place = list.iter_mut().find(|listed| listed.lock == lock && listed.owner == owner);
                    let taken = queues.take_over(name(lock), &[owner], now_us + after_us, id);
                    match place {
                        None => prop_assert_eq!(taken, Err(id)),
                        Some(place) => {
                            prop_assert_eq!(taken, Ok((place.ticket, place.id)));
                            place.id = id;
                            place.deadline_us = now_us + after_us;
                        }
                    }
                }
                Wait::Leave { which } => if !list.is_empty() {
                    let gone = list.remove(which % list.len());
                    prop_assert_eq!(queues.leave(gone.ticket), Some(gone.id));
                    prop_assert_eq!(queues.leave(gone.ticket), None);
                },
                Wait::Serve { lock } => {
                    let first = list.iter().position(|listed| listed.lock == lock).map(|at| list.remove(at));
                    let head = queues.head(name(lock)).map(|(ticket, &id)| (ticket, id));
                    prop_assert_eq!(head, first.as_ref().map(|first| (first.ticket, first.id)));
                    if let Some((ticket, id)) = head {
                        prop_assert_eq!(queues.leave(ticket), Some(id));
                    }
                }
                Wait::Advance { by_us } => {
                    now_us += by_us;
                    while let Some(id) = queues.pop_expired(now_us, &mut usize::MAX.clone()) {
                        let at = list.iter().position(|listed| listed.id == id).unwrap();
                        prop_assert!(list.remove(at).deadline_us <= now_us);
                    }
                    prop_assert!(list.iter().all(|listed| listed.deadline_us + TICK_US > now_us));
                }
            }
            prop_assert_eq!(queues.len(), list.len());
            for lock in 0..3 {
                prop_assert_eq!(queues.waiting(name(lock)), list.iter().filter(|listed| listed.lock == lock).count());
            }
        }
    }

    #[test]
    fn the_awaits_agree_with_a_plain_list(steps in prop::collection::vec(await_step(), 1..60)) {
        let mut awaits = Awaits::new(ORIGIN_US);
        let mut list: Vec<Awaiting> = Vec::new();
        // Locks with fences that are ahead.
        let mut ahead: Vec<(u64, u8)> = Vec::new();
        let mut now_us = ORIGIN_US;
        let names: Vec<Vec<u8>> = (0..3u8).map(|lock| vec![lock]).collect();
        let name = |lock: u8| LockName { db: i32::from(lock % 2), name: &names[lock as usize] };
        let number = |fence: u64| Fence::new(fence).unwrap();
        for (id, step) in (0u32..).zip(steps) {
            let mut gone: Vec<u32> = Vec::new();
            let mut expected: Vec<u32> = Vec::new();
            match step {
                AwaitStep::Join { lock, fence, is_ahead, after_us } => {
                    let deadline_us = now_us + after_us;
                    let ticket = awaits.join(name(lock), number(fence), is_ahead, deadline_us, id).unwrap();
                    list.push(Awaiting { id, lock, fence, deadline_us, ticket });
                    if is_ahead && !ahead.contains(&(fence, lock)) {
                        ahead.push((fence, lock));
                    }
                }
                AwaitStep::Leave { which } => if !list.is_empty() {
                    let left = list[which % list.len()].clone();
                    gone.extend(awaits.leave(left.ticket));
                    prop_assert_eq!(awaits.leave(left.ticket), None);
                    expected.push(left.id);
                },
                AwaitStep::End { lock, fence } => {
                    gone = awaits.end(name(lock), number(fence));
                    expected = list.iter().filter(|one| (one.lock, one.fence) == (lock, fence)).map(|one| one.id).collect();
                }
                AwaitStep::Arrive { lock, fence } => {
                    awaits.arrive(name(lock), number(fence));
                    ahead.retain(|&(one, of)| (one, of) != (fence, lock));
                }
                AwaitStep::Pass { last } => {
                    while let Some(passed) = awaits.pop_passed(last) {
                        gone.extend(passed);
                    }
                    gone.sort_unstable();
                    let is_passed = |one: &&Awaiting| one.fence <= last && ahead.contains(&(one.fence, one.lock));
                    expected = list.iter().filter(is_passed).map(|one| one.id).collect();
                }
                AwaitStep::Advance { by_us } => {
                    now_us += by_us;
                    while let Some(id) = awaits.pop_expired(now_us, &mut usize::MAX.clone()) {
                        gone.push(id);
                    }
                    gone.sort_unstable();
                    expected = gone.clone();
                    let is_late = |one: &&Awaiting| one.deadline_us + TICK_US <= now_us;
                    prop_assert!(list.iter().filter(is_late).all(|one| gone.contains(&one.id)));
                    let is_early = |one: &&Awaiting| one.deadline_us > now_us;
                    prop_assert!(list.iter().filter(is_early).all(|one| !gone.contains(&one.id)));
                }
            }
            prop_assert_eq!(&gone, &expected);
            list.retain(|one| !gone.contains(&one.id));
            // What was ahead is forgotten with the last that awaited it.
            ahead.retain(|&(fence, lock)| list.iter().any(|one| (one.fence, one.lock) == (fence, lock)));
            prop_assert_eq!((awaits.len(), awaits.is_empty()), (list.len(), list.is_empty()));
            for lock in 0..3 {
                let mut others: Vec<u64> = list.iter().filter(|one| one.lock == lock && one.fence != 3).map(|one| one.fence).collect();
                others.retain(|&fence| !ahead.contains(&(fence, lock)));
                others.sort_unstable();
                others.dedup();
                let found: Vec<u64> = awaits.others(name(lock), Fence::new(3)).into_iter().map(Fence::get).collect();
                prop_assert_eq!(found, others);
            }
            for fence in 1..6 {
                prop_assert_eq!(awaits.awaits(number(fence)), list.iter().any(|one| one.fence == fence));
            }
        }
    }

    #[test]
    fn the_lease_machine_agrees_with_a_plain_account(calls in prop::collection::vec(call(), 1..120)) {
        let mut issuer = Issuer::default();
        let mut stored: Option<(Lease, u8)> = None;
        let mut account: Option<Account> = None;
        let mut now = 1_000u64;
        let mut wall_us = 0;
        let mut last = 0;
        for call in calls {
            let owners = [[0u8], [1], [2]];
            let hold = stored.as_ref().map(|(lease, owner)| Hold { lease: *lease, owner: &owners[*owner as usize] });
            let moment = Now { steady_us: now * 1_000, wall_us };
            let held = account.as_ref().filter(|account| now < account.ends).cloned();
            let shut = account.as_ref().is_some_and(|account| account.ends <= now && now < account.shut_until);
            let fence_of = |own: bool, held: &Option<Account>| {
                let number = held.as_ref().map_or(1, |held| held.fence);
                Fence::new(if own { number } else { number + 1 })
            };
            match call {
                Call::Advance { by_ms } => now += by_ms,
                Call::SetClock { wall_us: set } => wall_us = set,
                Call::Acquire { owner, ttl, max_hold, delay, retry, others_wait } => {
                    let terms = Terms {
                        ttl: Millis(ttl),
                        max_hold: max_hold.map(Millis),
                        delay: delay.map(Millis),
                        ephemeral: false,
                    };
                    let request = Request { owner: &owners[owner as usize], terms, retry };
                    match lease::acquire(hold, others_wait, request, &mut issuer, moment) {
                        Ok(Acquired::Granted(lease)) => {
                            prop_assert!(held.is_none() && !shut && !others_wait);
                            prop_assert_eq!(lease.fence.get(), wall_us.max(last + 1));
                            last = lease.fence.get();
                            let last_end = max_hold.map_or(u64::MAX, |hold| now + hold);
                            let ends = last_end.min(now + ttl);
                            let shut_until = ends + delay.unwrap_or(0);
                            account = Some(Account { owner, fence: last, ends, last_end, shut_until });
                            stored = Some((lease, owner));
                        }
                        Ok(Acquired::Again(lease)) => {
                            let held = held.unwrap();
                            prop_assert!(retry && held.owner == owner && held.fence == lease.fence.get());
                        }
                        Err(_) if held.is_none() && !shut => prop_assert!(others_wait || last == Fence::MAX),
                        Err(_) => prop_assert!(shut || held.is_some_and(|held| !(retry && held.owner == owner))),
                    }
                }
                Call::Extend { owner, ttl, own_fence, only_longer } => {
                    let fence = fence_of(own_fence, &held);
                    let caller = Caller { owner: &owners[owner as usize], fence };
                    let right = own_fence && held.as_ref().is_some_and(|held| held.owner == owner);
                    let extended = lease::extend(hold, caller, Extension { ttl: Millis(ttl), only_longer }, moment.steady_us);
                    prop_assert_eq!(extended.is_ok(), right);
                    if let (Ok(extended), Some(account)) = (extended, account.as_mut()) {
                        let delay = account.shut_until - account.ends;
                        let ends = account.last_end.min(now + ttl);
                        let kept = only_longer && ends <= account.ends;
                        account.ends = if kept { account.ends } else { ends };
                        let lease = match extended {
                            Extended::Moved(lease) if !kept => lease,
                            Extended::Kept(lease) if kept => lease,
                            other => panic!("{other:?}"),
                        };
                        account.shut_until = account.ends + delay;
                        prop_assert_eq!(lease.left(moment.steady_us).0, account.ends - now);
                        stored = Some((lease, owner));
                    }
                }
                Call::Steal { owner, ttl, delay, own_fence } => {
                    let terms = Terms { ttl: Millis(ttl), max_hold: None, delay: delay.map(Millis), ephemeral: false };
                    let from = own_fence.and_then(|own| fence_of(own, &held));
                    let named = own_fence.is_none_or(|own| own && held.is_some());
                    let takeover = Takeover { owner: &owners[owner as usize], terms, from };
                    let has_delay = held.as_ref().is_some_and(|held| held.shut_until > held.ends);
                    let before = issuer;
                    let got = lease::steal(hold, takeover, &mut issuer, moment);
                    if !named || shut || has_delay || last == Fence::MAX {
                        prop_assert_eq!(issuer, before);
                    }
                    match got {
                        Ok(Stolen::Granted(lease)) => {
                            prop_assert!(named && !shut && !has_delay);
                            prop_assert_eq!(lease.fence.get(), wall_us.max(last + 1));
                            last = lease.fence.get();
                            let shut_until = now + ttl + delay.unwrap_or(0);
                            account = Some(Account { owner, fence: last, ends: now + ttl, last_end: u64::MAX, shut_until });
                            stored = Some((lease, owner));
                        }
                        Ok(Stolen::Delayed(lease)) => {
                            prop_assert!(named && has_delay);
                            let held = held.unwrap();
                            prop_assert_eq!(lease.fence.get(), held.fence);
                            stored = Some((lease, held.owner));
                            account = Some(Account { ends: now, shut_until: now + held.shut_until - held.ends, ..held });
                        }
                        Err(_) => prop_assert!(!named || shut || last == Fence::MAX),
                    }
                }
                Call::Close => {
                    if let (Some((lease, _)), Some(account)) = (stored.as_mut(), account.as_mut()) {
                        *lease = lease.expire(moment.steady_us);
                        let delay = account.shut_until - account.ends;
                        account.ends = account.ends.min(now);
                        account.shut_until = account.ends + delay;
                    }
                }
                Call::Release { owner, own_fence } => {
                    let caller = Caller { owner: &owners[owner as usize], fence: fence_of(own_fence, &held) };
                    let right = own_fence && held.as_ref().is_some_and(|held| held.owner == owner);
                    prop_assert_eq!(lease::release(hold, caller, moment.steady_us).is_ok(), right);
                    if right {
                        (stored, account) = (None, None);
                    }
                }
            }
        }
    }

    #[test]
    fn the_resource_agrees_with_a_plain_account(touches in prop::collection::vec(touch(), 1..80)) {
        // Who claimed it last, and whether anybody did.
        let mut claimed: Option<u64> = None;
        let mut stored: Option<i64> = None;
        for (step, number) in touches {
            let fence = Fence::new(number).unwrap();
            let newer_than_all = claimed.is_none_or(|claimed| number > claimed);
            let own = claimed == Some(number);
            let expected = match step {
                _ if !newer_than_all && !own => Verdict::Stale,
                Step::Update if newer_than_all => Verdict::Unclaimed,
                Step::Claim | Step::Write | Step::Update => Verdict::Accepted,
            };
            prop_assert_eq!(step.judge(stored, fence), expected);
            // A guard and a plain write follow the same account.
            let entry = if own { GuardVerdict::Shared } else if newer_than_all { GuardVerdict::Alone } else { GuardVerdict::Stale(stored.unwrap()) };
            prop_assert_eq!(GuardVerdict::of(stored, fence, ReadIn::ThisLife), entry);
            prop_assert_eq!(GuardVerdict::of(stored, fence, ReadIn::Unsaid), entry);
            let outlived = if let GuardVerdict::Stale(_) = entry { entry } else { GuardVerdict::Outlived };
            prop_assert_eq!(GuardVerdict::of(stored, fence, ReadIn::AnotherLife), outlived);
            let plain = match (own, newer_than_all) {
                (true, _) => PlainVerdict::Accepted,
                (_, true) => PlainVerdict::Unclaimed(fence),
                _ => PlainVerdict::Stale(fence),
            };
            prop_assert_eq!(judge_plain(stored, [fence].into_iter()), plain);
            if expected == Verdict::Accepted {
                (claimed, stored) = (Some(number), Some(number as i64));
            }
        }
    }

    #[test]
    fn owners_part_those_who_bring_one_number_and_nobody_else(
        touches in prop::collection::vec((touch(), prop::option::of(0..3usize)), 1..80)
    ) {
        const NAMES: [&[u8]; 3] = [b"a", b"b", b"A"];
        let name = |owner: Option<usize>| owner.map(|owner| NAMES[owner]);
        // Who stamped the resource last, and with which number.
        let mut claimed: Option<(u64, Option<usize>)> = None;
        for ((step, number), owner) in touches {
            let caller = Bearer { fence: Fence::new(number).unwrap(), owner: name(owner) };
            let fence = claimed.map(|(claimed, _)| claimed as i64);
            let stored = Owned { fence, owner: claimed.and_then(|(_, owner)| name(owner)) };
            let verdict = step.judge_owned(stored, caller);
            let entry = GuardVerdict::of_owned(stored, caller, ReadIn::AnotherLife);
            match claimed {
                Some((claimed, Some(first))) if claimed == number && owner != Some(first) => {
                    prop_assert_eq!((verdict, entry), (Err(DuplicateFence), GuardVerdict::Duplicate));
                }
                _ => {
                    prop_assert_eq!(verdict, Ok(step.judge(fence, caller.fence)));
                    prop_assert_eq!(entry, GuardVerdict::of(fence, caller.fence, ReadIn::AnotherLife));
                }
            }
            if verdict == Ok(Verdict::Accepted) && step != Step::Update {
                claimed = Some((number, owner));
            }
        }
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same_hold(
        fence in 1..=Fence::MAX,
        held_us in 0..1u64 << 50,
        left_us in -(1i64 << 40)..LONGEST.as_micros() as i64,
        max_hold_us in prop::option::of(1..=LONGEST.as_micros()),
        delay_us in prop_oneof![Just(0), 1..=LONGEST.as_micros()],
        ephemeral: bool,
        owner in prop::collection::vec(any::<u8>(), 1..=OWNER_MAX),
        incarnation: u64,
        reading: u64,
        ended in prop::option::of((0..9u8).prop_map(Ending::numbered)),
        keeps_expire: bool,
        unjudged: bool,
    ) {
        let clocks = Clocks { steady_us: ORIGIN_US, wall_us: ORIGIN_US + 7 };
        let granted_us = ORIGIN_US - held_us;
        let lease = Lease {
            fence: Fence::new(fence).unwrap(),
            granted_us,
            deadline_us: ORIGIN_US.saturating_add_signed(left_us),
            limit_us: max_hold_us.map_or(u64::MAX, |hold| granted_us + hold),
            delay_us,
            ephemeral,
        };
        let mut buffer = [0; ENCODED_MAX];
        let issued = Reading { incarnation, steady_us: reading };
        let notes = Notes { ended, keeps_expire, unjudged };
        let bytes = encode(&Hold { lease, owner: &owner }, Stamp { clocks, issued }, notes, &mut buffer);
        let record = decode(bytes).unwrap();
        prop_assert_eq!((record.owner, record.notes, record.issued), (&owner[..], notes, Some(issued)));
        prop_assert_eq!(record.lease(clocks, Route::Stream), lease);
        prop_assert_eq!(record.lease(clocks, Route::File), lease);
    }

    /// Each reading is late by whatever it is, and the stream keeps its order.
    #[test]
    fn a_follower_ends_no_lease_too_early_and_on_time_after_one_prompt_reading(
        lates in prop::collection::vec(prop_oneof![4 => 0..5_000u64, 1 => 0..90_000_000u64], 1..150),
        apart_us in -(1i64 << 50)..1i64 << 50,
        (left_us, prompt_us) in (1..600_000_000u64, 0..5_000u64),
    ) {
        const S: u64 = 1_000_000;
        let mut follower = Follower::of_issuer(1);
        let (mut ahead_us, mut received_us) = (0, 0);
        let issuer = |steady_us| Reading { incarnation: 2, steady_us };
        let lates = lates.into_iter().chain([prompt_us]);
        for (sent_us, late_us) in (1u64..).map(|second| ORIGIN_US + second * S).zip(lates) {
            received_us = (sent_us + late_us).max(received_us);
            let local_us = received_us.wrapping_add_signed(apart_us);
            ahead_us = follower.receive(issuer(sent_us), None, local_us, ahead_us);
            let deadline_us = sent_us + left_us;
            let ends_us = follower.place(issuer(deadline_us)).unwrap().wrapping_sub(ahead_us as u64);
            let ends_us = ends_us.wrapping_add_signed(-apart_us);
            prop_assert!(ends_us >= deadline_us, "{} us too early", deadline_us - ends_us);
            if received_us - sent_us < 5_000 {
                prop_assert!(ends_us - deadline_us < 100_000, "{} us too late", ends_us - deadline_us);
            }
        }
    }

    #[test]
    fn decoding_never_panics_and_placing_never_overflows(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        steady_us: u64,
        wall_us: u64,
    ) {
        let mut bytes = bytes;
        if let Some(version) = bytes.first_mut() {
            *version = *version % 2 + 1;
        }
        if let Some(flags) = bytes.get_mut(1) {
            *flags &= 0xdf;
        }
        if let Ok(record) = decode(&bytes) {
            for route in [Route::Stream, Route::File, Route::Travel] {
                let lease = record.lease(Clocks { steady_us, wall_us }, route);
                lease.state(steady_us);
                lease.left(steady_us);
            }
        }
    }
}
