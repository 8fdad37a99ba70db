//! What admits a write on a protected table: the change that a fenced function is making, or a fence declared with
//! fence_use(). The triggers of protected tables ask here for every row.
//!
//! A change of ours is known by what it is, not by when it happens: by its query, its table (or a partition of it) and
//! the key of its row, and it passes once. So neither the triggers and cascades that it sets off pass with it, nor a
//! function in a policy or a constraint. A row that moves between partitions is deleted in one and inserted into the
//! other by one query; the deleted version says that it has moved, and the insertion that follows in the query must
//! keep the fence. Invariant: nothing here outlives its transaction, its savepoint, its statement (a change of ours) or
//! its query (a move).

use crate::errors::{Refused, UnfencedWrite};
use crate::protect::members;
use crate::row::key::Key;
use crate::server::callbacks::{self, SubtransactionEnd};
use crate::server::catalog;
use crate::server::operators;
use crate::server::session::{self, MainThread};
use crate::server::stored::{Stored, Tid, block};
use crate::server::types::Value;
use crate::table::batch::Batch;
use crate::table::fit::Fit;
use crate::table::relation::Table;
use crate::table::running::{self, Query};
use crate::table::verb::Verb;
use fence::Fence;
use fence::deletion::{self, InsertVerdict};
use fence::plain::{self, Owners};
use fence::resource::{Bearer, DuplicateFence, Owned, PlainVerdict, PlainWrite, Step, Verdict};
use pgrx::pg_sys::{self, Oid};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::rc::Rc;

/// Every written row is compared with each; a transaction has a few locks.
const MAX_IN_USE: usize = 1_000;

#[derive(Default)]
struct Passes {
    own: RefCell<Option<Rc<OwnChange>>>,
    in_use: RefCell<Vec<InUse>>,
    moves: RefCell<Vec<Move>>,
}

/// The change that a function of this library is making.
struct OwnChange {
    verb: Verb,
    table: Oid,
    key: Vec<KeyPart>,
    rows: OwnRows,
    /// The query that ran when the change began: not that of the change.
    around: Query,
    /// Spent on a row that was left with another fence.
    is_put_back: Cell<bool>,
}

/// A column of the key of a row.
struct KeyPart {
    column: CString,
    /// The operator that compares it with a value, in this collation.
    operator: Oid,
    collation: Oid,
}

/// The rows that a change of ours is made to, each once.
enum OwnRows {
    One {
        key: Vec<Value>,
        fence: i64,
        is_spent: Cell<bool>,
    },
    /// Those of a batch, which are written in its order.
    Many {
        batch: Rc<Batch>,
        are_spent: RefCell<Vec<bool>>,
        /// The first that is not passed over.
        next: Cell<usize>,
    },
}

/// A row of a change of ours, which has not been written yet.
struct Unspent {
    own: Rc<OwnChange>,
    /// Its place in the change.
    place: usize,
    fence: i64,
}

/// A fence that the transaction has declared.
struct InUse {
    fence: Fence,
    owner: Option<Box<[u8]>>,
    since: pg_sys::SubTransactionId,
}

/// A row that a query has deleted in one partition, to insert it into another.
struct Move {
    query: Query,
    /// What it must keep; none once it has been inserted.
    keeps: Option<Kept>,
    /// The partitions from which plain SQL may move rows in this query.
    may_leave: Vec<Oid>,
    /// The fences of changes of ours, by the versions that they move away.
    fences: BTreeMap<(u32, u32, u16), i64>,
}

/// What a row keeps that moves between partitions.
pub(crate) struct Kept {
    pub(crate) fence: i64,
    /// The owner of the fence; none where a change of ours moves the row, which checks that itself.
    pub(crate) owner: Option<KeptOwner>,
}

/// The owner that a row keeps.
pub(crate) struct KeptOwner(pub(crate) Option<Box<[u8]>>);

impl Kept {
    /// Whether the row that is inserted has it.
    pub(crate) fn is_of(&self, new: Option<i64>, owner: Option<&[u8]>) -> bool {
        let has_owner = |kept: &KeptOwner| kept.0.as_deref() == owner;
        new == Some(self.fence) && self.owner.as_ref().is_none_or(has_owner)
    }
}

static PASSES: MainThread<Passes> =
    MainThread(Passes { own: RefCell::new(None), in_use: RefCell::new(Vec::new()), moves: RefCell::new(Vec::new()) });

/// Watches the ends of transactions and savepoints. Called once, when the library is loaded.
pub(crate) fn watch_transactions() {
    callbacks::at_transaction_end(|| PASSES.clear());
    callbacks::at_subtransaction_end(|end| match end {
        SubtransactionEnd::Aborted(ended) => PASSES.drop_since(ended),
        SubtransactionEnd::Committed { ended, parent } => PASSES.pass_on(ended, parent),
    });
}

/// Lets one row through the triggers of a protected table, as long as this lives.
#[must_use]
pub(crate) struct OwnPass(Option<Rc<OwnChange>>);

impl OwnPass {
    /// For a change of this row that stamps this fence or relies on it. A table without triggers needs no pass.
    pub(crate) fn new(table: &Table, key: &Key, verb: Verb, fence: i64) -> OwnPass {
        let rows = || OwnRows::One { key: key.values.to_vec(), fence, is_spent: Cell::new(false) };
        OwnPass::of(table, &key.fits, verb, rows)
    }

    /// For a change of the rows of a batch, whose keys are compared so, by one statement that writes them in order.
    pub(crate) fn of_many(table: &Table, fits: &[Fit], verb: Verb, batch: &Rc<Batch>) -> OwnPass {
        let are_spent = || RefCell::new(vec![false; batch.len()]);
        let rows = || OwnRows::Many { batch: batch.clone(), are_spent: are_spent(), next: Cell::new(0) };
        OwnPass::of(table, fits, verb, rows)
    }

    fn of(table: &Table, fits: &[Fit], verb: Verb, rows: impl FnOnce() -> OwnRows) -> OwnPass {
        let own = table.may_be_protected.then(|| {
            let parts = table.key.iter().zip(fits).map(|(column, fit)| {
                let (column, operator) = (table.key_column(column), fit.operator);
                KeyPart { column: column.name.clone(), operator, collation: column.collation }
            });
            let (table, key, around) = (table.oid, parts.collect(), running::running());
            Rc::new(OwnChange { verb, table, key, rows: rows(), around, is_put_back: Cell::new(false) })
        });
        OwnPass(PASSES.own.replace(own))
    }

    /// Ends it, after the change has reached the rows with these numbers; that of the only row is 0. Answers how it was
    /// misused: spent on another row, or on one that was left with another fence (by a rule, or a function in an expression
    /// or a policy).
    pub(crate) fn end(self, is_reached: impl Fn(usize) -> bool) -> Option<UnfencedWrite> {
        let own = PASSES.own.borrow().clone()?;
        let is_misused = match &own.rows {
            OwnRows::One { is_spent, .. } => is_spent.get() && !is_reached(0),
            OwnRows::Many { batch, are_spent, .. } => {
                let spent = are_spent.borrow();
                spent.iter().enumerate().any(|(place, &is_spent)| is_spent && !is_reached(batch.number(place)))
            }
        };
        match own.is_put_back.get() {
            _ if is_misused => Some(UnfencedWrite::NoFence(own.verb.command())),
            true => Some(UnfencedWrite::FenceChanged),
            false => None,
        }
    }
}

impl Drop for OwnPass {
    fn drop(&mut self) {
        PASSES.own.replace(self.0.take());
    }
}

/// A version of a row that is written, as the condition of a trigger names it.
pub(crate) struct WrittenRow {
    pub(crate) query: Query,
    /// Its table: the partition.
    pub(crate) table: Oid,
    /// None where the caller passes null.
    pub(crate) tid: Option<Tid>,
}

/// Lets plain SQL of this transaction write rows that carry this fence. Errors: too many are in use.
pub(crate) fn use_fence(fence: Fence, owner: Option<&[u8]>) -> Result<(), Refused> {
    let mut in_use = PASSES.in_use.borrow_mut();
    if in_use.iter().any(|used| used.fence == fence && used.owner.as_deref() == owner) {
        return Ok(());
    }
    if in_use.len() >= MAX_IN_USE {
        return Err(Refused::ManyInUse { max: MAX_IN_USE });
    }
    in_use.push(InUse { fence, owner: owner.map(Box::from), since: session::subtransaction() });
    Ok(())
}

/// What the fences in use say to a write of a row that has this fence, of this owner.
pub(crate) fn judge(stored: Owned) -> Result<PlainVerdict, DuplicateFence> {
    plain::judge(stored, PASSES.in_use.borrow().iter().map(InUse::bearer))
}

/// What the fence of a new row and those in use say to the fence that a deletion of its key is remembered with.
pub(crate) fn judge_insert(remembered: Option<i64>, new: Option<i64>) -> InsertVerdict {
    deletion::judge_insert(remembered, new, PASSES.in_use.borrow().iter().map(|used| used.fence))
}

/// Whether a fence in use accepts a plain write.
pub(crate) fn is_accepted(write: PlainWrite, owners: Owners) -> bool {
    plain::is_accepted(write, owners, PASSES.in_use.borrow().iter().map(InUse::bearer))
}

impl InUse {
    fn bearer(&self) -> Bearer<'_> {
        Bearer { fence: self.fence, owner: self.owner.as_deref() }
    }
}

impl OwnChange {
    /// The place and the fence of the row that is written, if this change is made to it, accepts its fence, and has not
    /// written it yet.
    fn unspent(&self, row: &WrittenRow, old: Option<i64>) -> Option<(usize, i64)> {
        match &self.rows {
            OwnRows::One { key, fence, is_spent } => {
                let is_it =
                    !is_spent.get() && self.accepts(*fence, old) && self.is_its_query(row) && self.is_its_table(row);
                (is_it && self.is_row(&Stored::at(row.table, row.tid?)?, |n| key[n])).then_some((0, *fence))
            }
            // No rule has made several statements of it.
            OwnRows::Many { batch, next, .. } if running::running() == row.query && self.is_its_table(row) => {
                let stored = Stored::at(row.table, row.tid?)?;
                let mut places = next.get()..batch.len();
                let place = places.find(|&place| {
                    session::check_for_interrupts();
                    self.is_row(&stored, |column| batch.key_value(place, column))
                })?;
                let fence = batch.fence(place);
                self.accepts(fence, old).then_some((place, fence))
            }
            OwnRows::Many { .. } => None,
        }
    }

    fn is_its_query(&self, row: &WrittenRow) -> bool {
        // A rule can have made several statements of the change, which the server then runs by itself.
        let running = running::running();
        running == self.around || running == row.query
    }

    fn is_its_table(&self, row: &WrittenRow) -> bool {
        row.table == self.table || catalog::partition_ancestors(row.table).contains(&self.table)
    }

    fn is_row(&self, stored: &Stored, value: impl Fn(usize) -> Value) -> bool {
        self.key.iter().enumerate().all(|(n, part)| {
            let field = stored.field(&part.column);
            field.is_some_and(|field| operators::are_equal(part.operator, field, value(n), part.collation))
        })
    }

    /// A reset, which alone is not a step of the protocol, passes whatever is stored.
    fn accepts(&self, fence: i64, old: Option<i64>) -> bool {
        let judged = |step: Step| Fence::new(fence.unsigned_abs()).map(|fence| step.judge(old, fence));
        self.verb.step().is_none_or(|step| judged(step) == Some(Verdict::Accepted))
    }

    fn spend(&self, place: usize) {
        match &self.rows {
            OwnRows::One { is_spent, .. } => is_spent.set(true),
            OwnRows::Many { are_spent, next, .. } => {
                are_spent.borrow_mut()[place] = true;
                next.set(place + 1);
            }
        }
    }
}

impl Unspent {
    /// Spends it on a row that is left with this fence.
    fn spend(&self, new: Option<i64>) {
        self.own.spend(self.place);
        if new != Some(self.fence) {
            self.own.is_put_back.set(true);
        }
    }
}

/// Spends the change of ours on an update, if it is that change. Answers whether it did.
pub(crate) fn spend_on_update(row: &WrittenRow, old: Option<i64>, new: Option<i64>) -> bool {
    let is_update = |unspent: &Unspent| !matches!(unspent.own.verb, Verb::Insert | Verb::Delete);
    let Some(unspent) = PASSES.unspent_change(row, old).filter(is_update) else { return false };
    unspent.spend(new);
    true
}

/// Spends the change of ours on a deletion, if it is that change, or the first half of one that moves the row. Answers
/// the fence of the change if it did.
pub(crate) fn spend_on_deletion(row: &WrittenRow, old: Option<i64>, moved: bool) -> Option<i64> {
    let is_deletion = |verb: Verb| verb != Verb::Insert && moved != (verb == Verb::Delete);
    let unspent = PASSES.unspent_change(row, old).filter(|unspent| is_deletion(unspent.own.verb))?;
    unspent.own.spend(unspent.place);
    Some(unspent.fence)
}

/// Spends the change of ours on an insertion, if it is that change and the row has its fence. Answers whether it did.
pub(crate) fn spend_on_insertion(row: &WrittenRow, new: Option<i64>) -> bool {
    let is_insertion = |unspent: &Unspent| unspent.own.verb == Verb::Insert && new == Some(unspent.fence);
    let Some(unspent) = PASSES.unspent_change(row, None).filter(is_insertion) else { return false };
    unspent.spend(new);
    true
}

/// Takes what the row must keep which this query has deleted in another partition, once for each.
pub(crate) fn take_expected(query: Query) -> Option<Kept> {
    let mut moves = PASSES.moves.borrow_mut();
    if moves.is_empty() { None } else { moves.iter_mut().find(|one| one.query == query)?.keeps.take() }
}

/// Admits a move of a row out of a partition by plain SQL, where a trigger asks for its fence wherever it goes. That is
/// found out once for a query, which has one view of the partitions.
pub(crate) fn admit_move(query: Query, partition: Oid) -> bool {
    let is_admitted = |one: &Move| one.query == query && one.may_leave.contains(&partition);
    if !PASSES.moves.borrow().iter().any(is_admitted) {
        if members::open_to_moves(partition).is_some() {
            return false;
        }
        PASSES.with_moves_of(query, |one| one.may_leave.push(partition));
    }
    true
}

/// Notes what the next row which this query inserts must keep. The server inserts a moved row before it goes on
/// with the query. Where a BEFORE trigger keeps it from doing so, an insertion by another part of the query
/// looks like that of the moved row, and is refused.
pub(crate) fn expect_insertion(row: &WrittenRow, keeps: Kept) {
    PASSES.with_moves_of(row.query, |one| {
        let version = row.tid.filter(|_| keeps.owner.is_none()).map(|tid| version(row.table, &tid));
        one.fences.extend(version.map(|version| (version, keeps.fence)));
        one.keeps = Some(keeps);
    });
}

/// The fence of the change of ours that has moved this version to another partition.
pub(crate) fn fence_of_move(table: Oid, tid: &Tid) -> Option<i64> {
    PASSES.moves.borrow().iter().find_map(|one| one.fences.get(&version(table, tid)).copied())
}

fn version(table: Oid, tid: &Tid) -> (u32, u32, u16) {
    (table.to_u32(), block(tid), tid.ip_posid)
}

impl Passes {
    /// The row of the change of ours that is written.
    fn unspent_change(&self, row: &WrittenRow, old: Option<i64>) -> Option<Unspent> {
        let own = self.own.borrow().clone()?;
        let (place, fence) = own.unspent(row, old)?;
        Some(Unspent { own, place, fence })
    }

    fn with_moves_of(&self, query: Query, act: impl FnOnce(&mut Move)) {
        if !self.moves.borrow().iter().any(|one| one.query == query) {
            running::at_end(query, |query| PASSES.moves.borrow_mut().retain(|one| one.query != query));
            self.moves.borrow_mut().push(Move { query, keeps: None, may_leave: Vec::new(), fences: BTreeMap::new() });
        }
        if let Some(one) = self.moves.borrow_mut().iter_mut().find(|one| one.query == query) {
            act(one);
        }
    }

    fn clear(&self) {
        self.own.replace(None);
        self.in_use.borrow_mut().clear();
    }

    fn drop_since(&self, ended: pg_sys::SubTransactionId) {
        self.in_use.borrow_mut().retain(|used| used.since != ended);
    }

    fn pass_on(&self, ended: pg_sys::SubTransactionId, parent: pg_sys::SubTransactionId) {
        let mut in_use = self.in_use.borrow_mut();
        in_use.iter_mut().filter(|used| used.since == ended).for_each(|used| used.since = parent);
    }
}
