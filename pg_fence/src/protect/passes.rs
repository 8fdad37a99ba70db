//! What opens a protected table to a write: the change that a function of this library is making, or a fence that the
//! transaction uses. The triggers of protected tables ask here for every row.
//!
//! Invariants: nothing here outlives its transaction, its savepoint, or (a change of ours) its statement; a change of
//! ours opens the gate once, for statements at the same depth of triggers as its own, so neither the triggers nor the
//! cascades that it sets off pass with it.

use crate::errors::{Refused, UnfencedWrite};
use crate::row::change::accepted_number;
use crate::server::call::{Call, Reply};
use crate::server::{self, MainThread};
use crate::table::statement::Verb;
use fence::Fence;
use fence::resource::{PlainVerdict, Step, Verdict, judge_plain};
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;

/// Every written row is compared with each; a transaction has a few locks.
const MAX_IN_USE: usize = 1_000;

#[derive(Default)]
struct Passes {
    own: Cell<Option<OwnChange>>,
    in_use: RefCell<Vec<InUse>>,
    updates: RefCell<Vec<RunningUpdate>>,
}

/// The change that a function of this library is making.
#[derive(Clone, Copy)]
struct OwnChange {
    verb: Verb,
    fence: i64,
    depth: i32,
    is_spent: bool,
    /// Spent on a row that was left with another fence.
    is_put_back: bool,
}

/// A fence that the transaction uses.
struct InUse {
    fence: Fence,
    since: pg_sys::SubTransactionId,
}

/// An UPDATE of a partitioned table that is under way. It can move rows, which fires the triggers of a DELETE and of
/// an INSERT.
struct RunningUpdate {
    table: Oid,
    depth: i32,
    since: pg_sys::SubTransactionId,
}

static PASSES: MainThread<Passes> =
    MainThread(Passes { own: Cell::new(None), in_use: RefCell::new(Vec::new()), updates: RefCell::new(Vec::new()) });

/// Asks the server to tell about the ends of transactions and savepoints. Called once, when the library is loaded.
pub fn watch_transactions() {
    // SAFETY: the callbacks are functions of this library, which is never unloaded.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_ended), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(subtransaction_ended), std::ptr::null_mut());
    }
}

/// Opens the gate for one row, as long as the answer lives.
#[must_use]
pub struct OwnPass(Option<OwnChange>);

impl OwnPass {
    /// For a change of this kind that stamps this fence or relies on it.
    pub fn new(verb: Verb, fence: i64) -> OwnPass {
        let own = OwnChange { verb, fence, depth: server::trigger_depth(), is_spent: false, is_put_back: false };
        OwnPass(PASSES.own.replace(Some(own)))
    }
}

impl OwnPass {
    /// Ends it, after the change has reached this many rows. Answers how it was used for a row that the change did not
    /// reach, or not as it says: by a function in an expression or a policy of the table.
    pub fn end(self, rows: u64) -> Option<UnfencedWrite> {
        let own = PASSES.own.get()?;
        match rows {
            1 => own.is_put_back.then_some(UnfencedWrite::FenceChanged),
            _ => own.is_spent.then_some(UnfencedWrite::NoFence(own.verb.command())),
        }
    }
}

impl Drop for OwnPass {
    fn drop(&mut self) {
        PASSES.own.set(self.0);
    }
}

/// `fence_use(fence bigint)`: lets plain SQL of this transaction write rows of protected tables that carry this fence.
/// Answers the fence.
pub fn fence_use(call: &Call) -> Result<Reply, Refused> {
    let fence = accepted_number(call.number(0))?;
    server::require_transaction_block(c"fence_use()");
    let answer = Reply::Value(Datum::from(fence.get() as i64));
    let mut in_use = PASSES.in_use.borrow_mut();
    if in_use.iter().any(|used| used.fence == fence) {
        return Ok(answer);
    }
    if in_use.len() >= MAX_IN_USE {
        return Err(Refused::ManyInUse { max: MAX_IN_USE });
    }
    in_use.push(InUse { fence, since: server::subtransaction() });
    Ok(answer)
}

/// `refuses_update(relation oid, row_id tid, written_by xid, old_fence bigint, new_fence bigint, old_owner text, new_owner
/// text)`: whether a row of a protected table may not be updated.
pub fn refuses_update(call: &Call) -> Result<Reply, Refused> {
    let (old, new) = (call.number(3), call.number(4));
    let passes = (old == new && judge(old) == PlainVerdict::Accepted) || PASSES.own_change_of(old, Event::Update(new));
    Ok(Reply::Value(Datum::from(!passes)))
}

/// `refuses_delete(relation oid, row_id tid, written_by xid, old_fence bigint, old_owner text)`: whether a row of a protected table may not be deleted.
pub fn refuses_delete(call: &Call) -> Result<Reply, Refused> {
    let old = call.number(3);
    let passes = judge(old) == PlainVerdict::Accepted || PASSES.own_change_of(old, Event::Delete);
    Ok(Reply::Value(Datum::from(!passes)))
}

/// `refuses_insert(relation oid, row_id tid, new_fence bigint, new_owner text)`: whether a row may not be inserted into a protected table.
pub fn refuses_insert(call: &Call) -> Result<Reply, Refused> {
    const NEVER_CLAIMED: i64 = 0;
    let new = call.number(2);
    let is_new_row = new.unwrap_or(NEVER_CLAIMED) == NEVER_CLAIMED && !PASSES.is_updating();
    let passes = is_new_row || judge(new) == PlainVerdict::Accepted || PASSES.own_change_stamps(new);
    Ok(Reply::Value(Datum::from(!passes)))
}

/// `moves()`, the trigger before and after an UPDATE statement on a partitioned table: a row that is inserted
/// meanwhile is no new one.
pub fn moves(call: &Call) -> Result<Reply, Refused> {
    let event = call.trigger_event()?;
    // The trigger runs one deeper than the statement.
    let depth = server::trigger_depth() - 1;
    let mut updates = PASSES.updates.borrow_mut();
    if event.is_before {
        updates.push(RunningUpdate { table: event.table, depth, since: server::subtransaction() });
    } else if let Some(n) = updates.iter().rposition(|update| (update.table, update.depth) == (event.table, depth)) {
        updates.remove(n);
    }
    Ok(Reply::Void)
}

/// What the fences in use say to a write of a row that has this fence.
pub fn judge(stored: Option<i64>) -> PlainVerdict {
    judge_plain(stored, PASSES.in_use.borrow().iter().map(|used| used.fence))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Update(Option<i64>),
    Delete,
}

impl Passes {
    /// Whether the row is the one that a change of ours is made to. That is so once.
    fn own_change_of(&self, old: Option<i64>, event: Event) -> bool {
        let Some(own) = self.own.get().filter(|own| !own.is_spent && own.depth == server::trigger_depth()) else {
            return false;
        };
        // A move to another partition is a DELETE here and an INSERT there.
        let is_its_event = event == Event::Delete || own.verb != Verb::Delete;
        // A reset, the only one that is no step of the protocol, passes whatever is stored.
        let accepts = |step: Step| Fence::new(own.fence.unsigned_abs()).map(|fence| step.judge(old, fence));
        let passes = is_its_event && own.verb.step().is_none_or(|step| accepts(step) == Some(Verdict::Accepted));
        let is_put_back = passes && matches!(event, Event::Update(new) if new != Some(own.fence));
        self.own.set(Some(OwnChange { is_spent: passes, is_put_back, ..own }));
        passes
    }

    fn own_change_stamps(&self, new: Option<i64>) -> bool {
        self.own.get().is_some_and(|own| new == Some(own.fence) && own.depth == server::trigger_depth())
    }

    fn is_updating(&self) -> bool {
        let updates = self.updates.borrow();
        !updates.is_empty() && {
            let depth = server::trigger_depth();
            updates.iter().any(|update| update.depth == depth)
        }
    }

    fn clear(&self) {
        self.own.set(None);
        self.in_use.borrow_mut().clear();
        self.updates.borrow_mut().clear();
    }

    fn drop_since(&self, ended: pg_sys::SubTransactionId) {
        self.in_use.borrow_mut().retain(|used| used.since != ended);
        self.updates.borrow_mut().retain(|update| update.since != ended);
    }

    fn pass_on(&self, ended: pg_sys::SubTransactionId, parent: pg_sys::SubTransactionId) {
        let mut in_use = self.in_use.borrow_mut();
        in_use.iter_mut().filter(|used| used.since == ended).for_each(|used| used.since = parent);
        let mut updates = self.updates.borrow_mut();
        updates.iter_mut().filter(|update| update.since == ended).for_each(|update| update.since = parent);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn transaction_ended(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    use pg_sys::XactEvent::*;
    // Deferred triggers still run at the events before the end.
    if matches!(event, XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE) {
        PASSES.clear();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn subtransaction_ended(
    event: pg_sys::SubXactEvent::Type,
    ended: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _argument: *mut c_void,
) {
    match event {
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => PASSES.drop_since(ended),
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => PASSES.pass_on(ended, parent),
        _ => {}
    }
}
