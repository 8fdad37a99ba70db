//! Claims of many rows in one call, with the locks taken in the order of the key, so that two calls never wait for
//! each other in a circle.

use crate::errors::{KeyProblem, Refused};
use crate::row::arguments::target_of_row_type;
use crate::row::change::Change;
use crate::row::key::{Key, KeyOrder};
use crate::row::rows::rows_of;
use crate::server::call::{Call, Reply};
use crate::server::json::Document;
use crate::server::rights;
use crate::server::types::{self, Input, Value};
use crate::settings::accepted_fence;
use crate::table::owner::OwnerArguments;
use crate::table::relation::Table;
use crate::table::tables;
use crate::table::verb::{Answer, Verb};
use pg_forms::is_json_array;
use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;

/// `fenced_claim_many(target anyelement, keys, fence bigint, fence_column name)`: the rows that were claimed, in the
/// order of the key. A stale one is absent; a key that is named twice is claimed once.
pub(crate) fn fenced_claim_many(call: &Call) -> Result<Reply, Refused> {
    let given = ManyArguments::of(call)?;
    let table = tables::open(given.table)?;
    let fence_column = table.fence_column(given.fence_column)?;
    let fence = accepted_fence(&table, fence_column, given.fence)?;
    let keys = keys(&table, given.keys)?;
    if keys.is_empty() {
        // No statement would say it.
        rights::require_claiming(table.oid, fence_column.number);
    }
    let owner = OwnerArguments::default().of(&table, fence_column)?;
    let (verb, answer, rows) = (Verb::Claim, Answer::Row, Some(&rows_of(call, &table)?));
    for key in &keys {
        let (patch, initial) = (None, None);
        Change { table: &table, fence_column, owner, key, fence, verb, answer, patch, initial, rows }.make()?;
    }
    Ok(Reply::Handed)
}

struct ManyArguments<'c> {
    table: Oid,
    keys: Value,
    fence: Option<i64>,
    fence_column: &'c CStr,
}

impl<'c> ManyArguments<'c> {
    fn of(call: &'c Call) -> Result<ManyArguments<'c>, Refused> {
        let mut given = call.arguments();
        Ok(ManyArguments {
            table: target_of_row_type(&mut given)?,
            keys: given.value("keys")?,
            fence: given.number(),
            fence_column: given.fence_column()?,
        })
    }
}

/// The keys of an array, in order, each once.
fn keys(table: &Table, given: Value) -> Result<Vec<Key>, Refused> {
    let mut keys = match types::base_type(given.type_oid()) {
        pg_sys::JSONBOID => keys_of_json(table, given.in_base_type())?,
        pg_sys::TEXTOID | pg_sys::UNKNOWNOID => return keys_of_text(table, &given.text()),
        _ => keys_of_array(table, given)?,
    };
    if keys.windows(2).any(|pair| !pair[0].has_types_of(&pair[1])) {
        keys = keys.into_iter().map(|key| key.in_column_types(table)).collect::<Result<_, _>>()?;
    }
    if let Some(typical) = keys.iter().find(|key| !key.is_absent()) {
        let order = KeyOrder::of_types(typical, table);
        keys.sort_by(|one, other| order.compare(one, other));
        keys.dedup_by(|one, other| order.compare(one, other).is_eq());
    }
    Ok(keys)
}

fn keys_of_array(table: &Table, given: Value) -> Result<Vec<Key>, Refused> {
    let Some(elements) = given.elements() else {
        return Err(Refused::Keys { table: table.name.clone(), type_name: types::type_name(given.type_oid()) });
    };
    let keys = elements.into_iter().map(|element| match element {
        Some(value) => Key::read(table, value),
        None => Err(null_key(table)),
    });
    keys.collect()
}

/// An array of objects of the key's columns; of plain values where the key has one column.
fn keys_of_json(table: &Table, given: Value) -> Result<Vec<Key>, Refused> {
    let document = Document::of(given);
    let Some(elements) = document.as_ref().and_then(Document::elements) else {
        return Err(Refused::Keys { table: table.name.clone(), type_name: types::type_name(given.type_oid()) });
    };
    let keys = elements.iter().map(|element| Key::from_json(table, element));
    keys.collect()
}

/// The text form of an array of the key's type, or of a JSON array.
fn keys_of_text(table: &Table, text: &CStr) -> Result<Vec<Key>, Refused> {
    let type_oid = if is_json_array(text.to_bytes()) { pg_sys::JSONBOID } else { array_of_texts() };
    match Input::of(type_oid).value(text) {
        Some(array) => keys(table, array),
        None => Err(null_key(table)),
    }
}

fn array_of_texts() -> Oid {
    pg_sys::TEXTARRAYOID
}

fn null_key(table: &Table) -> Refused {
    Refused::Key { table: table.name.clone(), columns: table.key_names(), problem: KeyProblem::Null(None) }
}
