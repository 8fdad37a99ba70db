//! The deadline index: a hierarchical timing wheel.
//!
//! Not a timer and not a store: the caller keeps the nodes, and asks which of them are due. Adding, removing and
//! postponing a node costs the same with ten nodes as with a million.
//! Invariant: a node is never returned before its deadline. From one tick after the deadline on, the first call with
//! budget left returns it.
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

const NIL: u32 = u32::MAX;
/// The largest number of a node: the next higher bit marks a slot.
pub const NODES_MAX: u32 = i32::MAX as u32;
/// In `Links::prev`: the node is the first of its slot, and the other bits are the number of the slot.
const FIRST: u32 = !NODES_MAX;

/// The neighbors of a node in its slot. Stored with the node; only the wheel reads it.
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

/// The nodes of a wheel, as the caller stores them. Their numbers are at most [`NODES_MAX`].
pub trait Nodes {
    /// The deadline of the node, in microseconds. It may grow at any time; unlink the node before it falls.
    fn due_us(&self, node: u32) -> u64;

    /// The links of the node: [`Links::NONE`] at first.
    fn links_mut(&mut self, node: u32) -> &mut Links;
}

#[derive(Clone, Copy)]
struct Level {
    occupied: u64,
    first: [u32; SLOTS],
}

/// A slot that holds nodes, and the tick at which its time begins.
struct Occupied {
    level: usize,
    index: usize,
    start: u64,
}

/// A wheel. Pass the same nodes to every call.
pub struct Slots {
    levels: Box<[Level; LEVELS]>,
    len: usize,
    origin_us: u64,
    elapsed: u64,
}

impl Slots {
    /// An empty wheel. `origin_us` is the earliest time on the clock of the deadlines, in microseconds.
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

    /// How many bytes the wheel has allocated.
    pub fn allocated(&self) -> usize {
        size_of::<[Level; LEVELS]>()
    }

    /// Adds a node that is in no slot, to be checked at `at_us`: its deadline or later. A later check may come early, though
    /// not before the deadline.
    pub fn link(&mut self, nodes: &mut impl Nodes, node: u32, at_us: u64) {
        let (level, slot) = self.place(at_us);
        let next = self.levels[level].first[slot];
        if next != NIL {
            nodes.links_mut(next).prev = node;
        }
        *nodes.links_mut(node) = Links { prev: FIRST + (level * SLOTS + slot) as u32, next };
        self.levels[level].first[slot] = node;
        self.levels[level].occupied |= 1 << slot;
        self.len += 1;
    }

    /// Removes a node from its slot, if it is in one.
    pub fn unlink(&mut self, nodes: &mut impl Nodes, node: u32) {
        let Links { prev, next } = std::mem::replace(nodes.links_mut(node), Links::NONE);
        if prev == NIL {
            return;
        }
        self.len -= 1;
        if next != NIL {
            nodes.links_mut(next).prev = prev;
        }
        let Some(slot) = prev.checked_sub(FIRST).map(|slot| slot as usize) else {
            nodes.links_mut(prev).next = next;
            return;
        };
        let level = &mut self.levels[slot / SLOTS];
        level.first[slot % SLOTS] = next;
        if next == NIL {
            level.occupied &= !(1 << (slot % SLOTS));
        }
    }

    /// When to call `pop` next, in microseconds: at or shortly before the earliest deadline.
    pub fn next_us(&self) -> Option<u64> {
        let slot = self.next_slot()?;
        Some(self.origin_us.saturating_add(slot.start << TICK_BITS))
    }

    /// Removes one node that is due at or before `now_us`; `None` when there is none or the budget is used up.
    ///
    /// `budget` counts the nodes handled, whether returned or only moved. Once it is used up, `next_us` is not in the future.
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

    /// The level and slot of a node. The level is that of the highest digit in which its tick differs from the elapsed one.
    fn place(&self, at_us: u64) -> (usize, usize) {
        let tick = at_us.saturating_sub(self.origin_us).saturating_add((1 << TICK_BITS) - 1) >> TICK_BITS;
        let tick = tick.clamp(self.elapsed, LAST_TICK);
        let level = ((tick ^ self.elapsed).checked_ilog2().unwrap_or(0) / SLOT_BITS) as usize;
        (level, (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS)
    }

    /// The slot to empty next. A slot of a higher level whose time has begun comes first: its nodes belong on a lower one.
    fn next_slot(&self) -> Option<Occupied> {
        let digit = |level: usize| (self.elapsed >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        let begun = (1..LEVELS).rev().find(|&level| self.levels[level].occupied >> digit(level) & 1 == 1);
        if let Some(level) = begun {
            return Some(Occupied { level, index: digit(level), start: self.elapsed });
        }
        let level = (0..LEVELS).find(|&level| self.levels[level].occupied != 0)?;
        let ahead = self.levels[level].occupied >> digit(level);
        let index = digit(level) + ahead.trailing_zeros() as usize;
        let shift = SLOT_BITS * level as u32;
        let window = self.elapsed >> shift >> SLOT_BITS << SLOT_BITS << shift;
        Some(Occupied { level, index, start: window + ((index as u64) << shift) })
    }
}

#[cfg(test)]
mod tests;
