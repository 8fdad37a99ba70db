//! Guards: a named resource that fences a whole transaction, whatever rows and tables it reads and writes.
//!
//! The stamp is a row of the extension's own table, which only these functions write: they act with the rights of that
//! table's owner, the caller needs none on it. A heavyweight lock decides who may be in at the same time, not row
//! locks: its queue is first in, first out, so a stream of transactions that share it cannot starve one that wants to
//! be alone. Invariant: a stamp is read, and written, only under that lock.

use crate::errors::{Disclosed, Refused};
use crate::life;
use crate::row::key::Key;
use crate::row::reset;
use crate::server::call::{Arguments, Call, Reply};
use crate::server::catalog;
use crate::server::locks::{LockMode, NamedLock, Purpose};
use crate::server::rights::{self, AsOwner};
use crate::server::session::{self, MainThread};
use crate::server::spi::Connection;
use crate::server::types::Value;
use crate::settings::accepted_number;
use crate::stats::Subject;
use crate::stats::memory::Counter;
use crate::table::plans::{self, Values};
use crate::table::relation::{Column, Table};
use crate::table::statement::Statement;
use crate::table::tables;
use crate::table::verb::{Answer, Verb};
use fence::Fence;
use fence::resource::GuardVerdict;
use pg_forms::text;
use pgrx::pg_sys::Oid;
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::rc::Rc;

/// An entry of the table's index must fit a third of a page, 2.7 kB; a name is for people.
const MAX_RESOURCE_BYTES: usize = 1024;
const TABLE: &CStr = c"guards";
const FENCE_COLUMN: &CStr = c"fence";
/// A guard can be forgotten between being read and being stamped, by a transaction that ends just then.
const MAX_TRIES: usize = 3;

/// `fenced_guard(resource text, fence bigint[, life text])`: refuses a fence that is older than the stored one, and a caller
/// that has read in another life of the server; else stamps the fence and keeps newer ones out to the end of the
/// transaction. Returns the fence.
pub(crate) fn fenced_guard(call: &Call) -> Result<Reply, Refused> {
    session::refuse_when_read_only(c"fenced_guard()");
    if !session::is_in_transaction_block() {
        return Err(Refused::NoBlock { function: "fenced_guard()" });
    }
    if session::reads_one_snapshot() {
        return Err(Refused::GuardLevel);
    }
    let mut given = call.arguments();
    let (resource, fence) = (resource(&mut given)?, accepted_number(given.number())?);
    let life = given.text_if_given("life")?;
    // What is no token is refused before anything is waited for. Which life it is of can change while it waits.
    life::read_in(&life)?;
    Guard::open(resource)?.enter(fence, &life)?;
    Ok(Reply::from(fence))
}

/// `fence_guard_forget(older_than bigint)`: removes the guards with a fence below this one, and answers how many. Does
/// not wait for one that is being stamped.
pub(crate) fn fence_guard_forget(call: &Call) -> Result<Reply, Refused> {
    let older_than = accepted_number(call.arguments().number())?;
    let oid = guard_table()?;
    let _owner = AsOwner::of(oid);
    let table = tables::open(oid)?;
    let name = table.qualified_name();
    let sql = text![
        "DELETE FROM ONLY ",
        &name[..],
        " WHERE resource OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT resource FROM ONLY ",
        &name[..],
        " WHERE fence OPERATOR(pg_catalog.<) $1 FOR UPDATE SKIP LOCKED))",
    ];
    let connection = Connection::open()?;
    let _writing = Writing::begin();
    let removed = connection.run_direct(sql, &[Value::of_fence(older_than)])?;
    connection.close()?;
    Ok(Reply::from(removed as i64))
}

/// `fence_guard_reset(resource text, new_fence bigint)`: stores a fence whatever is stored, and answers what was. 0
/// stands for never stamped. Waits until it is alone, as a newer fence does. Written to the log.
pub(crate) fn fence_guard_reset(call: &Call) -> Result<Reply, Refused> {
    const NEVER_STAMPED: i64 = 0;
    let mut given = call.arguments();
    let resource = resource(&mut given)?;
    let new = match given.number() {
        Some(NEVER_STAMPED) => NEVER_STAMPED,
        number => accepted_number(number)?.get() as i64,
    };
    let old = Guard::open(resource)?.reset(new)?;
    Ok(Reply::from(old))
}

/// A guard, and the right to read and write its row as long as this lives.
struct Guard {
    table: Rc<Table>,
    resource: CString,
    key: Key,
    lock: NamedLock,
    caller: Oid,
    _owner: AsOwner,
}

impl Guard {
    fn open(resource: Value) -> Result<Guard, Refused> {
        let caller = rights::current_user();
        let oid = guard_table()?;
        let owner = AsOwner::of(oid);
        let table = tables::open(oid)?;
        let key = Key::read(&table, resource)?;
        let resource = resource.text();
        let lock = NamedLock::of(Purpose::Guard, resource.to_bytes());
        Ok(Guard { table, resource, key, lock, caller, _owner: owner })
    }

    /// Admits the fence, and counts.
    fn enter(&self, fence: Fence, life: &CStr) -> Result<(), Refused> {
        self.admit(fence, life)?;
        Subject::Guard(&self.resource).count(Counter::Claims);
        Ok(())
    }

    /// Whoever has the stored fence shares the guard; a newer one waits until it is alone.
    fn admit(&self, fence: Fence, life: &CStr) -> Result<(), Refused> {
        self.lock.take(LockMode::Shared);
        match GuardVerdict::of(self.stored()?, fence, life::read_in(life)?) {
            GuardVerdict::Shared => return Ok(()),
            GuardVerdict::Stale(stored) => return Err(self.stale(stored, fence)),
            GuardVerdict::Outlived | GuardVerdict::Duplicate => return Err(self.outlived(fence)),
            // Not kept while waiting to be alone: two that did so would wait for each other.
            GuardVerdict::Alone => self.lock.release(LockMode::Shared),
        }
        self.lock.take(LockMode::Alone);
        for _ in 0..MAX_TRIES {
            let stored = self.stored()?;
            match GuardVerdict::of(stored, fence, life::read_in(life)?) {
                GuardVerdict::Stale(stored) => return Err(self.stale(stored, fence)),
                GuardVerdict::Outlived | GuardVerdict::Duplicate => return Err(self.outlived(fence)),
                GuardVerdict::Shared => {
                    // Another transaction of this fence has stamped meanwhile.
                    self.lock.take(LockMode::Shared);
                    self.lock.release(LockMode::Alone);
                    return Ok(());
                }
                GuardVerdict::Alone if self.stamp(stored, fence)? => return Ok(()),
                GuardVerdict::Alone => {}
            }
        }
        let (table, key, fence) = (self.table.name.clone(), self.key.text(&self.table), fence.get() as i64);
        Err(Refused::Blocked { table, key, stored: Disclosed::Hidden, fence, verb: Verb::Claim.command() })
    }

    fn reset(&self, new: i64) -> Result<Option<i64>, Refused> {
        self.lock.take(LockMode::Alone);
        let found = plans::run(&self.statement(Verb::Read)?, &self.values())?;
        if found.rows == 0 {
            return Err(Refused::NoGuard { resource: self.resource.clone() });
        }
        let _writing = Writing::begin();
        reset::reset(&self.statement(Verb::Lock)?, &self.key, new)
    }

    fn stored(&self) -> Result<Option<i64>, Refused> {
        Ok(plans::run(&self.statement(Verb::Read)?, &self.values())?.fence)
    }

    fn stamp(&self, stored: Option<i64>, fence: Fence) -> Result<bool, Refused> {
        let _writing = Writing::begin();
        if stored.is_none() {
            let into = text!["INSERT INTO ", self.table.qualified_name(), " (resource, fence) VALUES ($1, $2)"];
            let resource = self.key.values.iter().copied();
            let values: Vec<Value> = resource.chain([Value::of_fence(fence)]).collect();
            let connection = Connection::open()?;
            let inserted = connection.run_direct(text![into, " ON CONFLICT DO NOTHING"], &values)?;
            connection.close()?;
            return Ok(inserted == 1);
        }
        let mut values = self.values();
        values.push(Some(Value::of_fence(fence).datum()));
        Ok(plans::run(&self.statement(Verb::Claim)?, &values)?.rows == 1)
    }

    fn statement(&self, verb: Verb) -> Result<Statement<'_>, Refused> {
        let fence: &Column = self.table.fence_column(FENCE_COLUMN)?;
        Ok(Statement { table: &self.table, fence, fits: &self.key.fits, verb, answer: Answer::Fence, patch: &[] })
    }

    /// The value of the key, with room for the fence.
    fn values(&self) -> Values {
        let mut values = Values::with_capacity(self.key.values.len() + 1);
        self.key.values.iter().for_each(|value| values.push(Some(value.datum())));
        values
    }

    fn outlived(&self, fence: Fence) -> Refused {
        Subject::Guard(&self.resource).count(Counter::Outlived);
        Refused::OutlivedGuard { resource: self.resource.clone(), fence, since: life::since() }
    }

    /// The stored fence is shown only to those who could read it themselves.
    fn stale(&self, stored: i64, fence: Fence) -> Refused {
        Subject::Guard(&self.resource).count_stale(Counter::ClaimsStale, fence, Some(stored));
        let reads = |role| rights::may_read_table(self.table.oid, role);
        let may_read = reads(self.caller) && reads(rights::client_user());
        Refused::StaleGuard { resource: self.resource.clone(), stored: may_read.then_some(stored), fence }
    }
}

static IS_WRITING: MainThread<Cell<bool>> = MainThread(Cell::new(false));

/// Opens the table of the guards, as long as this lives, to the statement that is run meanwhile: nothing but it runs
/// then.
struct Writing(());

impl Writing {
    fn begin() -> Writing {
        IS_WRITING.set(true);
        Writing(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        IS_WRITING.set(false);
    }
}

/// `refuse_guards()`, the trigger of the table of the guards: refuses what these functions do not write themselves. New
/// rows pass, which a restore brings.
pub(crate) fn refuse_guards(call: &Call) -> Result<Reply, Refused> {
    call.trigger().ok_or(Refused::NotATrigger)?;
    if IS_WRITING.get() { Ok(Reply::Void) } else { Err(Refused::GuardWrite) }
}

fn resource(given: &mut Arguments) -> Result<Value, Refused> {
    let resource = given.text().ok_or(Refused::NullArgument("resource"))?;
    let bytes = resource.text().count_bytes();
    if bytes == 0 || bytes > MAX_RESOURCE_BYTES {
        return Err(Refused::ResourceLength { bytes, max: MAX_RESOURCE_BYTES });
    }
    Ok(resource)
}

/// The oid of the table of the guards.
pub(crate) fn guard_table() -> Result<Oid, Refused> {
    let schema = catalog::internals().ok_or(Refused::NoGuardTable)?;
    catalog::relation_in(schema, TABLE).ok_or(Refused::NoGuardTable)
}
