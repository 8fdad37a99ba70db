//! How the planner is made to search by an index, and many rows one by one.

use pgrx::pg_sys;
use std::cell::Cell;

/// Lets the planner choose an index where there is one. A plan is kept, and what it was made for grows: a scan of a
/// table with one row, or of one that a row-security policy looks into, would be kept for a million. Many rows are
/// searched one by one, so that they are changed in the order in which they are given. Ends with an error too.
#[derive(Default)]
pub(crate) struct ByIndex {
    before: Cell<Option<[bool; SETTINGS]>>,
}

/// The settings of joins with which many rows are searched one by one.
const ONE_BY_ONE: [bool; 5] = [true, false, false, false, false];
/// How many settings of the planner are set.
const SETTINGS: usize = 8;

impl ByIndex {
    pub(crate) fn begin(&self, is_of_many: bool) {
        // SAFETY: a backend has one thread.
        let before = unsafe {
            [
                pg_sys::enable_seqscan,
                pg_sys::enable_bitmapscan,
                pg_sys::enable_indexscan,
                pg_sys::enable_nestloop,
                pg_sys::enable_hashjoin,
                pg_sys::enable_mergejoin,
                pg_sys::enable_material,
                pg_sys::enable_memoize,
            ]
        };
        self.before.set(Some(before));
        let [_, _, _, joins @ ..] = before;
        let [nested, hash, merge, material, memoize] = if is_of_many { ONE_BY_ONE } else { joins };
        ByIndex::set([false, false, true, nested, hash, merge, material, memoize]);
    }

    pub(crate) fn end(&self) {
        if let Some(before) = self.before.take() {
            ByIndex::set(before);
        }
    }

    fn set([sequential, bitmap, index, nested, hash, merge, material, memoize]: [bool; SETTINGS]) {
        // SAFETY: a backend has one thread. The settings themselves keep their values.
        unsafe {
            pg_sys::enable_seqscan = sequential;
            pg_sys::enable_bitmapscan = bitmap;
            pg_sys::enable_indexscan = index;
            pg_sys::enable_nestloop = nested;
            pg_sys::enable_hashjoin = hash;
            pg_sys::enable_mergejoin = merge;
            pg_sys::enable_material = material;
            pg_sys::enable_memoize = memoize;
        }
    }
}

impl Drop for ByIndex {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a plan takes the rows of `given()` one after the other, and searches each by an index. A read may have any plan.
///
/// # Safety
///
/// The statement is a planned one.
pub(crate) unsafe fn keeps_order(statement: *mut pg_sys::PlannedStmt) -> bool {
    use pg_sys::NodeTag::{T_FunctionScan, T_IndexScan, T_ModifyTable, T_NestLoop};
    // SAFETY: a plan is a tree of nodes, null where there is none.
    unsafe {
        let top = (*statement).planTree;
        if (*top).type_ != T_ModifyTable {
            return true;
        }
        let is = |plan: *mut pg_sys::Plan, tag| plan.as_ref().is_some_and(|plan| plan.type_ == tag);
        let join = (*top).lefttree;
        is(join, T_NestLoop) && is((*join).lefttree, T_FunctionScan) && is((*join).righttree, T_IndexScan)
    }
}
