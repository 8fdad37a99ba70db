//! Claims: stamp the fence on a row before reading it, and give the row back as it is then; one inserts a row that is not
//! there.

use crate::errors::Refused;
use crate::row::arguments::{RowArguments, target, target_of_row_type};
use crate::row::change::Change;
use crate::row::rows::rows_of;
use crate::server::call::{Call, Reply};
use crate::server::types;
use crate::table::tables;
use crate::table::verb::{Answer, Verb};

/// `fenced_claim(target anyelement, key, fence bigint, fence_column name)`: the row, or no row when stale.
pub(crate) fn fenced_claim(call: &Call) -> Result<Reply, Refused> {
    claim(call, RowArguments::plain(call, target_of_row_type)?)
}

/// `fenced_claim_or_insert(target anyelement, key, fence bigint, initial jsonb, fence_column name)`: the same, and where
/// there is no such row, inserts it.
pub(crate) fn fenced_claim_or_insert(call: &Call) -> Result<Reply, Refused> {
    claim(call, RowArguments::with_initial(call, target_of_row_type)?)
}

fn claim(call: &Call, given: RowArguments) -> Result<Reply, Refused> {
    let table = tables::open(given.table)?;
    let rows = rows_of(call, &table)?;
    Change { answer: Answer::Row, rows: Some(&rows), ..given.of(&table)?.change(Verb::Claim) }.make()?;
    Ok(Reply::Handed)
}

/// `fenced_claim_json(target regclass, key, fence bigint, fence_column name)`: the row as jsonb, or null when stale.
pub(crate) fn fenced_claim_json(call: &Call) -> Result<Reply, Refused> {
    let given = RowArguments::plain(call, target)?;
    let table = tables::open(given.table)?;
    let claimed = Change { answer: Answer::Row, ..given.of(&table)?.change(Verb::Claim) }.make()?;
    let row = claimed.and_then(|outcome| outcome.row);
    let json = row.map(types::row_to_jsonb);
    Ok(json.map_or(Reply::Nothing, Reply::Value))
}
