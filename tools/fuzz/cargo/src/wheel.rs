//! The deadline index against a sorted map.

use std::collections::BTreeMap;

use fence::wheel::{Links, Nodes, Slots};

use crate::input::Input;

const ORIGIN_US: u64 = 1_700_000_000_000_000;
/// How late a node may come out.
const TICK_US: u64 = 1_024;
/// Bits of a span: 35 years, of a wheel that spans 142.
const SPAN_BITS: u8 = 50;
/// Nodes beyond which no more come in bulk.
const FEW: usize = 64;
/// Where the clock stops, so that a deadline is always within the wheel.
const END_US: u64 = ORIGIN_US + (1 << 51);

/// A sequence of operations.
pub fn run(data: &[u8]) {
    let mut test = Test { slots: Slots::new(ORIGIN_US), nodes: Stored::default(), now_us: ORIGIN_US };
    let mut input = Input(data);
    let mut next = 0;
    while let Some(()) = test.step(&mut input, &mut next) {
        test.compare();
    }
    test.now_us = END_US + (1 << (SPAN_BITS + 1));
    test.pop_all(7);
    assert!(test.nodes.0.is_empty() && test.slots.is_empty());
    assert_eq!(test.slots.next_us(), None);
}

/// The nodes that are in the wheel, with the deadline of each.
#[derive(Default)]
struct Stored(BTreeMap<u32, (u64, Links)>);

impl Nodes for Stored {
    fn due_us(&self, node: u32) -> u64 {
        self.0[&node].0
    }

    fn links_mut(&mut self, node: u32) -> &mut Links {
        &mut self.0.get_mut(&node).expect("a linked node is stored").1
    }
}

struct Test {
    slots: Slots,
    nodes: Stored,
    now_us: u64,
}

impl Test {
    fn step(&mut self, input: &mut Input, next: &mut u32) -> Option<()> {
        match input.below(8)? {
            0..=2 => {
                let deadline_us = (self.now_us + input.span(SPAN_BITS)?).saturating_sub(input.span(14)?);
                self.insert(next, deadline_us);
            }
            3 => {
                let node = self.pick(input)?;
                if self.nodes.0.contains_key(&node) {
                    self.slots.unlink(&mut self.nodes, node);
                    assert!(!self.nodes.links_mut(node).is_linked());
                    self.slots.unlink(&mut self.nodes, node);
                    self.nodes.0.remove(&node);
                }
            }
            4 => {
                let node = self.pick(input)?;
                let to_us = self.now_us + input.span(SPAN_BITS)?;
                if let Some(&(due_us, _)) = self.nodes.0.get(&node) {
                    // A later deadline needs no move.
                    if to_us < due_us {
                        self.slots.unlink(&mut self.nodes, node);
                        self.slots.link(&mut self.nodes, node, to_us);
                    }
                    self.nodes.0.entry(node).and_modify(|stored| stored.0 = to_us);
                }
            }
            5 => {
                // Once in a while, as comparing them takes time.
                let count = u32::from(input.byte()?) * 5;
                for _ in 0..if self.nodes.0.len() < FEW { count } else { 0 } {
                    let deadline_us = self.now_us + u64::from(*next % 97) * 700;
                    self.insert(next, deadline_us);
                }
            }
            _ => {
                self.now_us = (self.now_us + input.span(SPAN_BITS)?).min(END_US);
                self.pop_all(usize::from(input.byte()?) + 1);
            }
        }
        Some(())
    }

    fn insert(&mut self, next: &mut u32, due_us: u64) {
        self.nodes.0.insert(*next, (due_us, Links::NONE));
        self.slots.link(&mut self.nodes, *next, due_us);
        *next += 1;
    }

    fn pick(&self, input: &mut Input) -> Option<u32> {
        let at = input.place()? % self.nodes.0.len().max(1);
        Some(self.nodes.0.keys().nth(at).copied().unwrap_or(u32::MAX))
    }

    fn pop_all(&mut self, budget: usize) {
        loop {
            let mut left = budget;
            while let Some(node) = self.slots.pop(&mut self.nodes, self.now_us, &mut left) {
                let (due_us, links) = self.nodes.0.remove(&node).expect("a node comes out once");
                assert!(due_us <= self.now_us && !links.is_linked(), "node {node} is early");
            }
            if left > 0 {
                break;
            }
        }
        assert!(self.nodes.0.values().all(|&(due_us, _)| due_us + TICK_US > self.now_us), "one is late");
    }

    fn compare(&self) {
        assert_eq!(self.slots.len(), self.nodes.0.len());
        let earliest_us = self.nodes.0.values().map(|&(due_us, _)| due_us).min();
        match (self.slots.next_us(), earliest_us) {
            (Some(next_us), Some(earliest_us)) => assert!(next_us < earliest_us.max(self.now_us) + TICK_US),
            (next_us, earliest_us) => assert_eq!(next_us, earliest_us),
        }
        assert!(self.nodes.0.values().all(|(_, links)| links.is_linked()));
    }
}
