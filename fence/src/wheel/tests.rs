use std::collections::BTreeMap;

use super::*;

const TICK_US: u64 = 1 << TICK_BITS;

/// Nodes by number: the deadline and the links of each.
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

/// A wheel with its nodes.
struct Wheel {
    slots: Slots,
    nodes: Stored,
}

impl Wheel {
    fn new(origin_us: u64) -> Wheel {
        Wheel { slots: Slots::new(origin_us), nodes: Stored::default() }
    }

    fn insert(&mut self, node: u32, due_us: u64) {
        assert_eq!(self.nodes.0.insert(node, (due_us, Links::NONE)), None);
        self.slots.link(&mut self.nodes, node, due_us);
    }

    fn pop(&mut self, now_us: u64, budget: &mut usize) -> Option<u32> {
        self.slots.pop(&mut self.nodes, now_us, budget)
    }

    /// All that is due, in the order of their numbers.
    fn drain(&mut self, now_us: u64) -> Vec<u32> {
        let mut popped: Vec<u32> = std::iter::from_fn(|| self.pop(now_us, &mut usize::MAX.clone())).collect();
        popped.sort_unstable();
        popped
    }
}

#[test]
fn a_node_comes_out_at_its_deadline_and_not_before() {
    let mut wheel = Wheel::new(1_000_000);
    wheel.insert(1, 1_000_000 + 7 * TICK_US);
    assert_eq!((wheel.slots.len(), wheel.slots.is_empty()), (1, false));
    assert_eq!(wheel.slots.next_us(), Some(1_000_000 + 7 * TICK_US));
    assert_eq!(wheel.drain(1_000_000 + 7 * TICK_US - 1), []);
    assert_eq!(wheel.drain(1_000_000 + 7 * TICK_US), [1]);
    assert_eq!((wheel.slots.len(), wheel.slots.is_empty()), (0, true));
}

#[test]
fn deadlines_of_every_level_come_out_in_their_time() {
    let mut wheel = Wheel::new(0);
    let due_us = |level: u32| (3 * TICK_US) << (SLOT_BITS * level);
    (0..LEVELS as u32).for_each(|level| wheel.insert(level, due_us(level)));
    for level in 0..LEVELS as u32 {
        assert_eq!(wheel.slots.next_us(), Some(due_us(level)));
        assert_eq!(wheel.drain(due_us(level) - 1), []);
        assert_eq!(wheel.drain(due_us(level)), [level]);
    }
}

#[test]
fn nodes_of_one_slot_come_out_each_in_its_time() {
    for level in 1..LEVELS as u32 {
        let due_us = |ticks: u64| ((1 << (SLOT_BITS * level)) + ticks) * TICK_US;
        let mut wheel = Wheel::new(0);
        wheel.insert(1, due_us(1));
        wheel.insert(6, due_us(6));
        assert_eq!(
            (wheel.drain(due_us(0)), wheel.drain(due_us(3)), wheel.drain(due_us(6))),
            (vec![], vec![1], vec![6])
        );
    }
}

#[test]
fn a_removed_node_never_comes_out() {
    let mut wheel = Wheel::new(0);
    (0..5).for_each(|node| wheel.insert(node, 10 * TICK_US));
    // The first of the slot, the last, one in the middle; and one of them twice.
    for node in [4, 0, 2, 2] {
        wheel.slots.unlink(&mut wheel.nodes, node);
    }
    assert_eq!(wheel.drain(20 * TICK_US), [1, 3]);
}

#[test]
fn a_node_that_was_removed_can_be_added_again() {
    let mut wheel = Wheel::new(0);
    wheel.insert(0, 10 * TICK_US);
    wheel.slots.unlink(&mut wheel.nodes, 0);
    assert_eq!((wheel.slots.len(), wheel.slots.next_us()), (0, None));
    wheel.nodes.0.get_mut(&0).unwrap().0 = 5 * TICK_US;
    wheel.slots.link(&mut wheel.nodes, 0, 5 * TICK_US);
    assert_eq!((wheel.drain(5 * TICK_US - 1), wheel.drain(5 * TICK_US)), (vec![], vec![0]));
}

#[test]
fn a_node_whose_deadline_has_grown_moves_when_its_old_time_comes() {
    let mut wheel = Wheel::new(0);
    (0..2).for_each(|node| wheel.insert(node, 10 * TICK_US));
    wheel.nodes.0.get_mut(&0).unwrap().0 = 5_000 * TICK_US;
    assert_eq!(wheel.drain(4_999 * TICK_US), [1]);
    assert!(wheel.nodes.links_mut(0).is_linked() && !wheel.nodes.links_mut(1).is_linked());
    assert_eq!(wheel.drain(5_000 * TICK_US), [0]);
}

#[test]
fn a_deadline_in_the_past_comes_out_at_once() {
    let mut wheel = Wheel::new(0);
    assert_eq!(wheel.drain(1_000 * TICK_US), []);
    wheel.insert(1, 3);
    assert!(wheel.slots.next_us().unwrap() <= 1_000 * TICK_US);
    assert_eq!(wheel.drain(1_000 * TICK_US), [1]);
}

#[test]
fn a_deadline_beyond_the_span_waits_at_the_end_of_it() {
    let mut wheel = Wheel::new(0);
    wheel.insert(1, u64::MAX);
    assert_eq!(wheel.drain((LAST_TICK - 1) * TICK_US), []);
    assert_eq!(wheel.slots.len(), 1);
}

#[test]
fn a_small_budget_finishes_the_work_in_several_calls() {
    let mut wheel = Wheel::new(0);
    (0..1_000).for_each(|node| wheel.insert(node, 100_000 * TICK_US));
    let (mut popped, mut calls) = (0, 0);
    while !wheel.slots.is_empty() {
        let mut budget = 10;
        while wheel.pop(100_000 * TICK_US, &mut budget).is_some() {
            popped += 1;
        }
        calls += 1;
        assert!(wheel.slots.next_us().is_none_or(|next| next <= 100_000 * TICK_US));
    }
    assert_eq!(popped, 1_000);
    assert!(calls >= 100);
}

#[test]
fn a_wheel_is_as_large_as_its_slots() {
    // 64 numbers and a word of marks, seven times.
    assert_eq!(Slots::new(0).allocated(), 7 * (64 * 4 + 8));
}

#[test]
fn the_marks_of_slots_are_no_numbers_of_nodes() {
    assert_eq!((NODES_MAX, FIRST), (0x7fff_ffff, 0x8000_0000));
}
