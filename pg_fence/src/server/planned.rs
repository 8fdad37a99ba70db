//! A plan of a kept statement that is held from run to run.
//!
//! The server looks for a kept plan with each run, and takes the locks of all its tables twice for that. A plan on one
//! table, which the caller has locked, needs neither. Invariants: a plan that the server has marked as no longer valid is not
//! run again; one that depends on more than the definitions which the server watches, such as the role, is not held.

use crate::server::raw;
use crate::server::session::MainThread;
use pgrx::pg_sys::{self, CachedPlan, CachedPlanSource, Oid};
use std::cell::RefCell;

/// A plan that lives as long as this, and until [`release_dropped`].
pub(crate) struct Planned(*mut CachedPlan);

static DROPPED: MainThread<RefCell<Vec<*mut CachedPlan>>> = MainThread(RefCell::new(Vec::new()));

/// Releases what was dropped since the last call. Called at the start of a call, never while a callback or an error is under
/// way.
pub(crate) fn release_dropped() {
    loop {
        let Some(plan) = DROPPED.borrow_mut().pop() else { return };
        // SAFETY: the plan was held for no owner of resources, and nobody runs it any more. It raises no error.
        unsafe { raw::ReleaseCachedPlan(plan, std::ptr::null_mut()) };
    }
}

impl Planned {
    /// Holds the plan that serves all values of a statement on this table and no other, if there is one and nothing but
    /// definitions can make it wrong.
    ///
    /// # Safety
    ///
    /// The source is one that is kept.
    pub(crate) unsafe fn of(source: *mut CachedPlanSource, table: Oid) -> Option<Planned> {
        // SAFETY: as the caller promises; the plan of a source is null or lives as long as it is held, and a list of oids has
        // as many as it says.
        unsafe {
            let plan = (*source).gplan;
            let kept = plan.as_mut().filter(|kept| {
                // The tables of the text, and those that planning added: partitions.
                let is_of_table = is_only(table, (*source).relationOids)
                    && only_statement(&raw const **kept)
                        .is_some_and(|statement| is_only(table, (*statement).relationOids));
                let is_for_anybody = !kept.dependsOnRole && !(*source).dependsOnRLS;
                let is_for_any_time = kept.saved_xmin == pg_sys::InvalidTransactionId;
                kept.is_valid && kept.is_saved && !kept.is_oneshot && is_of_table && is_for_anybody && is_for_any_time
            })?;
            kept.refcount += 1;
            Some(Planned(plan))
        }
    }

    /// Whether the server would run it where its table is locked.
    ///
    /// # Safety
    ///
    /// It is of this source, which is kept.
    pub(crate) unsafe fn is_right(&self, source: *mut CachedPlanSource) -> bool {
        const FORCED: i32 = pg_sys::PlanCacheMode::PLAN_CACHE_MODE_FORCE_CUSTOM_PLAN as i32;
        // SAFETY: as the caller promises; the plan lives as long as this.
        unsafe {
            let is_valid = (*source).is_valid && (*source).gplan == self.0 && (*self.0).is_valid;
            is_valid && pg_sys::plan_cache_mode != FORCED
        }
    }

    /// The plan, as long as this lives.
    pub(crate) fn plan(&self) -> *mut CachedPlan {
        self.0
    }
}

/// What a plan runs, if that is one statement: a rule can make several of one, or none, or a command.
///
/// # Safety
///
/// The plan is one of the server's.
pub(crate) unsafe fn only_statement(plan: *const CachedPlan) -> Option<*mut pg_sys::PlannedStmt> {
    // SAFETY: the list of a plan holds planned statements, and is null when it is empty.
    unsafe {
        let list = (*plan).stmt_list.as_ref().filter(|list| list.length == 1)?;
        let statement = (*list.elements).ptr_value.cast::<pg_sys::PlannedStmt>();
        (*statement).utilityStmt.is_null().then_some(statement)
    }
}

unsafe fn is_only(table: Oid, tables: *const pg_sys::List) -> bool {
    // SAFETY: a list of oids is null when it is empty, and has as many as it says.
    unsafe { tables.as_ref().is_some_and(|tables| tables.length == 1 && (*tables.elements).oid_value == table) }
}

impl Drop for Planned {
    fn drop(&mut self) {
        DROPPED.borrow_mut().push(self.0);
    }
}
