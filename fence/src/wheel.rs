//! The deadline index: a hierarchical timing wheel.
//!
//! Not a timer: it holds deadlines and gives out those that have passed when asked. Insert, remove and postpone cost the
//! same with ten entries as with a million. [`Wheel`] stores values in a slab of its own; [`Slots`] is the wheel alone,
//! over nodes that the caller stores.
//! Invariant: an entry is never given out before its deadline, and from one tick after it on by the first call that has
//! budget left.
//!
//! Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987 (scheme 7).

/// Slots of a level, one bit each in a word.
const SLOTS: usize = 64;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();
/// Seven levels of 64 slots span 2^42 ticks, 142 years: more than the longest lease with the longest delay.
const LEVELS: usize = 7;
const LAST_TICK: u64 = (1 << (SLOT_BITS * LEVELS as u32)) - 1;
/// A tick is 1,024 microseconds: close to a millisecond, and a shift instead of a division.
const TICK_BITS: u32 = 10;
/// Entries of a chunk of the slab: it grows without moving what is there.
const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;

const NIL: u32 = u32::MAX;
/// In `Links::prev`: the node is the first of a slot, and the other bits name the slot.
const FIRST: u32 = 1 << 31;
/// The most nodes of a wheel: more would run into the mark above.
pub const NODES_MAX: u32 = FIRST - 1;

/// The place of a node among its neighbours, for the wheel alone to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    /// The links of a node that is in no slot.
    pub const NONE: Links = Links { prev: NIL, next: NIL };

    /// Whether the node is in a slot.
    pub const fn is_linked(self) -> bool {
        self.prev != NIL
    }
}

/// What is in the slots of a wheel: nodes with numbers below [`NODES_MAX`], each with a deadline and a place for links.
pub trait Nodes {
    /// When the node is due, in microseconds. It may grow at any time; before it falls the node must be taken out.
    fn due_us(&self, node: u32) -> u64;

    /// The links of the node: [`Links::NONE`] at first.
    fn links_mut(&mut self, node: u32) -> &mut Links;
}

#[derive(Clone, Copy)]
struct Level {
    occupied: u64,
    first: [u32; SLOTS],
}

/// A place in the wheel and the tick at which its time begins.
struct Slot {
    level: usize,
    index: usize,
    start: u64,
}

/// The slots of a wheel. The nodes are an argument, and the same ones in every call.
pub struct Slots {
    levels: Box<[Level; LEVELS]>,
    len: usize,
    origin_us: u64,
    elapsed: u64,
}

impl Slots {
    /// Empty slots. `origin_us` is the earliest time of the clock of the deadlines, in microseconds.
    pub fn new(origin_us: u64) -> Slots {
        let level = Level { occupied: 0, first: [NIL; SLOTS] };
        Slots { levels: Box::new([level; LEVELS]), len: 0, origin_us, elapsed: 0 }
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many bytes the slots have allocated.
    pub fn allocated(&self) -> usize {
        size_of::<[Level; LEVELS]>()
    }

    /// Puts a node that is in no slot where it is looked at when `at_us` has come: the time at which it is due, or later.
    /// A later time may be cut short, but never below the time at which the node is due.
    pub fn link(&mut self, nodes: &mut impl Nodes, node: u32, at_us: u64) {
        let (level, slot) = self.place(at_us);
        let next = self.levels[level].first[slot];
        if next != NIL {
            nodes.links_mut(next).prev = node;
        }
        *nodes.links_mut(node) = Links { prev: FIRST | (level * SLOTS + slot) as u32, next };
        self.levels[level].first[slot] = node;
        self.levels[level].occupied |= 1 << slot;
        self.len += 1;
    }

    /// Takes a node out of its slot; nothing when it is in none.
    pub fn unlink(&mut self, nodes: &mut impl Nodes, node: u32) {
        let Links { prev, next } = std::mem::replace(nodes.links_mut(node), Links::NONE);
        if prev == NIL {
            return;
        }
        self.len -= 1;
        if next != NIL {
            nodes.links_mut(next).prev = prev;
        }
        if prev & FIRST == 0 {
            nodes.links_mut(prev).next = next;
            return;
        }
        let place = (prev & !FIRST) as usize;
        let level = &mut self.levels[place / SLOTS];
        level.first[place % SLOTS] = next;
        if next == NIL {
            level.occupied &= !(1 << (place % SLOTS));
        }
    }

    /// A time at or before the earliest deadline, and not far before it: when to look next, in microseconds.
    pub fn next_us(&self) -> Option<u64> {
        let slot = self.next_slot()?;
        Some(self.origin_us.saturating_add(slot.start << TICK_BITS))
    }

    /// Takes out one node that is due at or before `now_us`; `None` when there is none or the budget is used up.
    ///
    /// `budget` counts the nodes handled, given out or only moved; what is left to do then shows in `next_us`.
    pub fn pop(&mut self, nodes: &mut impl Nodes, now_us: u64, budget: &mut usize) -> Option<u32> {
        let now = now_us.saturating_sub(self.origin_us) >> TICK_BITS;
        loop {
            let Some(slot) = self.next_slot().filter(|slot| slot.start <= now) else {
                self.elapsed = self.elapsed.max(now.min(LAST_TICK));
                return None;
            };
            *budget = budget.checked_sub(1)?;
            self.elapsed = self.elapsed.max(slot.start);
            let node = self.levels[slot.level].first[slot.index];
            self.unlink(nodes, node);
            let due_us = nodes.due_us(node);
            if slot.level == 0 && due_us <= now_us {
                return Some(node);
            }
            self.link(nodes, node, due_us);
        }
    }

    /// Where a node belongs, seen from the elapsed time: the level of the highest differing digit.
    fn place(&self, at_us: u64) -> (usize, usize) {
        let tick = at_us.saturating_sub(self.origin_us).saturating_add((1 << TICK_BITS) - 1) >> TICK_BITS;
        let tick = tick.clamp(self.elapsed, LAST_TICK);
        let differing = (tick ^ self.elapsed) | 1;
        let level = (differing.ilog2() / SLOT_BITS) as usize;
        (level, (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS)
    }

    /// The slot to look at next. A slot of a higher level whose time has begun comes first: its nodes belong lower.
    fn next_slot(&self) -> Option<Slot> {
        let digit = |level: usize| (self.elapsed >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        let begun = (1..LEVELS).rev().find(|&level| self.levels[level].occupied >> digit(level) & 1 == 1);
        if let Some(level) = begun {
            return Some(Slot { level, index: digit(level), start: self.elapsed });
        }
        let level = (0..LEVELS).find(|&level| self.levels[level].occupied != 0)?;
        let ahead = self.levels[level].occupied >> digit(level);
        let index = digit(level) + ahead.trailing_zeros() as usize;
        let shift = SLOT_BITS * level as u32;
        let window = self.elapsed >> shift >> SLOT_BITS << SLOT_BITS << shift;
        Some(Slot { level, index, start: window + ((index as u64) << shift) })
    }
}

/// Where an entry is. Valid from `insert` until the entry is removed or given out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(u32);

struct Entry<T> {
    deadline_us: u64,
    /// On the free list, `next` is the next free entry.
    links: Links,
    /// `None` while the entry is on the free list.
    value: Option<T>,
}

/// The slab of a wheel.
struct Entries<T> {
    chunks: Vec<Box<[Entry<T>]>>,
    free: u32,
}

impl<T> Nodes for Entries<T> {
    fn due_us(&self, node: u32) -> u64 {
        self.entry(node).deadline_us
    }

    fn links_mut(&mut self, node: u32) -> &mut Links {
        &mut self.entry_mut(node).links
    }
}

/// A set of values, each with a deadline.
pub struct Wheel<T> {
    slots: Slots,
    entries: Entries<T>,
}

impl<T> Wheel<T> {
    /// An empty wheel. `origin_us` is the earliest time of its clock, in microseconds.
    pub fn new(origin_us: u64) -> Wheel<T> {
        Wheel { slots: Slots::new(origin_us), entries: Entries { chunks: Vec::new(), free: NIL } }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds `value` with its deadline, in microseconds. `None` (and the value dropped) when 2^31 - 1 entries are stored.
    pub fn insert(&mut self, deadline_us: u64, value: T) -> Option<Handle> {
        let index = self.entries.allocate()?;
        let entry = self.entries.entry_mut(index);
        entry.deadline_us = deadline_us;
        entry.value = Some(value);
        self.slots.link(&mut self.entries, index, deadline_us);
        Some(Handle(index))
    }

    /// The value behind a handle.
    pub fn get(&self, handle: Handle) -> Option<&T> {
        let chunk = self.entries.chunks.get((handle.0 >> CHUNK_BITS) as usize)?;
        chunk.get(handle.0 as usize % CHUNK)?.value.as_ref()
    }

    /// The deadline of an entry, in microseconds.
    pub fn deadline_us(&self, handle: Handle) -> Option<u64> {
        self.get(handle)?;
        Some(self.entries.entry(handle.0).deadline_us)
    }

    /// Takes an entry out.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        self.get(handle)?;
        self.slots.unlink(&mut self.entries, handle.0);
        self.release(handle.0)
    }

    /// Changes a deadline. A later one costs a store: the entry moves when its old time comes.
    pub fn reschedule(&mut self, handle: Handle, deadline_us: u64) {
        if self.get(handle).is_none() {
            return;
        }
        let entry = self.entries.entry_mut(handle.0);
        let earlier = deadline_us < entry.deadline_us;
        entry.deadline_us = deadline_us;
        if earlier {
            self.slots.unlink(&mut self.entries, handle.0);
            self.slots.link(&mut self.entries, handle.0, deadline_us);
        }
    }

    /// A time at or before the earliest deadline, and not far before it: when to look next, in microseconds.
    pub fn next_us(&self) -> Option<u64> {
        self.slots.next_us()
    }

    /// Takes out one entry whose deadline is at or before `now_us`; `None` when there is none or the budget is used up.
    /// `budget` as for [`Slots::pop`].
    pub fn pop(&mut self, now_us: u64, budget: &mut usize) -> Option<T> {
        let index = self.slots.pop(&mut self.entries, now_us, budget)?;
        self.release(index)
    }

    /// Puts an unlinked entry on the free list. The last one gives all memory back.
    fn release(&mut self, index: u32) -> Option<T> {
        let free = self.entries.free;
        let entry = self.entries.entry_mut(index);
        entry.links.next = free;
        let value = entry.value.take();
        self.entries.free = index;
        if self.slots.is_empty() && self.entries.chunks.len() > 1 {
            self.entries = Entries { chunks: Vec::new(), free: NIL };
        }
        value
    }
}

impl<T> Entries<T> {
    fn entry(&self, index: u32) -> &Entry<T> {
        &self.chunks[(index >> CHUNK_BITS) as usize][index as usize % CHUNK]
    }

    fn entry_mut(&mut self, index: u32) -> &mut Entry<T> {
        &mut self.chunks[(index >> CHUNK_BITS) as usize][index as usize % CHUNK]
    }

    fn allocate(&mut self) -> Option<u32> {
        if self.free == NIL {
            let base = (self.chunks.len() << CHUNK_BITS) as u32;
            if base > NODES_MAX - CHUNK as u32 {
                return None;
            }
            let chunk = (1..=CHUNK as u32).map(|i| {
                let next = if i == CHUNK as u32 { NIL } else { base + i };
                Entry { deadline_us: 0, links: Links { prev: NIL, next }, value: None }
            });
            self.chunks.push(chunk.collect());
            self.free = base;
        }
        let index = self.free;
        self.free = self.entry(index).links.next;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_US: u64 = 1 << TICK_BITS;

    fn drain(wheel: &mut Wheel<u32>, now_us: u64) -> Vec<u32> {
        let mut budget = usize::MAX;
        let mut popped: Vec<u32> = std::iter::from_fn(|| wheel.pop(now_us, &mut budget)).collect();
        popped.sort_unstable();
        popped
    }

    #[test]
    fn an_entry_comes_out_at_its_deadline_and_not_before() {
        let mut wheel = Wheel::new(1_000_000);
        wheel.insert(1_000_000 + 7 * TICK_US, 1).unwrap();
        assert_eq!(drain(&mut wheel, 1_000_000 + 7 * TICK_US - 1), []);
        assert_eq!(drain(&mut wheel, 1_000_000 + 7 * TICK_US), [1]);
        assert!(wheel.is_empty());
    }

    #[test]
    fn deadlines_of_every_level_come_out_in_their_time() {
        let mut wheel = Wheel::new(0);
        for level in 0..LEVELS as u32 {
            wheel.insert((3 * TICK_US) << (SLOT_BITS * level), level).unwrap();
        }
        for level in 0..LEVELS as u32 {
            let deadline_us = (3 * TICK_US) << (SLOT_BITS * level);
            assert_eq!(drain(&mut wheel, deadline_us - 1), []);
            assert_eq!(drain(&mut wheel, deadline_us), [level]);
        }
    }

    #[test]
    fn a_removed_entry_never_comes_out() {
        let mut wheel = Wheel::new(0);
        let handles: Vec<Handle> = (0..5).map(|i| wheel.insert(10 * TICK_US, i).unwrap()).collect();
        assert_eq!(wheel.remove(handles[2]), Some(2));
        assert_eq!(wheel.remove(handles[4]), Some(4));
        assert_eq!(wheel.remove(handles[0]), Some(0));
        assert_eq!(wheel.remove(handles[0]), None);
        assert_eq!(drain(&mut wheel, 20 * TICK_US), [1, 3]);
    }

    #[test]
    fn a_rescheduled_entry_obeys_the_new_deadline() {
        let mut wheel = Wheel::new(0);
        let later = wheel.insert(10 * TICK_US, 1).unwrap();
        let earlier = wheel.insert(1_000 * TICK_US, 2).unwrap();
        wheel.reschedule(later, 500 * TICK_US);
        wheel.reschedule(earlier, 5 * TICK_US);
        assert_eq!(drain(&mut wheel, 100 * TICK_US), [2]);
        assert_eq!(drain(&mut wheel, 499 * TICK_US), []);
        assert_eq!(drain(&mut wheel, 500 * TICK_US), [1]);
    }

    #[test]
    fn a_deadline_in_the_past_comes_out_at_once() {
        let mut wheel = Wheel::new(0);
        assert_eq!(drain(&mut wheel, 1_000 * TICK_US), []);
        wheel.insert(3, 1).unwrap();
        assert!(wheel.next_us().unwrap() <= 1_000 * TICK_US);
        assert_eq!(drain(&mut wheel, 1_000 * TICK_US), [1]);
    }

    #[test]
    fn a_deadline_beyond_the_span_waits_at_the_end_of_it() {
        let mut wheel = Wheel::new(0);
        wheel.insert(u64::MAX, 1).unwrap();
        assert_eq!(drain(&mut wheel, (LAST_TICK - 1) * TICK_US), []);
        assert_eq!(wheel.len(), 1);
    }

    #[test]
    fn a_small_budget_finishes_the_work_in_several_calls() {
        let mut wheel = Wheel::new(0);
        for i in 0..1_000 {
            wheel.insert(100_000 * TICK_US, i).unwrap();
        }
        let mut popped = 0;
        let mut calls = 0;
        while !wheel.is_empty() {
            let mut budget = 10;
            while wheel.pop(100_000 * TICK_US, &mut budget).is_some() {
                popped += 1;
            }
            calls += 1;
            assert!(wheel.next_us().is_none_or(|next| next <= 100_000 * TICK_US));
        }
        assert_eq!(popped, 1_000);
        assert!(calls >= 100);
    }

    #[test]
    fn memory_comes_back_when_the_last_entry_leaves() {
        let mut wheel = Wheel::new(0);
        let handles: Vec<Handle> = (0..5_000u32).map(|i| wheel.insert(u64::from(i), i).unwrap()).collect();
        assert!(wheel.entries.chunks.len() >= 5_000 / CHUNK);
        for handle in handles {
            wheel.remove(handle).unwrap();
        }
        assert!(wheel.entries.chunks.is_empty());
    }

    /// Nodes that the test stores: when each is due, and its links.
    struct Own(Vec<(u64, Links)>);

    impl Nodes for Own {
        fn due_us(&self, node: u32) -> u64 {
            self.0[node as usize].0
        }

        fn links_mut(&mut self, node: u32) -> &mut Links {
            &mut self.0[node as usize].1
        }
    }

    #[test]
    fn a_node_whose_time_has_grown_moves_when_its_old_time_comes() {
        let (mut slots, mut nodes) =
            (Slots::new(0), Own(vec![(10 * TICK_US, Links::NONE), (10 * TICK_US, Links::NONE)]));
        for node in [0, 1] {
            slots.link(&mut nodes, node, 10 * TICK_US);
        }
        nodes.0[0].0 = 5_000 * TICK_US;
        let mut budget = usize::MAX;
        assert_eq!(slots.pop(&mut nodes, 4_999 * TICK_US, &mut budget), Some(1));
        assert_eq!(slots.pop(&mut nodes, 4_999 * TICK_US, &mut budget), None);
        assert!(nodes.0[0].1.is_linked() && !nodes.0[1].1.is_linked());
        assert_eq!(slots.pop(&mut nodes, 5_000 * TICK_US, &mut budget), Some(0));
        assert!(slots.is_empty());
    }

    #[test]
    fn a_node_in_no_slot_is_taken_out_of_none() {
        let (mut slots, mut nodes) = (Slots::new(0), Own(vec![(TICK_US, Links::NONE)]));
        slots.unlink(&mut nodes, 0);
        slots.link(&mut nodes, 0, TICK_US);
        slots.unlink(&mut nodes, 0);
        slots.unlink(&mut nodes, 0);
        assert_eq!((slots.len(), slots.next_us()), (0, None));
    }
}
