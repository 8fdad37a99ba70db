//! Random sequences on one key whose row comes and goes, with its deletions remembered: against a plain account of the
//! newest fence that the key has had.

use fence::Fence;
use fence::deletion::{InsertVerdict, judge_insert, remembered_after};
use fence::resource::{Step, Verdict};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A new row with this fence, 0 for none, by a transaction that has declared the second.
    Insert {
        new: u64,
        declared: u64,
    },
    Claim(u64),
    Delete(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..9u64, 1..9u64).prop_map(|(new, declared)| Op::Insert { new, declared }),
        (1..9u64).prop_map(Op::Claim),
        (1..9u64).prop_map(Op::Delete),
    ]
}

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

proptest! {
    #[test]
    fn no_fence_brings_back_what_a_newer_one_has_deleted(ops in prop::collection::vec(op(), 0..60)) {
        // The stored fence of the row, the fence that is remembered, and the newest that has held the key.
        let (mut row, mut remembered, mut newest) = (None, None, 0);
        for op in ops {
            match op {
                Op::Insert { new, declared } if row.is_none() => {
                    let stored = i64::try_from(new).unwrap();
                    match judge_insert(remembered, Some(stored), [fence(declared)].into_iter()) {
                        InsertVerdict::Accepted => {
                            prop_assert!(new >= newest || remembered.is_none());
                            (row, newest) = (Some(stored), newest.max(new));
                        }
                        InsertVerdict::Stale(told) => {
                            prop_assert!(told.get() == new.max(declared) && told.get() < newest);
                        }
                        InsertVerdict::Unstamped => prop_assert!(new < newest && declared >= newest),
                    }
                }
                Op::Claim(number) if row.is_some() && Step::Claim.judge(row, fence(number)) == Verdict::Accepted => {
                    (row, newest) = (i64::try_from(number).ok(), newest.max(number));
                }
                Op::Delete(number) if row.is_some() && Step::Update.judge(row, fence(number)) == Verdict::Accepted => {
                    remembered = remembered_after(remembered, row);
                    row = None;
                }
                _ => {}
            }
            // What the key keeps is what it has seen: nothing older passes.
            let kept = row.max(remembered).unwrap_or(0);
            prop_assert_eq!(u64::try_from(kept).unwrap(), newest);
        }
    }
}
