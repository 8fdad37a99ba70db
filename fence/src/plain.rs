//! The verdict on plain SQL that writes a row of a protected table which keeps the owner of its fence.
//!
//! The fences are judged by `resource`; here those are left out that have the number of the row's and another owner. Invariant:
//! what passes here passes there.

use crate::resource::{Bearer, DuplicateFence, Owned, PlainVerdict, PlainWrite, judge_plain};

/// Whose the fence of a row is before and after a write; `None`: nobody has said, or there is no such row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owners<'a> {
    /// Before.
    pub old: Option<&'a [u8]>,
    /// After.
    pub new: Option<&'a [u8]>,
}

/// Judges the declared fences against the stored one, each with its owner.
pub fn judge<'a>(
    stored: Owned,
    mut declared: impl Iterator<Item = Bearer<'a>> + Clone,
) -> Result<PlainVerdict, DuplicateFence> {
    match judge_plain(stored.fence, own(stored, declared.clone())) {
        PlainVerdict::Accepted => Ok(PlainVerdict::Accepted),
        _ if declared.any(|bearer| stored.is_of_another(bearer)) => Err(DuplicateFence),
        verdict => Ok(verdict),
    }
}

/// Whether a write is accepted under the declared fences. It leaves the owner as it is, and a new row has no other than that
/// of the fence which it brings.
pub fn is_accepted<'a>(write: PlainWrite, owners: Owners, declared: impl Iterator<Item = Bearer<'a>>) -> bool {
    let (fence, owner) = match write {
        PlainWrite::Update { .. } if owners.old != owners.new => return false,
        PlainWrite::Update { old, .. } | PlainWrite::Delete { old } => (old, owners.old),
        PlainWrite::Insert { new } | PlainWrite::FencedInsert { new } => (new, owners.new),
    };
    write.is_accepted(own(Owned { fence, owner }, declared))
}

/// The declared fences without those that are another's.
fn own<'a>(stored: Owned, declared: impl Iterator<Item = Bearer<'a>>) -> impl Iterator<Item = crate::Fence> {
    declared.filter(move |bearer| !stored.is_of_another(*bearer)).map(|bearer| bearer.fence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fence;

    const A: Option<&[u8]> = Some(b"a");
    const B: Option<&[u8]> = Some(b"b");

    fn bearer(fence: u64, owner: Option<&[u8]>) -> Bearer<'_> {
        Bearer { fence: Fence::new(fence).unwrap(), owner }
    }

    #[test]
    fn a_declared_fence_counts_for_its_own_owner() {
        let stored = Owned { fence: Some(7), owner: A };
        let judge = |declared: &[Bearer]| judge(stored, declared.iter().copied());
        assert_eq!(judge(&[bearer(7, A)]), Ok(PlainVerdict::Accepted));
        assert_eq!(judge(&[bearer(7, B), bearer(7, A)]), Ok(PlainVerdict::Accepted));
        for declared in [bearer(7, B), bearer(7, None)] {
            assert_eq!(judge(&[declared]), Err(DuplicateFence));
            assert_eq!(judge(&[bearer(9, A), declared, bearer(3, A)]), Err(DuplicateFence));
        }
        assert_eq!(judge(&[]), Ok(PlainVerdict::NoFence));
        assert_eq!(judge(&[bearer(6, A)]), Ok(PlainVerdict::Stale(Fence::new(6).unwrap())));
        assert_eq!(judge(&[bearer(8, B)]), Ok(PlainVerdict::Unclaimed(Fence::new(8).unwrap())));
    }

    #[test]
    fn a_plain_write_leaves_the_owner_and_a_new_row_has_its_own() {
        let passes = |write, old, new| is_accepted(write, Owners { old, new }, [bearer(7, A)].into_iter());
        let update = PlainWrite::Update { old: Some(7), new: Some(7) };
        assert!(passes(update, A, A) && passes(update, None, None));
        for (old, new) in [(A, None), (A, B), (None, A), (B, B), (B, A)] {
            assert!(!passes(update, old, new), "{old:?} to {new:?}");
        }
        assert!(!passes(PlainWrite::Update { old: Some(6), new: Some(6) }, A, A));
        let delete = PlainWrite::Delete { old: Some(7) };
        assert!(passes(delete, A, None) && passes(delete, None, None) && !passes(delete, B, None));
        for write in [PlainWrite::Insert { new: Some(7) }, PlainWrite::FencedInsert { new: Some(7) }] {
            assert!(passes(write, None, A) && passes(write, None, None) && !passes(write, None, B));
        }
        assert!(passes(PlainWrite::Insert { new: Some(0) }, None, B), "the owner of no fence");
        assert!(!passes(PlainWrite::FencedInsert { new: Some(0) }, None, A));
    }
}
