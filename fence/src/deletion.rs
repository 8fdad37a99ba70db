//! The rule of remembered deletions: which new row may take the key of one that was deleted.
//!
//! A stale holder whose update finds no row may insert it again. So the fence of a deletion is remembered with the key, as
//! long as the row would have kept it. Not where it is remembered.
//! Invariant: the newest fence of a key, in a row or remembered, never goes down.

use crate::fence::Fence;
use crate::resource::NEVER_CLAIMED;

/// The answer to a new row whose key may have been deleted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InsertVerdict {
    /// The key was not deleted, or by no newer fence than that of the row.
    Accepted,
    /// A newer fence has deleted it than all that the insert knows, of which this is the newest.
    Stale(Fence),
    /// The row must carry a fence that is not older. It carries none, or an older one than its transaction has declared.
    Unstamped,
}

/// Judges a new row with this fence against the fence that a deletion of its key is remembered with. No fence and
/// [`NEVER_CLAIMED`] are older than each that is remembered. An equal fence is accepted: who has deleted a row may insert it
/// again.
pub fn judge_insert(remembered: Option<i64>, new: Option<i64>, declared: impl Iterator<Item = Fence>) -> InsertVerdict {
    let Some(remembered) = remembered else { return InsertVerdict::Accepted };
    let new = new.unwrap_or(NEVER_CLAIMED);
    if new >= remembered {
        return InsertVerdict::Accepted;
    }
    let carried = u64::try_from(new).ok().and_then(Fence::new);
    match declared.chain(carried).max() {
        Some(newest) if (newest.get() as i64) < remembered => InsertVerdict::Stale(newest),
        _ => InsertVerdict::Unstamped,
    }
}

/// The fence that a deletion is remembered with: that of the row, or the newer one of another deletion of the key before.
/// `None`: nothing is remembered of a row that was never claimed.
pub fn remembered_after(remembered: Option<i64>, deleted: Option<i64>) -> Option<i64> {
    remembered.max(deleted.filter(|&fence| fence > NEVER_CLAIMED))
}

#[cfg(test)]
mod tests {
    use super::{InsertVerdict, judge_insert, remembered_after};
    use crate::fence::Fence;

    fn judge(remembered: Option<i64>, new: Option<i64>, declared: &[u64]) -> InsertVerdict {
        judge_insert(remembered, new, declared.iter().map(|&fence| Fence::new(fence).unwrap()))
    }

    fn stale(fence: u64) -> InsertVerdict {
        InsertVerdict::Stale(Fence::new(fence).unwrap())
    }

    #[test]
    fn a_key_that_was_not_deleted_takes_any_row() {
        for new in [None, Some(0), Some(1), Some(i64::MAX)] {
            assert_eq!(judge(None, new, &[]), InsertVerdict::Accepted);
        }
    }

    #[test]
    fn a_row_passes_with_the_fence_of_the_deletion_or_a_newer_one() {
        assert_eq!(judge(Some(42), Some(42), &[]), InsertVerdict::Accepted);
        assert_eq!(judge(Some(42), Some(43), &[41]), InsertVerdict::Accepted);
        assert_eq!(judge(Some(42), Some(41), &[]), stale(41));
        assert_eq!(judge(Some(42), Some(41), &[41]), stale(41));
    }

    #[test]
    fn no_fence_is_older_than_each_that_is_remembered() {
        for new in [None, Some(0), Some(-7)] {
            assert_eq!(judge(Some(1), new, &[]), InsertVerdict::Unstamped);
            assert_eq!(judge(Some(42), new, &[40, 41, 39]), stale(41));
        }
    }

    #[test]
    fn a_newer_fence_that_is_declared_must_be_carried() {
        for declared in [&[42][..], &[43], &[41, 43]] {
            assert_eq!(judge(Some(42), Some(0), declared), InsertVerdict::Unstamped);
            assert_eq!(judge(Some(42), Some(41), declared), InsertVerdict::Unstamped);
        }
    }

    #[test]
    fn the_newest_deletion_is_remembered_and_none_of_what_was_never_claimed() {
        assert_eq!(remembered_after(None, Some(5)), Some(5));
        assert_eq!(remembered_after(Some(4), Some(5)), Some(5));
        assert_eq!(remembered_after(Some(6), Some(5)), Some(6), "the owner has set the fence back");
        for deleted in [None, Some(0), Some(-7)] {
            assert_eq!(remembered_after(None, deleted), None);
            assert_eq!(remembered_after(Some(4), deleted), Some(4));
        }
    }
}
