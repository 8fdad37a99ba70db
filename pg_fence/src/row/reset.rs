//! Setting the stored fence of a row by hand: the way out when a wrong fence locks out every holder.

use crate::errors::Refused;
use crate::protect::passes::OwnPass;
use crate::row::arguments::target;
use crate::row::disclosure::disclosed;
use crate::row::key::Key;
use crate::server::call::{Call, Reply};
use crate::server::log;
use crate::server::types::Value;
use crate::settings::accepted_fence;
use crate::table::owner::OwnerArguments;
use crate::table::plans::{self, Values};
use crate::table::relation::Table;
use crate::table::statement::{OWNER_CHANGED, Statement};
use crate::table::tables;
use crate::table::verb::{Answer, Source, Verb};
use fence::resource::NEVER_CLAIMED;
use pg_forms::text;
use pgrx::pg_sys::{Datum, Oid};
use std::ffi::CStr;

/// What an operator passes as the new fence.
pub(crate) const ADVICE: &str = "Pass 0 for never stamped, or the newest fence that the lock has issued.";

/// `fence_reset(target regclass, key, new_fence bigint, fence_column name, owner_column name)`: stores the fence whatever is
/// there, as nobody's, and answers what was there. 0 stands for never claimed. For the owner of the table alone; written to
/// the log.
pub(crate) fn fence_reset(call: &Call) -> Result<Reply, Refused> {
    let given = ResetArguments::of(call)?;
    let table = tables::open_as_owner(given.table)?;
    let fence = table.fence_column(given.fence_column)?;
    let new = match given.new_fence {
        Some(NEVER_CLAIMED) => NEVER_CLAIMED,
        number => {
            let chosen = accepted_fence(&table, fence, number);
            chosen.map_err(|refused| refused.of_chosen_fence("new_fence", ADVICE))?.get() as i64
        }
    };
    let owner = OwnerArguments { owner: None, column: given.owner_column }.of(&table, fence)?;
    let key = Key::read(&table, given.key)?;
    let (verb, answer) = (Verb::Lock, Answer::Fence);
    let lock = Statement {
        table: &table,
        fence,
        owner,
        fits: &key.fits,
        verb,
        answer,
        patch: &[],
        source: Source::Parameters,
    };
    let old = reset(&lock, &key, new)?;
    Ok(Reply::from(old))
}

struct ResetArguments<'c> {
    table: Oid,
    key: Value,
    new_fence: Option<i64>,
    fence_column: &'c CStr,
    owner_column: Option<&'c CStr>,
}

impl<'c> ResetArguments<'c> {
    fn of(call: &'c Call) -> Result<ResetArguments<'c>, Refused> {
        let mut given = call.arguments();
        Ok(ResetArguments {
            table: target(&mut given)?,
            key: given.value("key")?,
            new_fence: given.number(),
            fence_column: given.fence_column()?,
            owner_column: given.name(),
        })
    }
}

/// Stores the new fence in the row that `lock` finds, as nobody's, and answers the old one. Logged.
pub(crate) fn reset(lock: &Statement, key: &Key, new: i64) -> Result<Option<i64>, Refused> {
    let table = lock.table;
    let mut values = Values::with_capacity(key.fits.len() + 1);
    values.extend(key.datums());
    let found = plans::run(lock, &values)?;
    values.push(Some(Datum::from(new)));
    let pass = OwnPass::new(table, key, Verb::Reset, new);
    let written = plans::run(&lock.plain(Verb::Reset), &values)?;
    let misused = pass.end(|_| written.rows == 1);
    let key_text = || key.text(table);
    match (found.rows, written.rows) {
        (1, 1) if written.fence == Some(new) => {
            if let Some(write) = misused {
                return Err(Refused::Unfenced { table: table.name.clone(), write });
            }
        }
        (1, 1) if written.fence == Some(OWNER_CHANGED) => {
            return Err(Refused::OwnerPutBack { table: table.name.clone(), key: key_text(), fence: new });
        }
        (1, 1) => {
            return Err(Refused::PutBack {
                table: table.name.clone(),
                key: key_text(),
                stored: disclosed(table, lock.fence, written.fence),
                fence: new,
            });
        }
        (1, _) => {
            let (table, key, verb) = (table.name.clone(), key_text(), Verb::Reset.command());
            let stored = disclosed(lock.table, lock.fence, found.fence);
            return Err(Refused::Blocked { table, key, stored, fence: new, verb });
        }
        _ => return Err(key.no_row(table, new)),
    }
    log(table, key, found.fence, new);
    Ok(found.fence)
}

fn log(table: &Table, key: &Key, old: Option<i64>, new: i64) {
    let old = old.map_or_else(|| text!["null"], |old| text![old]);
    log::log_line(text![
        "pg_fence: fence of ",
        table.qualified_name(),
        " ",
        key.text(table),
        " reset from ",
        old,
        " to ",
        new
    ]);
}
