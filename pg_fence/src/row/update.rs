//! Writes of a row under its claim.

use crate::errors::Refused;
use crate::row::change::Change;
use crate::row::key::Key;
use crate::row::patch::Patch;
use crate::server::call::{Call, Reply, Rows};
use crate::server::session;
use crate::settings::accepted_fence;
use crate::table::plans::Outcome;
use crate::table::relation::Table;
use crate::table::tables;
use crate::table::verb::{Answer, Verb};
use pgrx::pg_sys::Datum;

/// `fenced_update(target regclass, key, fence bigint, patch jsonb, fence_column name)`: true written, false stale.
pub fn fenced_update(call: &Call) -> Result<Reply, Refused> {
    session::refuse_on_standby(c"fenced_update()");
    let written = patched(call, &*tables::open(call.table()?)?, Verb::Update, None)?;
    Ok(Reply::Value(Datum::from(written.is_some())))
}

/// `fenced_update_returning(target anyelement, key, fence bigint, patch jsonb, fence_column name)`: the row as it was
/// written, or no row when stale.
pub fn fenced_update_returning(call: &Call) -> Result<Reply, Refused> {
    session::refuse_on_standby(c"fenced_update_returning()");
    let table = tables::open(call.table_of_row_type()?)?;
    patched(call, &table, Verb::Update, Some(&call.rows_of(&table)?))?;
    Ok(Reply::Handed)
}

/// `fenced_write(target regclass, key, fence bigint, patch jsonb, fence_column name)`: stamps and sets at once. True
/// written, false stale.
pub fn fenced_write(call: &Call) -> Result<Reply, Refused> {
    session::refuse_on_standby(c"fenced_write()");
    let written = patched(call, &*tables::open(call.table()?)?, Verb::Write, None)?;
    Ok(Reply::Value(Datum::from(written.is_some())))
}

/// `fenced_delete(target regclass, key, fence bigint, fence_column name)`: true deleted, false stale.
pub fn fenced_delete(call: &Call) -> Result<Reply, Refused> {
    session::refuse_on_standby(c"fenced_delete()");
    let table = tables::open(call.table()?)?;
    let fence_column = table.fence_column(call.fence_column(3)?)?;
    let fence = accepted_fence(&table, fence_column, call.number(2))?;
    let key = Key::read(&table, call.value(1, "key")?)?;
    let (verb, answer) = (Verb::Delete, Answer::Fence);
    let deleted =
        Change { table: &table, fence_column, key: &key, fence, verb, answer, patch: None, rows: None }.make()?;
    Ok(Reply::Value(Datum::from(deleted.is_some())))
}

fn patched(call: &Call, table: &Table, verb: Verb, rows: Option<&Rows>) -> Result<Option<Outcome>, Refused> {
    let fence_column = table.fence_column(call.fence_column(4)?)?;
    let fence = accepted_fence(table, fence_column, call.number(2))?;
    let key = Key::read(table, call.value(1, "key")?)?;
    let patch = Patch::read(table, fence_column, &call.document(3, "patch")?)?;
    let answer = if rows.is_some() { Answer::Row } else { Answer::Fence };
    Change { table, fence_column, key: &key, fence, verb, answer, patch: Some(&patch), rows }.make()
}
