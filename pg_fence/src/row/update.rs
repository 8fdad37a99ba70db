//! Writes of a row under its claim.

use crate::errors::Refused;
use crate::row::arguments::{RowArguments, target, target_of_row_type};
use crate::row::change::Change;
use crate::row::rows::rows_of;
use crate::server::call::{Call, Reply};
use crate::table::tables;
use crate::table::verb::{Answer, Verb};

/// `fenced_update(target regclass, key, fence bigint, patch jsonb, fence_column name)`: true written, false stale.
pub(crate) fn fenced_update(call: &Call) -> Result<Reply, Refused> {
    write(RowArguments::patched(call, target)?, Verb::Update)
}

/// `fenced_update_returning(target anyelement, key, fence bigint, patch jsonb, fence_column name)`: the row as it was
/// written, or no row when stale.
pub(crate) fn fenced_update_returning(call: &Call) -> Result<Reply, Refused> {
    let given = RowArguments::patched(call, target_of_row_type)?;
    let table = tables::open(given.table)?;
    let rows = rows_of(call, &table)?;
    Change { answer: Answer::Row, rows: Some(&rows), ..given.of(&table)?.change(Verb::Update) }.make()?;
    Ok(Reply::Handed)
}

/// `fenced_write(target regclass, key, fence bigint, patch jsonb, fence_column name)`: stamps and sets at once. True
/// written, false stale.
pub(crate) fn fenced_write(call: &Call) -> Result<Reply, Refused> {
    write(RowArguments::patched(call, target)?, Verb::Write)
}

/// `fenced_upsert(target regclass, key, fence bigint, patch jsonb, fence_column name)`: the same, and where there is no such
/// row, inserts it.
pub(crate) fn fenced_upsert(call: &Call) -> Result<Reply, Refused> {
    let given = RowArguments::patched(call, target)?;
    let table = tables::open(given.table)?;
    let written = given.of(&table)?.change_or_insert(Verb::Write).make()?;
    Ok(Reply::from(written.is_some()))
}

/// `fenced_delete(target regclass, key, fence bigint, fence_column name)`: true deleted, false stale.
pub(crate) fn fenced_delete(call: &Call) -> Result<Reply, Refused> {
    write(RowArguments::plain(call, target)?, Verb::Delete)
}

fn write(given: RowArguments, verb: Verb) -> Result<Reply, Refused> {
    let table = tables::open(given.table)?;
    let written = given.of(&table)?.change(verb).make()?;
    Ok(Reply::from(written.is_some()))
}
