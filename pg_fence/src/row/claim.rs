//! Claims: stamp the fence on a row before reading it, and give the row back as it is then.

use crate::errors::Refused;
use crate::row::change::Change;
use crate::row::key::Key;
use crate::server::call::{Call, Reply, Rows};
use crate::server::session;
use crate::server::types::{self, Value};
use crate::settings::accepted_fence;
use crate::table::plans::Outcome;
use crate::table::relation::Table;
use crate::table::tables;
use crate::table::verb::{Answer, Verb};

/// `fenced_claim(target anyelement, key, fence bigint, fence_column name)`: the row, or no row when stale.
pub fn fenced_claim(call: &Call) -> Result<Reply, Refused> {
    session::refuse_on_standby(c"fenced_claim()");
    let table = tables::open(call.table_of_row_type()?)?;
    claim(call, &table, Some(&call.rows_of(&table)?))?;
    Ok(Reply::Handed)
}

/// `fenced_claim_json(target regclass, key, fence bigint, fence_column name)`: the row as jsonb, or null when stale.
pub fn fenced_claim_json(call: &Call) -> Result<Reply, Refused> {
    session::refuse_on_standby(c"fenced_claim_json()");
    let table = tables::open(call.table()?)?;
    let claimed = claim(call, &table, None)?.and_then(|outcome| outcome.row);
    let json = claimed.map(|datum| types::row_to_jsonb(Value { datum, type_oid: table.row_type }));
    Ok(json.map_or(Reply::Nothing, Reply::Value))
}

fn claim(call: &Call, table: &Table, rows: Option<&Rows>) -> Result<Option<Outcome>, Refused> {
    let fence_column = table.fence_column(call.fence_column(3)?)?;
    let fence = accepted_fence(table, fence_column, call.number(2))?;
    let key = Key::read(table, call.value(1, "key")?)?;
    let (verb, answer) = (Verb::Claim, Answer::Row);
    Change { table, fence_column, key: &key, fence, verb, answer, patch: None, rows }.make()
}
