//! The last holds that ended against the will of their holders: by their time, or taken over by somebody else. They tell a
//! holder that outlived its lease from a caller that never held the lock or gave it up.
//!
//! Not a rule of leases: it decides what is counted, and nothing else. It forgets the oldest.
//! Invariant: it keeps the last [`KEPT`] holds, and finds each at about the same cost.

use crate::fence::Fence;
use crate::lock::lease::Lost;
use crate::lock::queue::LockName;

/// How many holds are kept: those of a minute, if some 270 a second expire. They take 24 bytes each.
pub const KEPT: usize = 16_384;
/// Chains of holds: each has eight holds or so once the ring is full.
const CHAINS: usize = 2_048;

const NONE: u16 = u16::MAX;
const _: () = assert!(KEPT.is_power_of_two() && KEPT <= NONE as usize);

/// A ring of holds.
#[derive(Default)]
pub struct LostHolds {
    ring: Vec<Entry>,
    /// Where the next one goes once the ring is full.
    oldest: usize,
    /// The newest of the holds whose hashes end alike.
    newest: Vec<u16>,
}

#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    fence: Fence,
    /// The one before whose hash ends alike.
    before: u16,
}

impl LostHolds {
    /// Takes note of a hold that ended so.
    pub fn note(&mut self, lock: LockName, owner: &[u8], fence: Fence) {
        if self.newest.is_empty() {
            self.newest = vec![NONE; CHAINS];
        }
        let at = if self.ring.len() < KEPT { self.ring.len() } else { self.oldest };
        if let Some(&oldest) = self.ring.get(at) {
            self.unlink(at, oldest);
            self.oldest = (at + 1) % KEPT;
        }
        let hash = hash(lock, owner);
        let entry = Entry { hash, fence, before: std::mem::replace(&mut self.newest[end_of(hash)], at as u16) };
        if at == self.ring.len() { self.ring.push(entry) } else { self.ring[at] = entry }
    }

    /// Whether a caller that does not hold the lock is late: it held it once and lost it. `fence` is that of the call, if it
    /// named one.
    pub fn is_late(&self, lost: Lost, lock: LockName, owner: &[u8], fence: Option<Fence>) -> bool {
        lost == Lost::Expired || self.contains(lock, owner, fence)
    }

    fn contains(&self, lock: LockName, owner: &[u8], fence: Option<Fence>) -> bool {
        if self.newest.is_empty() {
            return false;
        }
        let hash = hash(lock, owner);
        let mut at = self.newest[end_of(hash)];
        while let Some(entry) = self.ring.get(usize::from(at)) {
            if entry.hash == hash && fence.is_none_or(|fence| fence == entry.fence) {
                return true;
            }
            at = entry.before;
        }
        false
    }

    /// Takes the oldest hold out: nothing comes before it.
    fn unlink(&mut self, at: usize, oldest: Entry) {
        let newest = &mut self.newest[end_of(oldest.hash)];
        if usize::from(*newest) == at {
            *newest = NONE;
            return;
        }
        let mut later = *newest;
        while let Some(entry) = self.ring.get_mut(usize::from(later)) {
            if usize::from(entry.before) == at {
                entry.before = NONE;
                return;
            }
            later = entry.before;
        }
    }
}

fn end_of(hash: u64) -> usize {
    hash as usize % CHAINS
}

/// Tells holds apart. It need not withstand an attack: a collision miscounts a call.
fn hash(lock: LockName, owner: &[u8]) -> u64 {
    /// 2^64 divided by the golden ratio (Knuth, "The Art of Computer Programming", volume 3, section 6.4).
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let mut hash = lock.db as u64;
    for part in [lock.name, owner] {
        // Or NUL bytes before its last bytes would vanish.
        hash = mix(hash, part.len() as u64);
        let (words, rest) = part.as_chunks::<8>();
        for &word in words {
            hash = mix(hash, u64::from_le_bytes(word));
        }
        hash = mix(hash, rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    }
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: LockName = LockName { db: 0, name: b"k" };

    fn fence(number: u64) -> Fence {
        Fence::new(number).unwrap()
    }

    #[test]
    fn only_who_lost_the_lock_is_late() {
        let mut lost = LostHolds::default();
        assert!(!lost.is_late(Lost::Gone, K, b"a", None));
        assert!(lost.is_late(Lost::Expired, K, b"a", None));
        lost.note(K, b"a", fence(7));
        assert!(lost.is_late(Lost::Gone, K, b"a", None) && lost.is_late(Lost::Another, K, b"a", Some(fence(7))));
        assert!(!lost.is_late(Lost::Another, K, b"a", Some(fence(8))));
        assert!(!lost.is_late(Lost::Another, K, b"b", None) && !lost.is_late(Lost::Another, K, b"\0a", None));
        assert!(!lost.is_late(Lost::Gone, LockName { db: 1, ..K }, b"a", None));
        assert!(!lost.is_late(Lost::Gone, LockName { name: b"ka", ..K }, b"", None));
    }

    #[test]
    fn the_oldest_are_forgotten_and_the_last_are_all_found() {
        let mut lost = LostHolds::default();
        let name = |number: u64| number.to_le_bytes();
        let count = 3 * KEPT as u64;
        for number in 1..=count {
            // Every third is of one lock and owner.
            let name = name(if number % 3 == 0 { 0 } else { number });
            lost.note(LockName { db: 0, name: &name }, b"owner", fence(number));
        }
        for number in 1..=count {
            let name = name(if number % 3 == 0 { 0 } else { number });
            let found = lost.contains(LockName { db: 0, name: &name }, b"owner", Some(fence(number)));
            assert_eq!(found, number > count - KEPT as u64, "{number}");
        }
        assert_eq!(lost.ring.len(), KEPT);
    }
}
