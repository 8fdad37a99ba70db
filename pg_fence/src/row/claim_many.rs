//! Claims of many rows in one call, with the locks taken in the order of the key, so that two calls never wait for
//! each other in a circle.

use crate::errors::Refused;
use crate::row::arguments::{owner, target_of_row_type};
use crate::row::keys::{Keys, Strictness};
use crate::row::many::Many;
use crate::row::rows::rows_of;
use crate::server::call::{Call, Reply};
use crate::server::rights;
use crate::server::types::Value;
use crate::settings::accepted_fence;
use crate::table::owner::OwnerArguments;
use crate::table::tables;
use crate::table::verb::{Answer, Verb};
use pgrx::pg_sys::Oid;
use std::ffi::CStr;

/// `fenced_claim_many(target anyelement, keys, fence bigint, fence_column name)`: the rows that were claimed, in the
/// order of the key. A stale one is absent; a key that is named twice is claimed once.
pub(crate) fn fenced_claim_many(call: &Call) -> Result<Reply, Refused> {
    let given = ManyArguments::of(call)?;
    let table = tables::open(given.table)?;
    let fence_column = table.fence_column(given.fence_column)?;
    let fence = accepted_fence(&table, fence_column, given.fence)?;
    let keys = Keys::read(&table, given.keys, Strictness::Lenient)?;
    if keys.len() == 0 {
        // No statement would say it.
        rights::require_claiming(table.oid, fence_column.number);
    }
    let owner = given.owner.of(&table, fence_column)?;
    let (verb, answer, rows) = (Verb::Claim, Answer::Row, Some(&rows_of(call, &table)?));
    Many { table: &table, fence_column, owner, keys: &keys, fences: &[fence], verb, answer, patches: None, rows }
        .make_all()?;
    Ok(Reply::Handed)
}

struct ManyArguments<'c> {
    table: Oid,
    keys: Value,
    fence: Option<i64>,
    fence_column: &'c CStr,
    owner: OwnerArguments<'c>,
}

impl<'c> ManyArguments<'c> {
    fn of(call: &'c Call) -> Result<ManyArguments<'c>, Refused> {
        let mut given = call.arguments();
        Ok(ManyArguments {
            table: target_of_row_type(&mut given)?,
            keys: given.value("keys")?,
            fence: given.number(),
            fence_column: given.fence_column()?,
            owner: owner(&mut given)?,
        })
    }
}
