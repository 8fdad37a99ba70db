//! Properties over random inputs: the wheel against a sorted map, the codec against itself.

use std::collections::BTreeMap;

use fence::Fence;
use fence::codec::{Clocks, ENCODED_MAX, Route, decode, encode};
use fence::lease::{Hold, LONGEST, Lease, OWNER_MAX};
use fence::wheel::{Handle, Wheel};
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

/// A tick of the wheel: how late an entry may come out.
const TICK_US: u64 = 1_024;

proptest! {
    #[test]
    fn the_wheel_agrees_with_a_sorted_map(ops in prop::collection::vec(op(), 1..200)) {
        let mut wheel = Wheel::new(ORIGIN_US);
        let mut model: BTreeMap<u32, (Handle, u64)> = BTreeMap::new();
        let mut now_us = ORIGIN_US;
        for (number, op) in (0u32..).zip(ops) {
            let pick = |which: usize| model.keys().nth(which % model.len().max(1)).copied();
            match op {
                Op::Insert { after_us } => {
                    let handle = wheel.insert(now_us + after_us, number).unwrap();
                    model.insert(number, (handle, now_us + after_us));
                }
                Op::Remove { which } => if let Some(id) = pick(which) {
                    let (handle, _) = model.remove(&id).unwrap();
                    prop_assert_eq!(wheel.remove(handle), Some(id));
                    prop_assert_eq!(wheel.get(handle), None);
                },
                Op::Reschedule { which, after_us } => if let Some(id) = pick(which) {
                    let (handle, deadline_us) = model.get_mut(&id).unwrap();
                    *deadline_us = now_us + after_us;
                    wheel.reschedule(*handle, *deadline_us);
                },
                Op::Advance { by_us, budget } => {
                    now_us += by_us;
                    loop {
                        let mut left = budget;
                        while let Some(id) = wheel.pop(now_us, &mut left) {
                            let (_, deadline_us) = model.remove(&id).unwrap();
                            prop_assert!(deadline_us <= now_us, "entry {id} is {} early", deadline_us - now_us);
                        }
                        if left > 0 {
                            break;
                        }
                    }
                    let overdue = model.values().filter(|(_, deadline_us)| deadline_us + TICK_US <= now_us).count();
                    prop_assert_eq!(overdue, 0);
                }
            }
            prop_assert_eq!(wheel.len(), model.len());
            let earliest = model.values().map(|&(_, deadline_us)| deadline_us).min();
            match (wheel.next_us(), earliest) {
                (Some(next_us), Some(earliest_us)) => prop_assert!(next_us < earliest_us.max(now_us) + TICK_US),
                (next, earliest) => prop_assert_eq!(next, earliest),
            }
        }
        prop_assert!(model.iter().all(|(id, &(handle, _))| wheel.get(handle) == Some(id)));
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
        let bytes = encode(&Hold { lease, owner: &owner }, clocks, &mut buffer);
        let record = decode(bytes).unwrap();
        prop_assert_eq!(record.owner, &owner[..]);
        prop_assert_eq!(record.lease(clocks, Route::Stream), lease);
        prop_assert_eq!(record.lease(clocks, Route::File), lease);
    }

    #[test]
    fn decoding_never_panics_and_placing_never_overflows(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        steady_us: u64,
        wall_us: u64,
    ) {
        let mut bytes = bytes;
        if let Some(version) = bytes.first_mut() {
            *version %= 3;
        }
        if let Some(flags) = bytes.get_mut(1) {
            *flags %= 16;
        }
        if let Ok(record) = decode(&bytes) {
            for route in [Route::Stream, Route::File] {
                let lease = record.lease(Clocks { steady_us, wall_us }, route);
                lease.state(steady_us);
                lease.left(steady_us);
            }
        }
    }
}
