//! The deadline index against a sorted map.

use std::collections::BTreeMap;

use fence::wheel::{Handle, Wheel};

use crate::input::Input;

const ORIGIN_US: u64 = 1_700_000_000_000_000;
/// How late an entry may come out.
const TICK_US: u64 = 1_024;
/// Bits of a span: 35 years, of a wheel that spans 142.
const SPAN_BITS: u8 = 50;
/// Entries beyond which no more come in bulk.
const FEW: usize = 64;
/// Where the clock stops, so that a deadline is always within the wheel.
const END_US: u64 = ORIGIN_US + (1 << 51);

/// A sequence of operations.
pub fn run(data: &[u8]) {
    let mut test = Test { wheel: Wheel::new(ORIGIN_US), model: BTreeMap::new(), now_us: ORIGIN_US };
    let mut input = Input(data);
    let mut next = 0;
    while let Some(()) = test.step(&mut input, &mut next) {
        test.compare();
    }
    test.now_us = END_US + (1 << (SPAN_BITS + 1));
    test.pop_all(7);
    assert!(test.model.is_empty() && test.wheel.is_empty());
    assert_eq!(test.wheel.next_us(), None);
}

struct Test {
    wheel: Wheel<u32>,
    model: BTreeMap<u32, (Handle, u64)>,
    now_us: u64,
}

impl Test {
    fn step(&mut self, input: &mut Input, next: &mut u32) -> Option<()> {
        match input.below(8)? {
            0..=2 => {
                let deadline_us = (self.now_us + input.span(SPAN_BITS)?).saturating_sub(input.span(14)?);
                let handle = self.wheel.insert(deadline_us, *next)?;
                self.model.insert(*next, (handle, deadline_us));
                *next += 1;
            }
            3 => {
                let id = self.pick(input)?;
                if let Some((handle, _)) = self.model.remove(&id) {
                    assert_eq!(self.wheel.remove(handle), Some(id));
                    assert_eq!(self.wheel.get(handle), None);
                    assert_eq!(self.wheel.remove(handle), None);
                }
            }
            4 => {
                let id = self.pick(input)?;
                let to_us = self.now_us + input.span(SPAN_BITS)?;
                if let Some((handle, deadline_us)) = self.model.get_mut(&id) {
                    *deadline_us = to_us;
                    self.wheel.reschedule(*handle, to_us);
                }
            }
            5 => {
                // Enough to need a second chunk of the slab; once in a while, as comparing them takes time.
                let count = u32::from(input.byte()?) * 5;
                for _ in 0..if self.model.len() < FEW { count } else { 0 } {
                    let deadline_us = self.now_us + u64::from(*next % 97) * 700;
                    let handle = self.wheel.insert(deadline_us, *next)?;
                    self.model.insert(*next, (handle, deadline_us));
                    *next += 1;
                }
            }
            _ => {
                self.now_us = (self.now_us + input.span(SPAN_BITS)?).min(END_US);
                self.pop_all(usize::from(input.byte()?) + 1);
            }
        }
        Some(())
    }

    fn pick(&self, input: &mut Input) -> Option<u32> {
        let at = input.place()? % self.model.len().max(1);
        Some(self.model.keys().nth(at).copied().unwrap_or(u32::MAX))
    }

    fn pop_all(&mut self, budget: usize) {
        loop {
            let mut left = budget;
            while let Some(id) = self.wheel.pop(self.now_us, &mut left) {
                let (_, deadline_us) = self.model.remove(&id).expect("an entry comes out once");
                assert!(deadline_us <= self.now_us, "entry {id} is early");
            }
            if left > 0 {
                break;
            }
        }
        assert!(self.model.values().all(|&(_, deadline_us)| deadline_us + TICK_US > self.now_us), "one is late");
    }

    fn compare(&self) {
        assert_eq!(self.wheel.len(), self.model.len());
        let earliest_us = self.model.values().map(|&(_, deadline_us)| deadline_us).min();
        match (self.wheel.next_us(), earliest_us) {
            (Some(next_us), Some(earliest_us)) => assert!(next_us < earliest_us.max(self.now_us) + TICK_US),
            (next_us, earliest_us) => assert_eq!(next_us, earliest_us),
        }
        // As many entries as the model has, so these are all.
        if self.model.len() < FEW {
            for (id, &(handle, _)) in &self.model {
                assert_eq!(self.wheel.get(handle), Some(id));
            }
        }
    }
}
