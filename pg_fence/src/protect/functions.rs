//! The SQL functions that plain writes of protected tables depend on: the one that declares a fence, and those that the
//! WHEN conditions of the triggers call for every row.
//!
//! Anybody can call the latter by hand, with any arguments. Invariant: such a call opens nothing that the caller could
//! not have opened by a write.

use crate::errors::Refused;
use crate::life;
use crate::protect::passes::{self, Kept, KeptOwner, WrittenRow};
use crate::row::arguments;
use crate::server::call::{Arguments, Call, Reply};
use crate::server::catalog;
use crate::server::session;
use crate::server::stored::Stored;
use crate::server::text::Bytes;
use crate::settings::accepted_number;
use fence::plain::Owners;
use fence::resource::{NEVER_CLAIMED, PlainWrite};

/// `fence_use(fence bigint[, owner text])`: lets plain SQL of this transaction write rows of protected tables that carry this
/// fence, of this owner where they keep one. Answers the fence.
pub(crate) fn fence_use(call: &Call) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    let fence = accepted_number(given.number())?;
    let owner = arguments::owner(&mut given)?.owner;
    if !session::is_in_transaction_block() {
        return Err(Refused::NoBlock { function: "fence_use()" });
    }
    life::begin();
    passes::use_fence(fence, owner.as_ref().map(Bytes::bytes))?;
    Ok(Reply::from(fence))
}

/// `refuses_update(relation oid, row_id tid, written_by xid, old_fence bigint, new_fence bigint, old_owner text,
/// new_owner text)`: whether a row of a protected table may not be updated.
pub(crate) fn refuses_update(call: &Call) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    let row = written_row(call, &mut given);
    let written_by = given.transaction();
    let (old, new) = (given.number(), given.number());
    let owners = Owners { old: owner(&mut given), new: owner(&mut given) };
    let write = PlainWrite::Update { old, new };
    let passes = is_accepted(write, owners, written_by) || passes::spend_on_update(&row, old, new);
    Ok(Reply::from(!passes))
}

/// `refuses_delete(relation oid, row_id tid, written_by xid, old_fence bigint, old_owner text)`: whether a row of a
/// protected table may not be deleted.
pub(crate) fn refuses_delete(call: &Call) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    let row = written_row(call, &mut given);
    let written_by = given.transaction();
    let old = given.number();
    let owners = Owners { old: owner(&mut given), new: None };
    let moved = is_moved(&row);
    let own_fence = passes::spend_on_deletion(&row, old, moved);
    // A move by a fenced function is checked afterwards, wherever the row is.
    let passes = own_fence.is_some()
        || (is_accepted(PlainWrite::Delete { old }, owners, written_by)
            && (!moved || passes::admit_move(row.query, row.table)));
    // A call by hand may pass any fence: one that is not in use opens nothing.
    if moved && passes {
        let owner = own_fence.is_none().then(|| KeptOwner(owners.old.map(Box::from)));
        passes::expect_insertion(&row, Kept { fence: own_fence.or(old).unwrap_or(NEVER_CLAIMED), owner });
    }
    Ok(Reply::from(!passes))
}

/// `refuses_insert(relation oid, row_id tid, new_fence bigint, new_owner text)`: whether a row may not be inserted into
/// a protected table.
pub(crate) fn refuses_insert(call: &Call) -> Result<Reply, Refused> {
    refuses_new(call, |new| PlainWrite::Insert { new })
}

/// `refuses_unfenced_insert(relation oid, row_id tid, new_fence bigint, new_owner text)`: the same where every new row must
/// carry a fence.
pub(crate) fn refuses_unfenced_insert(call: &Call) -> Result<Reply, Refused> {
    refuses_new(call, |new| PlainWrite::FencedInsert { new })
}

fn refuses_new(call: &Call, write: fn(Option<i64>) -> PlainWrite) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    let row = written_row(call, &mut given);
    let new = given.number();
    let owners = Owners { old: None, new: owner(&mut given) };
    let passes = match passes::take_expected(row.query) {
        Some(kept) => kept.is_of(new, owners.new),
        None => is_accepted(write(new), owners, None) || passes::spend_on_insertion(&row, new),
    };
    Ok(Reply::from(!passes))
}

/// Whether a fence in use accepts a plain write, and its claim was made in this life of the server.
fn is_accepted(write: PlainWrite, owners: Owners, written_by: Option<u32>) -> bool {
    passes::is_accepted(write, owners) && (!write.relies_on_claim() || written_by.is_some_and(life::has))
}

/// The owner of a fence; an empty text is nobody.
fn owner<'c>(given: &mut Arguments<'c>) -> Option<&'c [u8]> {
    given.bytes().map(|owner| owner.bytes()).filter(|owner| !owner.is_empty())
}

fn written_row(call: &Call, given: &mut Arguments) -> WrittenRow {
    WrittenRow { query: call.query(), table: given.oid().unwrap_or_default(), tid: given.tid() }
}

/// Whether the deleted row goes on in another partition.
fn is_moved(row: &WrittenRow) -> bool {
    catalog::is_partition(row.table)
        && row.tid.and_then(|tid| Stored::at(row.table, tid)).is_some_and(|version| version.has_moved())
}
