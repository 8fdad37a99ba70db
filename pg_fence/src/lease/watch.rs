//! Who has which lock, for those who watch: nothing is changed, and nobody is waited for.
//!
//! Works on a standby too, as far as it has replayed. Invariant: the owner, by which a lock can be released, is shown only to
//! those who could acquire it, or may see what all sessions do.

use crate::errors::Refused;
use crate::lease::arguments;
use crate::lease::names::Names;
use crate::lease::row::Row;
use crate::lease::store::Store;
use crate::server::boot::{self, Moment};
use crate::server::call::{Call, Reply};
use crate::server::locks::RelationLock;
use crate::server::rights;
use crate::server::session;
use crate::server::spi::Connection;
use crate::server::types;
use fence::lock::lease::{Millis, State};
use pg_forms::text;
use pgrx::pg_sys::Datum;

/// `fencelock_check(lock text, fence bigint)`: whether this fence is the live hold of the lock now.
pub(crate) fn fencelock_check(call: &Call) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    let (lock, fence) = (arguments::lock(&mut given)?, arguments::fence(&mut given, "fence")?);
    let moment = boot::moment();
    let row = Store::open(RelationLock::Reads)?.find_committed(lock, &moment);
    let hold = row.as_ref().and_then(Row::hold);
    Ok(Reply::from(hold.is_some_and(|hold| hold.lease.is_live_hold_of(fence, moment.now.steady_us))))
}

/// `fencelock_inspect(lock text)`: who has the lock, as columns; all null where it is free.
pub(crate) fn fencelock_inspect(call: &Call) -> Result<Reply, Refused> {
    let lock = arguments::lock(&mut call.arguments())?;
    let moment = boot::moment();
    let row = Store::open(RelationLock::Reads)?.find_committed(lock, &moment);
    let shown = row.and_then(|row| shown(&row, lock.bytes(), shows_owners().ok()?, &moment));
    let fields = shown.map_or([None; SHOWN], |shown| shown.fields);
    Ok(call.record(&fields))
}

/// `leases()`: the same of all locks that are not free, each with its name and what distinguishes its queue in `pg_locks`.
pub(crate) fn leases(call: &Call) -> Result<Reply, Refused> {
    let rows = call.rows(None);
    let moment = boot::moment();
    let shows_owners = shows_owners()?;
    for (name, row) in Store::open(RelationLock::Reads)?.all_committed(&moment) {
        if let Some(shown) = shown(&row, &name, shows_owners, &moment) {
            let mut fields = vec![Some(types::text_datum(&name))];
            fields.extend(shown.fields);
            fields.extend(shown.queue.map(|number| Some(Datum::from(i64::from(number)))));
            rows.put_fields(&fields);
        }
    }
    Ok(Reply::Handed)
}

/// State, owner, fence, the time left, the time it has been held, what is left of the longest hold, who waits.
const SHOWN: usize = 7;

struct Shown {
    fields: [Option<Datum>; SHOWN],
    queue: [u32; 2],
}

/// A lock that is not free.
fn shown(row: &Row, name: &[u8], shows_owner: bool, moment: &Moment) -> Option<Shown> {
    let now_us = moment.now.steady_us;
    let hold = row.hold()?;
    let state = match hold.lease.state(now_us) {
        State::Held => "held",
        State::Delay => "delay",
        State::Free => return None,
    };
    let names = Names::of(name);
    let ms = |span: Millis| Some(Datum::from(span.0 as i64));
    let bigint = |number: u64| Some(Datum::from(number as i64));
    // A standby has no queues.
    let waiting = if session::is_in_recovery() { 0 } else { names.waiting() };
    let fields = [
        Some(types::text_datum(state.as_bytes())),
        shows_owner.then(|| types::text_datum(hold.owner)),
        bigint(hold.lease.fence.get()),
        ms(hold.lease.left(now_us)),
        bigint(hold.lease.held_us(now_us) / 1_000),
        hold.lease.max_hold_left(now_us).and_then(ms),
        bigint(waiting as u64),
    ];
    Some(Shown { fields, queue: names.queue.numbers() })
}

/// Whether both the caller and the client may know owners.
fn shows_owners() -> Result<bool, Refused> {
    let [caller, client] = [rights::current_user(), rights::client_user()].map(|role| role.to_u32());
    let sql = text![
        "SELECT pg_catalog.bool_and(pg_catalog.pg_has_role(r.role, 'pg_read_all_stats', 'USAGE') OR EXISTS (SELECT FROM ",
        "pg_catalog.pg_extension AS e JOIN pg_catalog.pg_proc AS p ON p.pronamespace OPERATOR(pg_catalog.=) e.extnamespace ",
        "WHERE e.extname OPERATOR(pg_catalog.=) 'pg_fence' AND p.proname OPERATOR(pg_catalog.=) 'fencelock_acquire' ",
        "AND pg_catalog.has_function_privilege(r.role, p.oid, 'EXECUTE')))::pg_catalog.text ",
        "FROM (VALUES (",
        caller,
        "::pg_catalog.oid), (",
        client,
        "::pg_catalog.oid)) AS r (role)",
    ];
    let connection = Connection::open()?;
    let answer = connection.read_text(sql)?;
    connection.close()?;
    Ok(answer.is_some_and(|answer| answer.as_bytes() == b"true"))
}
