//! The last holds that their holders lost: they expired, or somebody else took the lock over. By them a late call is
//! distinguished from that of a caller that never held the lock, or released it.
//!
//! Not a rule of leases: it decides what is counted, and nothing else.
//! Invariant: the last [`KEPT`] holds are kept, and each is found at about the same cost.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::fence::Fence;
use crate::lock::lease::Lost;
use crate::lock::queue::LockName;

/// How many holds are kept, at 24 bytes each: those of a minute, if 270 expire a second.
pub const KEPT: usize = 16_384;
/// Chains of holds: each has about eight once the ring is full.
const CHAINS: usize = 2_048;

const _: () = assert!(KEPT.is_power_of_two());

/// A ring of holds. Each has a number, one above that of the hold before. Old ones leave their chain unseen: a chain ends
/// before the first number that is too old.
#[derive(Default)]
pub struct LostHolds {
    ring: Vec<Entry>,
    /// The number of the last hold; 0 before the first.
    last: u64,
    /// The number of the newest hold of each chain; 0 where there is none. The hashes of a chain have the same last bits.
    newest: Vec<u64>,
}

#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    fence: Fence,
    /// How many numbers before it the next of its chain is; 0 where there is none.
    back: u32,
    /// Its holder has released it, late.
    released: bool,
}

const _: () = assert!(size_of::<Entry>() == 24 && KEPT <= u32::MAX as usize);

impl LostHolds {
    /// Notes a hold that was lost.
    pub fn note(&mut self, lock: LockName, owner: &[u8], fence: Fence) {
        if self.newest.is_empty() {
            self.newest = vec![0; CHAINS];
        }
        self.last += 1;
        let hash = hash(lock, owner);
        let before = std::mem::replace(&mut self.newest[chain_of(hash)], self.last);
        let back = if self.is_kept(before) { (self.last - before) as u32 } else { 0 };
        let entry = Entry { hash, fence, back, released: false };
        match self.ring.get_mut(cell_of(self.last)) {
            Some(oldest) => *oldest = entry,
            None => self.ring.push(entry),
        }
    }

    /// Whether an extension by a caller that does not hold the lock is late: it held the lock, lost it, and has not released
    /// it since. `fence` is that of the call, if it names one.
    pub fn is_late(&self, lost: Lost, lock: LockName, owner: &[u8], fence: Option<Fence>) -> bool {
        match self.find(lock, owner, lost.fence_or(fence)) {
            Some(cell) => !self.ring[cell].released,
            None => matches!(lost, Lost::Expired(_)),
        }
    }

    /// The same for a release, which is late once for each hold.
    pub fn release_late(&mut self, lost: Lost, lock: LockName, owner: &[u8], fence: Option<Fence>) -> bool {
        match self.find(lock, owner, lost.fence_or(fence)) {
            Some(cell) => !std::mem::replace(&mut self.ring[cell].released, true),
            None => matches!(lost, Lost::Expired(_)),
        }
    }

    /// Where the newest hold of a caller is that is kept.
    fn find(&self, lock: LockName, owner: &[u8], fence: Option<Fence>) -> Option<usize> {
        let hash = hash(lock, owner);
        let mut number = *self.newest.get(chain_of(hash))?;
        while self.is_kept(number) {
            let cell = cell_of(number);
            let entry = self.ring.get(cell)?;
            if entry.hash == hash && fence.is_none_or(|fence| fence == entry.fence) {
                return Some(cell);
            }
            number = entry.before(number)?;
        }
        None
    }

    fn is_kept(&self, number: u64) -> bool {
        number != 0 && self.last - number < KEPT as u64
    }
}

impl Lost {
    /// The fence of the hold that a call is about. That of an expired hold that is still stored may not have been noted yet,
    /// and then an older hold of the same caller must not be taken for it.
    fn fence_or(self, named: Option<Fence>) -> Option<Fence> {
        if let Lost::Expired(fence) = self { Some(fence) } else { named }
    }
}

impl Entry {
    /// The number of the hold before this one in its chain.
    fn before(&self, number: u64) -> Option<u64> {
        (self.back != 0).then(|| number - u64::from(self.back))
    }
}

/// Where in the ring a hold is; the first has the number 1.
fn cell_of(number: u64) -> usize {
    number.wrapping_sub(1) as usize % KEPT
}

fn chain_of(hash: u64) -> usize {
    hash as usize % CHAINS
}

/// A hash of a lock and an owner, with no secret: a collision miscounts one call.
fn hash(lock: LockName, owner: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (lock, owner).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: LockName = LockName { db: 0, name: b"k" };

    fn fence(number: u64) -> Fence {
        Fence::new(number).unwrap()
    }

    #[test]
    fn only_a_holder_that_lost_the_lock_is_late() {
        let mut lost = LostHolds::default();
        assert!(!lost.is_late(Lost::Gone, K, b"a", None));
        assert!(lost.is_late(Lost::Expired(fence(7)), K, b"a", None));
        lost.note(K, b"a", fence(7));
        assert!(lost.is_late(Lost::Gone, K, b"a", None) && lost.is_late(Lost::Another, K, b"a", Some(fence(7))));
        assert!(!lost.is_late(Lost::Another, K, b"a", Some(fence(8))));
        assert!(!lost.is_late(Lost::Another, K, b"b", None) && !lost.is_late(Lost::Another, K, b"\0a", None));
        assert!(!lost.is_late(Lost::Gone, LockName { db: 1, ..K }, b"a", None));
        assert!(!lost.is_late(Lost::Gone, LockName { name: b"ka", ..K }, b"", None));
    }

    #[test]
    fn an_expired_hold_that_is_not_noted_yet_is_not_taken_for_an_older_one() {
        let mut lost = LostHolds::default();
        lost.note(K, b"a", fence(7));
        assert!(lost.release_late(Lost::Gone, K, b"a", None));
        let expired = Lost::Expired(fence(8));
        assert!(lost.is_late(expired, K, b"a", None) && lost.release_late(expired, K, b"a", None));
    }

    #[test]
    fn a_hold_is_released_late_once() {
        const EXPIRED: Lost = Lost::Expired(Fence::new(7).unwrap());
        let mut lost = LostHolds::default();
        lost.note(K, b"a", fence(7));
        assert!(lost.is_late(EXPIRED, K, b"a", None) && lost.release_late(EXPIRED, K, b"a", None));
        assert!(!lost.is_late(EXPIRED, K, b"a", None) && !lost.release_late(EXPIRED, K, b"a", None));
        assert!(
            !lost.release_late(Lost::Gone, K, b"a", None) && !lost.release_late(Lost::Gone, K, b"a", Some(fence(7)))
        );
        lost.note(K, b"a", fence(8));
        assert!(
            !lost.release_late(Lost::Gone, K, b"a", Some(fence(7)))
                && lost.release_late(Lost::Gone, K, b"a", Some(fence(8)))
        );
        assert!(lost.release_late(EXPIRED, K, b"b", None) && !lost.release_late(Lost::Gone, K, b"b", None));
    }

    #[test]
    fn all_are_found_while_there_is_room() {
        let mut lost = LostHolds::default();
        let owners: Vec<[u8; 1]> = (1..100).map(|owner| [owner]).collect();
        for owner in &owners {
            lost.note(K, owner, fence(owner[0].into()));
        }
        assert!(owners.iter().all(|owner| lost.is_late(Lost::Gone, K, owner, Some(fence(owner[0].into())))));
        assert_eq!(lost.ring.len(), 99);
    }

    #[test]
    fn the_chains_are_short() {
        let mut lost = LostHolds::default();
        for number in 1..=KEPT as u64 {
            lost.note(LockName { db: 0, name: &number.to_le_bytes() }, b"owner", fence(number));
        }
        let next = |&number: &u64| lost.ring[cell_of(number)].before(number).filter(|&before| lost.is_kept(before));
        let length = |&newest: &u64| std::iter::successors(Some(newest), next).count();
        let longest = lost.newest.iter().filter(|&&newest| newest != 0).map(length).max();
        assert!(longest.is_some_and(|longest| longest <= 4 * KEPT / CHAINS), "{longest:?}");
    }

    #[test]
    fn a_chain_ends_where_its_oldest_was_overwritten() {
        let mut lost = LostHolds::default();
        assert_ne!(chain_of(hash(K, b"a")), chain_of(hash(K, b"b")));
        let kept = KEPT as u64;
        lost.note(K, b"a", fence(1));
        (2..=kept).for_each(|number| lost.note(K, b"b", fence(number)));
        assert!(lost.is_late(Lost::Gone, K, b"a", Some(fence(1))));
        lost.note(K, b"a", fence(kept + 1));
        assert!(!lost.is_late(Lost::Gone, K, b"a", Some(fence(1))));
        assert!(lost.is_late(Lost::Gone, K, b"a", None));
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
            let found = lost.is_late(Lost::Gone, LockName { db: 0, name: &name }, b"owner", Some(fence(number)));
            assert_eq!(found, number > count - KEPT as u64, "{number}");
        }
        assert_eq!(lost.ring.len(), KEPT);
    }
}
