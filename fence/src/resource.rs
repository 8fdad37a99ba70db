//! The rule of the protected resource: which fence may claim, write and delete.
//!
//! Not the storage: rows, hashes and guards all use these rules. Claim first, then read, then write while the stamp is
//! still yours; a check at the write alone would not protect the read before it.
//! Invariant: for one resource the stored fence never goes down.

use crate::fence::Fence;
use crate::life::ReadIn;
use crate::lock::args::canonical;

/// What a caller wants to do to a resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Stamp the fence before reading.
    Claim,
    /// Change or delete what was read under the claim.
    Update,
    /// Stamp and change at once, for changes that depend on nothing read.
    Write,
}

/// The stored fence of a resource that was never claimed. No stored fence (`None`, null) means the same.
pub const NEVER_CLAIMED: i64 = 0;

/// Which stored fences admit a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Accepts {
    /// Stored fence lower than or equal to the caller's. Equal, so that a retry after a lost reply succeeds.
    AtMost,
    /// Stored fence equal to the caller's.
    Exactly,
}

/// The answer of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The step is allowed.
    Accepted,
    /// A newer fence is stored. Nothing else is called stale.
    Stale,
    /// The stored fence is older than the caller's: claim, read again, then write.
    Unclaimed,
}

/// What is stored at a resource that keeps whose its fence is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Owned<'a> {
    /// The fence; `None` means [`NEVER_CLAIMED`].
    pub fence: Option<i64>,
    /// Its owner, byte for byte. `None`: nobody has said whose it is.
    pub owner: Option<&'a [u8]>,
}

/// Who comes to a resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bearer<'a> {
    /// The fence that it brings.
    pub fence: Fence,
    /// The owner that acquired the lock, byte for byte; `None` does not say.
    pub owner: Option<&'a [u8]>,
}

/// The stored fence has the caller's number and is another's: it was issued twice. A lock server can do so that has lost
/// its state while its clock was behind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DuplicateFence;

impl Owned<'_> {
    /// Whether the stored fence is [`DuplicateFence`] to the caller. One whose owner nobody has said is anybody's.
    pub fn is_of_another(self, caller: Bearer) -> bool {
        self.fence == Some(caller.fence.get() as i64) && self.owner.is_some() && self.owner != caller.owner
    }
}

impl Step {
    /// What this step requires of the stored fence.
    pub const fn accepts(self) -> Accepts {
        match self {
            Step::Claim | Step::Write => Accepts::AtMost,
            Step::Update => Accepts::Exactly,
        }
    }

    /// Judges the caller's fence against the stored one.
    pub fn judge(self, stored: Option<i64>, caller: Fence) -> Verdict {
        let caller = caller.get() as i64; // at most 2^53 - 1
        let stored = stored.unwrap_or(NEVER_CLAIMED);
        if stored > caller {
            return Verdict::Stale;
        }
        match self.accepts() {
            Accepts::Exactly if stored < caller => Verdict::Unclaimed,
            Accepts::AtMost | Accepts::Exactly => Verdict::Accepted,
        }
    }

    /// The same at a resource that keeps the owner of its fence. An accepted claim or write stores the caller's.
    pub fn judge_owned(self, stored: Owned, caller: Bearer) -> Result<Verdict, DuplicateFence> {
        if stored.is_of_another(caller) { Err(DuplicateFence) } else { Ok(self.judge(stored.fence, caller.fence)) }
    }
}

impl Step {
    /// Whether the step, which is accepted, relies on a claim of the caller's: only one that was made in this life of the
    /// server counts then. A newer stamp and a claim rely on nothing.
    pub fn relies_on_claim(self, stored: Option<i64>, caller: Fence) -> bool {
        self != Step::Claim && stored == Some(caller.get() as i64)
    }
}

/// How a guard, which fences a whole transaction, admits a fence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GuardVerdict {
    /// The fence is the stored one: it enters together with all other transactions of this fence.
    Shared,
    /// The fence is newer, or the first that says whose it is: it is stamped once its transaction is alone.
    Alone,
    /// This newer fence is stored.
    Stale(i64),
    /// The caller relies on what it read in another life of the server, which can have lost its stamp and what an older fence
    /// then wrote over: it must read again.
    Outlived,
    /// See [`DuplicateFence`]. Reading again does not help, whatever the life.
    Duplicate,
}

impl GuardVerdict {
    /// Judges the caller against the stored fence and its owner, and the life in which the caller has read.
    pub fn of_owned(stored: Owned, caller: Bearer, read_in: ReadIn) -> GuardVerdict {
        if stored.is_of_another(caller) {
            return GuardVerdict::Duplicate;
        }
        match GuardVerdict::of(stored.fence, caller.fence, read_in) {
            GuardVerdict::Shared if caller.owner.is_some() && stored.owner.is_none() => GuardVerdict::Alone,
            verdict => verdict,
        }
    }

    /// The same where nobody says whose a fence is.
    pub fn of(stored: Option<i64>, caller: Fence, read_in: ReadIn) -> GuardVerdict {
        match Step::Update.judge(stored, caller) {
            Verdict::Stale => GuardVerdict::Stale(stored.unwrap_or(NEVER_CLAIMED)),
            _ if read_in == ReadIn::AnotherLife => GuardVerdict::Outlived,
            Verdict::Accepted => GuardVerdict::Shared,
            Verdict::Unclaimed => GuardVerdict::Alone,
        }
    }
}

/// The verdict on plain SQL that writes a row of a protected table, given the fences declared in its transaction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PlainVerdict {
    /// A declared fence is the stored one.
    Accepted,
    /// No fence is declared.
    NoFence,
    /// The stored fence is newer than all declared ones, of which this is the newest.
    Stale(Fence),
    /// The stored fence is older than this declared one: claim, read again, then write.
    Unclaimed(Fence),
}

/// Judges the declared fences against the stored one: each as an update that follows a claim.
pub fn judge_plain(stored: Option<i64>, declared: impl Iterator<Item = Fence>) -> PlainVerdict {
    let mut answer = PlainVerdict::NoFence;
    for fence in declared {
        answer = match (Step::Update.judge(stored, fence), answer) {
            (Verdict::Accepted, _) => return PlainVerdict::Accepted,
            (Verdict::Unclaimed, PlainVerdict::Unclaimed(other)) => PlainVerdict::Unclaimed(fence.min(other)),
            (Verdict::Unclaimed, _) => PlainVerdict::Unclaimed(fence),
            (Verdict::Stale, PlainVerdict::Unclaimed(other)) => PlainVerdict::Unclaimed(other),
            (Verdict::Stale, PlainVerdict::Stale(other)) => PlainVerdict::Stale(fence.max(other)),
            (Verdict::Stale, _) => PlainVerdict::Stale(fence),
        };
    }
    answer
}

/// What plain SQL does to a row of a protected table, by the fence that the row carries before and after.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PlainWrite {
    /// Changes it.
    Update {
        /// The fence before.
        old: Option<i64>,
        /// The fence after.
        new: Option<i64>,
    },
    /// Deletes it.
    Delete {
        /// The fence before.
        old: Option<i64>,
    },
    /// Makes it.
    Insert {
        /// The fence after.
        new: Option<i64>,
    },
    /// Makes it where no row begins without a claim.
    FencedInsert {
        /// The fence after.
        new: Option<i64>,
    },
}

impl PlainWrite {
    /// Whether it relies on the claim of a row that is there, which must have been made in this life of the server.
    pub fn relies_on_claim(self) -> bool {
        matches!(self, PlainWrite::Update { .. } | PlainWrite::Delete { .. })
    }

    /// Whether it is accepted under the declared fences. It leaves the fence as it is, and a new row begins without a claim
    /// or under a declared fence.
    pub fn is_accepted(self, declared: impl Iterator<Item = Fence>) -> bool {
        match self {
            PlainWrite::Update { old, new } if old != new => false,
            PlainWrite::Insert { new: None | Some(NEVER_CLAIMED) } => true,
            PlainWrite::Update { old: fence, .. }
            | PlainWrite::Delete { old: fence }
            | PlainWrite::Insert { new: fence }
            | PlainWrite::FencedInsert { new: fence } => judge_plain(fence, declared) == PlainVerdict::Accepted,
        }
    }
}

/// Reads the stamp of a resource that keeps it as text: `None` when it is not a canonical integer up to 2^53 - 1.
pub fn read_stamp(text: &[u8]) -> Option<i64> {
    let stamp = canonical(text).filter(|&stamp| stamp <= Fence::MAX)?;
    i64::try_from(stamp).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(step: Step, stored: Option<i64>, caller: u64) -> Verdict {
        step.judge(stored, Fence::new(caller).unwrap())
    }

    #[test]
    fn a_claim_passes_unless_a_newer_fence_is_stored() {
        for step in [Step::Claim, Step::Write] {
            assert_eq!(judge(step, None, 5), Verdict::Accepted);
            assert_eq!(judge(step, Some(0), 5), Verdict::Accepted);
            assert_eq!(judge(step, Some(-7), 5), Verdict::Accepted);
            assert_eq!(judge(step, Some(5), 5), Verdict::Accepted);
            assert_eq!(judge(step, Some(6), 5), Verdict::Stale);
        }
    }

    #[test]
    fn an_update_passes_only_under_its_own_claim() {
        assert_eq!(judge(Step::Update, Some(5), 5), Verdict::Accepted);
        assert_eq!(judge(Step::Update, Some(6), 5), Verdict::Stale);
        assert_eq!(judge(Step::Update, Some(4), 5), Verdict::Unclaimed);
        assert_eq!(judge(Step::Update, None, 5), Verdict::Unclaimed);
    }

    #[test]
    fn what_follows_a_claim_relies_on_it_and_a_newer_stamp_does_not() {
        let relies = |step: Step, stored| step.relies_on_claim(stored, Fence::new(5).unwrap());
        assert!(relies(Step::Update, Some(5)) && relies(Step::Write, Some(5)));
        assert!(!relies(Step::Claim, Some(5)) && !relies(Step::Write, Some(4)) && !relies(Step::Write, None));
        assert!(PlainWrite::Delete { old: Some(5) }.relies_on_claim());
        assert!(!PlainWrite::Insert { new: Some(5) }.relies_on_claim());
    }

    #[test]
    fn a_guard_is_shared_by_one_fence_and_stamped_by_a_newer_one() {
        let enter = |stored, caller| GuardVerdict::of(stored, Fence::new(caller).unwrap(), ReadIn::ThisLife);
        assert_eq!(enter(None, 5), GuardVerdict::Alone);
        assert_eq!(enter(Some(0), 5), GuardVerdict::Alone);
        assert_eq!(enter(Some(4), 5), GuardVerdict::Alone);
        assert_eq!(enter(Some(5), 5), GuardVerdict::Shared);
        assert_eq!(enter(Some(6), 5), GuardVerdict::Stale(6));
    }

    #[test]
    fn a_guard_refuses_who_read_in_another_life_unless_its_fence_is_stale() {
        let enter = |stored, read_in| GuardVerdict::of(stored, Fence::new(5).unwrap(), read_in);
        for stored in [None, Some(4), Some(5)] {
            assert_eq!(enter(stored, ReadIn::AnotherLife), GuardVerdict::Outlived);
            assert_eq!(enter(stored, ReadIn::Unsaid), enter(stored, ReadIn::ThisLife));
        }
        assert_eq!(enter(Some(6), ReadIn::AnotherLife), GuardVerdict::Stale(6));
    }

    #[test]
    fn an_equal_fence_of_another_owner_is_a_duplicate() {
        let stored = |fence, owner| Owned { fence: Some(fence), owner };
        let caller = |owner| Bearer { fence: Fence::new(5).unwrap(), owner };
        let (a, b): (Option<&[u8]>, Option<&[u8]>) = (Some(b"a"), Some(b"b"));
        for step in [Step::Claim, Step::Update, Step::Write] {
            let judge = |stored, owner| step.judge_owned(stored, caller(owner));
            assert_eq!(judge(stored(5, a), b), Err(DuplicateFence));
            assert_eq!(judge(stored(5, a), Some(b"A")), Err(DuplicateFence), "owners are bytes");
            assert_eq!(judge(stored(5, a), None), Err(DuplicateFence), "who does not say is another");
            assert_eq!(judge(stored(5, a), a), Ok(Verdict::Accepted));
            for owner in [None, a] {
                assert_eq!(judge(stored(5, None), owner), Ok(Verdict::Accepted), "nobody has said whose it is");
            }
            // The owner of any other fence does not matter.
            for (fence, owner) in [(4, b), (6, b), (4, None), (6, None), (0, b)] {
                assert_eq!(judge(stored(fence, a), owner), Ok(step.judge(Some(fence), Fence::new(5).unwrap())));
            }
            assert_eq!(judge(Owned { fence: None, owner: a }, b), Ok(step.judge(None, Fence::new(5).unwrap())));
        }
    }

    #[test]
    fn a_guard_refuses_an_equal_fence_of_another_owner_in_any_life() {
        let caller = |owner| Bearer { fence: Fence::new(5).unwrap(), owner };
        let stored = |fence| Owned { fence: Some(fence), owner: Some(b"a") };
        for read_in in [ReadIn::ThisLife, ReadIn::Unsaid, ReadIn::AnotherLife] {
            let enter = |stored, owner| GuardVerdict::of_owned(stored, caller(owner), read_in);
            assert_eq!(enter(stored(5), Some(b"b")), GuardVerdict::Duplicate);
            assert_eq!(enter(stored(5), None), GuardVerdict::Duplicate);
            for fence in [4, 5, 6] {
                let without = GuardVerdict::of(Some(fence), Fence::new(5).unwrap(), read_in);
                assert_eq!(enter(stored(fence), Some(b"a")), without);
                assert_eq!(enter(Owned { owner: None, ..stored(fence) }, None), without);
                let said = if without == GuardVerdict::Shared { GuardVerdict::Alone } else { without };
                assert_eq!(enter(Owned { owner: None, ..stored(fence) }, Some(b"b")), said, "its owner is stamped");
            }
        }
    }

    #[test]
    fn a_plain_write_passes_under_exactly_the_stored_fence() {
        let fence = |fence| Fence::new(fence).unwrap();
        let judge = |stored, in_use: &[u64]| judge_plain(stored, in_use.iter().map(|&number| fence(number)));
        assert_eq!(judge(Some(7), &[]), PlainVerdict::NoFence);
        assert_eq!(judge(None, &[]), PlainVerdict::NoFence);
        assert_eq!(judge(Some(7), &[7]), PlainVerdict::Accepted);
        assert_eq!(judge(Some(7), &[9, 3, 7]), PlainVerdict::Accepted);
        assert_eq!(judge(Some(7), &[3, 5, 4]), PlainVerdict::Stale(fence(5)));
        assert_eq!(judge(Some(7), &[9]), PlainVerdict::Unclaimed(fence(9)));
        assert_eq!(judge(Some(7), &[3, 11, 9, 4]), PlainVerdict::Unclaimed(fence(9)));
        assert_eq!(judge(None, &[9]), PlainVerdict::Unclaimed(fence(9)));
    }

    #[test]
    fn a_plain_write_keeps_the_fence_and_a_new_row_has_none_or_a_declared_one() {
        let is_accepted = |write: PlainWrite| write.is_accepted(Fence::new(7).into_iter());
        assert!(is_accepted(PlainWrite::Update { old: Some(7), new: Some(7) }));
        assert!(is_accepted(PlainWrite::Delete { old: Some(7) }));
        for new in [None, Some(0), Some(7)] {
            assert!(is_accepted(PlainWrite::Insert { new }));
        }
        for (old, new) in [(7, Some(8)), (7, Some(0)), (7, None), (6, Some(7)), (6, Some(6)), (8, Some(8))] {
            assert!(!is_accepted(PlainWrite::Update { old: Some(old), new }), "{old} to {new:?}");
        }
        assert!(!is_accepted(PlainWrite::Delete { old: Some(8) }) && !is_accepted(PlainWrite::Delete { old: None }));
        for new in [6, 8, -7] {
            assert!(!is_accepted(PlainWrite::Insert { new: Some(new) }));
        }
        for new in [None, Some(0), Some(6), Some(8), Some(-7)] {
            assert!(!is_accepted(PlainWrite::FencedInsert { new }));
        }
        assert!(is_accepted(PlainWrite::FencedInsert { new: Some(7) }));
        assert!(!PlainWrite::FencedInsert { new: Some(7) }.relies_on_claim());
    }

    #[test]
    fn a_stamp_in_another_form_is_not_a_stamp() {
        assert_eq!(read_stamp(b"0"), Some(0));
        assert_eq!(read_stamp(b"9007199254740991"), Some(9_007_199_254_740_991));
        for text in ["", "9007199254740992", "-1", "1.0", "1e3", "007", " 7"] {
            assert_eq!(read_stamp(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn the_largest_numbers_compare_exactly() {
        let max = Fence::MAX as i64;
        assert_eq!(judge(Step::Claim, Some(max), Fence::MAX - 1), Verdict::Stale);
        assert_eq!(judge(Step::Update, Some(i64::MAX), Fence::MAX), Verdict::Stale);
    }
}
