//! Guards: a named resource that fences a whole transaction, whatever rows and tables it reads and writes.
//!
//! The stamp is a row of the extension's own table, which only these functions write: they act with the rights of that
//! table's owner, the caller needs none on it. A heavyweight lock decides who may be in at the same time, not row
//! locks: its queue is first in, first out, so a stream of transactions that share it cannot starve one that wants to
//! be alone. Invariant: a stamp is read, and written, only under that lock.

pub(crate) mod blockers;
pub(crate) mod evict;
mod holders;

use crate::errors::{Disclosed, Refused};
use crate::life;
use crate::row::arguments;
use crate::row::key::Key;
use crate::row::reset;
use crate::server::call::{Arguments, Call, Reply};
use crate::server::catalog;
use crate::server::locks::{LockMode, NamedLock, Purpose};
use crate::server::rights::{self, AsOwner};
use crate::server::session::{self, MainThread};
use crate::server::spi::Connection;
use crate::server::text::Bytes;
use crate::server::types::Value;
use crate::server::waiting::Awaited;
use crate::settings::accepted_number;
use crate::stats::Subject;
use crate::stats::memory::Counter;
use crate::stats::waits::Wait;
use crate::table::owner::OwnerArguments;
use crate::table::plans::{self, Values};
use crate::table::relation::{Column, Table};
use crate::table::statement::Statement;
use crate::table::tables;
use crate::table::verb::{Answer, Source, Verb};
use fence::Fence;
use fence::resource::{Bearer, GuardVerdict, Owned};
use pg_forms::text;
use pgrx::pg_sys::Oid;
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::rc::Rc;

/// An entry of the table's index must fit a third of a page, 2.7 kB; a name is for people.
const MAX_RESOURCE_BYTES: usize = 1024;
const TABLE: &CStr = c"guards";
const FENCE_COLUMN: &CStr = c"fence";
const OWNER_COLUMN: &CStr = c"owner";
/// A guard can be forgotten between being read and being stamped, by a transaction that ends just then.
const MAX_TRIES: usize = 3;
/// What an operator passes to [`fence_guard_forget`].
const FORGETTABLE: &str = "Pass a fence that no holder can have any more, such as the microseconds of a month ago.";

/// `fenced_guard(resource text, fence bigint[, life text[, owner text]])`: refuses a fence that is older than the stored one
/// or another owner's, and a caller that has read in another life of the server; else stamps the fence and keeps newer ones
/// out to the end of the transaction. Returns the fence.
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
    let owner = arguments::owner(&mut given)?.owner;
    // What is no token is refused before anything is waited for. Which life it is of can change while it waits.
    life::read_in(&life)?;
    Guard::open(resource)?.enter(&Entry { fence, owner, life: &life })?;
    Ok(Reply::from(fence))
}

/// `fence_guard_forget(older_than bigint)`: removes the guards with a fence below this one, and answers how many. Does
/// not wait for one that is being stamped.
pub(crate) fn fence_guard_forget(call: &Call) -> Result<Reply, Refused> {
    let older_than = call.arguments().number();
    let older_than =
        accepted_number(older_than).map_err(|refused| refused.of_chosen_fence("older_than", FORGETTABLE))?;
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
        number => {
            accepted_number(number).map_err(|refused| refused.of_chosen_fence("new_fence", reset::ADVICE))?.get() as i64
        }
    };
    let old = Guard::open(resource)?.reset(new)?;
    Ok(Reply::from(old))
}

/// Who wants to be admitted.
struct Entry<'c> {
    fence: Fence,
    owner: Option<Bytes<'c>>,
    /// The life of the server in which it has read.
    life: &'c CStr,
}

/// What a guard has stored.
struct Stamp {
    fence: Option<i64>,
    owner: Option<CString>,
}

/// A guard, and the right to read and write its row as long as this lives.
struct Guard {
    table: Rc<Table>,
    resource: CString,
    key: Key,
    lock: NamedLock,
    caller: Oid,
    has_waited: Cell<bool>,
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
        Ok(Guard { table, resource, key, lock, caller, has_waited: Cell::new(false), _owner: owner })
    }

    /// Admits the fence, and counts.
    fn enter(&self, entry: &Entry) -> Result<(), Refused> {
        self.admit(entry)?;
        Subject::Guard(&self.resource).count(Counter::Claims);
        Ok(())
    }

    /// Whoever has the stored fence shares the guard; a newer one waits until it is alone.
    fn admit(&self, entry: &Entry) -> Result<(), Refused> {
        self.take(LockMode::Asking);
        if self.judge(&self.stored(entry)?, entry)? == Way::Shared {
            // So that others can see who shares it from who asks. Nobody is waited for: what conflicts waits for this
            // transaction.
            self.lock.take(LockMode::Shared);
            return Ok(());
        }
        // Not kept while waiting to be alone: two that did so would wait for each other.
        self.lock.release(LockMode::Asking);
        self.take(LockMode::Alone);
        for _ in 0..MAX_TRIES {
            let stored = self.stored(entry)?;
            match self.judge(&stored, entry)? {
                Way::Shared => {
                    // Another transaction of this fence has stamped meanwhile.
                    self.lock.take(LockMode::Shared);
                    self.lock.release(LockMode::Alone);
                    return Ok(());
                }
                Way::Alone if self.stamp(&stored, entry)? => return Ok(()),
                Way::Alone => {}
            }
        }
        let (table, key, fence) = (self.table.name.clone(), self.key.text(&self.table), entry.fence.get() as i64);
        Err(Refused::Blocked { table, key, stored: Disclosed::Hidden, fence, verb: Verb::Claim.command() })
    }

    /// How the entry is admitted, if it is.
    fn judge(&self, stored: &Stamp, entry: &Entry) -> Result<Way, Refused> {
        let stamp = Owned { fence: stored.fence, owner: stored.owner.as_deref().map(CStr::to_bytes) };
        let bearer = Bearer { fence: entry.fence, owner: entry.owner.as_ref().map(Bytes::bytes) };
        match GuardVerdict::of_owned(stamp, bearer, life::read_in(entry.life)?) {
            GuardVerdict::Shared => Ok(Way::Shared),
            GuardVerdict::Alone => Ok(Way::Alone),
            GuardVerdict::Stale(newer) => Err(self.stale(newer, entry.fence)),
            GuardVerdict::Duplicate => Err(self.duplicate(stored, entry.fence)),
            GuardVerdict::Outlived => Err(self.outlived(entry.fence)),
        }
    }

    fn reset(&self, new: i64) -> Result<Option<i64>, Refused> {
        self.take(LockMode::Alone);
        let found = plans::run(&self.statement(Verb::Read, None)?, &self.values())?;
        if found.rows == 0 {
            return Err(Refused::NoGuard { resource: self.resource.clone() });
        }
        let _writing = Writing::begin();
        reset::reset(&self.statement(Verb::Lock, None)?, &self.key, new)
    }

    /// Takes the lock of the guard. A wait is shown and counted.
    fn take(&self, mode: LockMode) {
        self.lock.take_or_wait(mode, || {
            let is_first = !self.has_waited.replace(true);
            Wait::begin(Subject::Guard(&self.resource), Awaited::Guard, is_first)
        });
    }

    fn stored(&self, entry: &Entry) -> Result<Stamp, Refused> {
        // Where nobody speaks of owners the fence is read alone, which costs less.
        if entry.owner.is_none() {
            let found = plans::run(&self.statement(Verb::ReadUnowned, None)?, &self.values())?;
            if found.rows == 1 {
                return Ok(Stamp { fence: found.fence, owner: None });
            }
        }
        let found = plans::run(&self.statement(Verb::Read, None)?, &self.values())?;
        Ok(Stamp { fence: found.fence, owner: found.owner.map(Value::text) })
    }

    fn stamp(&self, stored: &Stamp, entry: &Entry) -> Result<bool, Refused> {
        let _writing = Writing::begin();
        let fence = Value::of_fence(entry.fence);
        if stored.fence.is_none() {
            let (columns, parameters) = match entry.owner {
                None => ("resource, fence", "$1, $2"),
                Some(_) => ("resource, fence, owner", "$1, $2, $3"),
            };
            let into = text!["INSERT INTO ", self.table.qualified_name(), " (", columns, ") VALUES (", parameters, ")"];
            let resource = self.key.values.iter().copied();
            let values: Vec<Value> = resource.chain([fence]).chain(entry.owner.map(Value::of_text)).collect();
            let connection = Connection::open()?;
            let inserted = connection.run_direct(text![into, " ON CONFLICT DO NOTHING"], &values)?;
            connection.close()?;
            return Ok(inserted == 1);
        }
        let mut values = self.values();
        values.push(Some(fence.datum()));
        values.extend(entry.owner.map(|owner| Some(owner.datum())));
        Ok(plans::run(&self.statement(Verb::Claim, entry.owner)?, &values)?.rows == 1)
    }

    fn statement<'a>(&'a self, verb: Verb, owner: Option<Bytes<'a>>) -> Result<Statement<'a>, Refused> {
        let fence: &Column = self.table.fence_column(FENCE_COLUMN)?;
        let owner = OwnerArguments { owner, column: Some(OWNER_COLUMN) }.of(&self.table, fence)?;
        let (answer, patch) = (Answer::Fence, &[][..]);
        Ok(Statement {
            table: &self.table,
            fence,
            owner,
            fits: &self.key.fits,
            verb,
            answer,
            patch,
            source: Source::Parameters,
        })
    }

    /// The value of the key, with room for the fence and its owner.
    fn values(&self) -> Values {
        let mut values = Values::with_capacity(self.key.values.len() + 2);
        self.key.values.iter().for_each(|value| values.push(Some(value.datum())));
        values
    }

    fn outlived(&self, fence: Fence) -> Refused {
        Subject::Guard(&self.resource).count(Counter::Outlived);
        Refused::OutlivedGuard { resource: self.resource.clone(), fence, since: life::since() }
    }

    fn stale(&self, stored: i64, fence: Fence) -> Refused {
        Subject::Guard(&self.resource).count_stale(Counter::ClaimsStale, fence, Some(stored));
        let stored = self.may_read().then_some(stored);
        Refused::StaleGuard { resource: self.resource.clone(), stored, fence }
    }

    fn duplicate(&self, stored: &Stamp, fence: Fence) -> Refused {
        Subject::Guard(&self.resource).count(Counter::DuplicateFence);
        let stored = stored.owner.clone().filter(|_| self.may_read());
        Refused::DuplicateGuard { resource: self.resource.clone(), stored, fence }
    }

    /// What is stored is shown only to those who could read it themselves.
    fn may_read(&self) -> bool {
        let reads = |role| rights::may_read_table(self.table.oid, role);
        reads(self.caller) && reads(rights::client_user())
    }
}

/// How a transaction is admitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Together with others.
    Shared,
    /// Once it is alone.
    Alone,
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

pub(crate) fn resource(given: &mut Arguments) -> Result<Value, Refused> {
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
