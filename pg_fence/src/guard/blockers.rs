//! `fence_guard_blockers`: who holds which guard.
//!
//! Invariant: a caller learns of those whose sessions `pg_stat_activity` would show to it, and of nobody else.

use crate::errors::Refused;
use crate::guard::holders::{Guards, Holder};
use crate::server::call::{Call, Reply};
use crate::server::processes;
use crate::server::rights;
use crate::server::spi::Connection;
use crate::server::types;
use pg_forms::text;
use pgrx::pg_sys::{Datum, Oid};

/// `guard_holders()`: the holders of guards, each with the name of the guard, the process, the fence, how many wait for the
/// guard, and the number of a prepared transaction, which has no process.
pub(crate) fn guard_holders(call: &Call) -> Result<Reply, Refused> {
    let rows = call.rows(None);
    let watcher = rights::current_user();
    for held in Guards::open()?.held() {
        for holder in &held.holders {
            if !is_shown(holder, watcher)? {
                continue;
            }
            let is_prepared = holder.transaction.is_prepared();
            rows.put_fields(&[
                held.resource.as_deref().map(types::text_datum),
                (!is_prepared).then(|| Datum::from(holder.transaction.pid)),
                holder.fence.map(Datum::from),
                Some(Datum::from(held.waiting as i64)),
                holder.number.filter(|_| is_prepared).map(Datum::from),
            ]);
        }
    }
    Ok(Reply::Handed)
}

fn is_shown(holder: &Holder, watcher: Oid) -> Result<bool, Refused> {
    match holder.number {
        Some(number) if holder.transaction.is_prepared() => may_watch_prepared(watcher, number),
        _ => {
            let session = processes::session_in(&holder.transaction);
            Ok(session.is_some_and(|session| processes::may_watch(watcher, session.role)))
        }
    }
}

/// The same rule for the role that has prepared a transaction.
fn may_watch_prepared(watcher: Oid, number: u32) -> Result<bool, Refused> {
    if processes::may_watch(watcher, None) {
        return Ok(true);
    }
    let connection = Connection::open()?;
    let answer = connection.read_text(text![
        "SELECT 'true' FROM pg_catalog.pg_prepared_xacts AS p ",
        "JOIN pg_catalog.pg_roles AS r ON r.rolname OPERATOR(pg_catalog.=) p.owner ",
        "WHERE p.transaction OPERATOR(pg_catalog.=) '",
        number,
        "'::pg_catalog.xid AND pg_catalog.pg_has_role(",
        watcher.to_u32(),
        "::pg_catalog.oid, r.oid, 'USAGE')",
    ])?;
    connection.close()?;
    Ok(answer.is_some())
}
