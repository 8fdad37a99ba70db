//! Writes of many rows in one call, each under its claim, with a verdict on each.

use crate::errors::Refused;
use crate::row::arguments::{owner, target};
use crate::row::keys::{Keys, Strictness};
use crate::row::many::{Judged, Many, RowVerdict};
use crate::row::patch::Patches;
use crate::server::call::{Call, Reply};
use crate::server::elements::Elements;
use crate::server::json::Document;
use crate::server::rows::Rows;
use crate::server::types::{Value, text_datum};
use crate::settings::accepted_fence;
use crate::table::owner::OwnerArguments;
use crate::table::relation::{Column, Table};
use crate::table::tables;
use crate::table::verb::{Answer, Verb};
use fence::Fence;
use pgrx::pg_sys::{Datum, Oid};
use std::ffi::CStr;

/// `fenced_update_many(target regclass, keys, fences bigint[], patches jsonb, fence_column name, owner text, owner_column name)`: a verdict on each row.
pub(crate) fn fenced_update_many(call: &Call) -> Result<Reply, Refused> {
    write(call, Verb::Update)
}

/// `fenced_write_many(target regclass, keys, fences bigint[], patches jsonb, fence_column name, owner text, owner_column name)`: the same, and stamps.
pub(crate) fn fenced_write_many(call: &Call) -> Result<Reply, Refused> {
    write(call, Verb::Write)
}

/// `fenced_delete_many(target regclass, keys, fences bigint[], fence_column name, owner text, owner_column name)`: a verdict on each row.
pub(crate) fn fenced_delete_many(call: &Call) -> Result<Reply, Refused> {
    write(call, Verb::Delete)
}

fn write(call: &Call, verb: Verb) -> Result<Reply, Refused> {
    let given = ManyArguments::of(call, verb)?;
    let table = tables::open(given.table)?;
    let fence_column = table.fence_column(given.fence_column)?;
    let owner = given.owner.of(&table, fence_column)?;
    let keys = Keys::read(&table, given.keys, Strictness::EachCounts)?;
    let fences = fences(&table, fence_column, given.fences, keys.len())?;
    let patches = given.patches.as_ref();
    let patches = patches.map(|patches| Patches::read(&table, fence_column, owner, patches, keys.len())).transpose()?;
    let rows = call.rows(None);
    let (answer, patches) = (Answer::Fence, patches.as_ref());
    let many =
        Many { table: &table, fence_column, owner, keys: &keys, fences: &fences, verb, answer, patches, rows: None };
    answer_with(&rows, &many.make()?);
    Ok(Reply::Handed)
}

struct ManyArguments<'c> {
    table: Oid,
    keys: Value,
    fences: Value,
    patches: Option<Document>,
    fence_column: &'c CStr,
    owner: OwnerArguments<'c>,
}

impl<'c> ManyArguments<'c> {
    fn of(call: &'c Call, verb: Verb) -> Result<ManyArguments<'c>, Refused> {
        let mut given = call.arguments();
        Ok(ManyArguments {
            table: target(&mut given)?,
            keys: given.value("keys")?,
            fences: given.numbers("fences")?,
            patches: (verb != Verb::Delete).then(|| given.document("patches")).transpose()?,
            fence_column: given.fence_column()?,
            owner: owner(&mut given)?,
        })
    }
}

/// The fences of so many keys: one for each, or one for all. Errors: one is out of range; there are others than that.
fn fences(table: &Table, column: &Column, given: Value, keys: usize) -> Result<Vec<Fence>, Refused> {
    const ARGUMENT: &str = "fences";
    let Some(elements) = Elements::of(given) else { return Err(Refused::NullArgument(ARGUMENT)) };
    if elements.dimensions > 1 {
        return Err(Refused::Dimensions(ARGUMENT));
    }
    if elements.len() != keys && elements.len() != 1 {
        return Err(Refused::ArrayLength { argument: ARGUMENT, given: elements.len(), keys });
    }
    let mut fences: Vec<Fence> = Vec::with_capacity(elements.len());
    for (n, element) in elements.iter().enumerate() {
        let number = element.map(|number| number.datum().value() as i64);
        let fence = match fences.last() {
            Some(&before) if number == Some(before.get() as i64) => before,
            _ => accepted_fence(table, column, number).map_err(|refused| refused.of_element(ARGUMENT, n + 1))?,
        };
        fences.push(fence);
    }
    elements.free();
    Ok(fences)
}

/// Answers in the order of the keys.
fn answer_with(rows: &Rows, judged: &[Judged]) {
    const FIELDS: usize = 3;
    const AT_ONCE: usize = 1_000;
    let texts = RowVerdict::ALL.map(|verdict| text_datum(verdict.word()));
    for (n, some) in judged.chunks(AT_ONCE).enumerate() {
        let (mut values, mut nulls) = (Vec::with_capacity(some.len()), Vec::with_capacity(some.len()));
        for (place, row) in (n * AT_ONCE + 1..).zip(some) {
            let (verdict, stored) = (texts[row.verdict as usize], row.stored().map_or(Datum::null(), Datum::from));
            values.push([Datum::from(place as i64), verdict, stored]);
            nulls.push([false, false, row.stored().is_none()]);
        }
        rows.put_all(FIELDS, values.as_flattened(), nulls.as_flattened());
    }
}

impl RowVerdict {
    /// Each, as it is numbered.
    const ALL: [RowVerdict; 7] = [
        RowVerdict::Written,
        RowVerdict::Stale,
        RowVerdict::Unclaimed,
        RowVerdict::Missing,
        RowVerdict::Outlived,
        RowVerdict::Blocked,
        RowVerdict::DuplicateFence,
    ];

    /// As it is answered.
    fn word(self) -> &'static [u8] {
        match self {
            RowVerdict::Written => b"written",
            RowVerdict::Stale => b"stale",
            RowVerdict::Unclaimed => b"unclaimed",
            RowVerdict::Missing => b"missing",
            RowVerdict::Outlived => b"outlived",
            RowVerdict::Blocked => b"blocked",
            RowVerdict::DuplicateFence => b"duplicate_fence",
        }
    }
}
