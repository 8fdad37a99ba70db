//! Prepared statements that a session keeps, and running them.
//!
//! A plan is found by what its statement is made of, so a change of the same columns of the same table uses one plan.
//! The server re-plans by itself when a table changes; `relation` drops plans whose text no longer fits. Invariant: a
//! plan is freed at the start of a call, never while a callback or an error is under way.

use crate::errors::Refused;
use crate::server::MainThread;
use crate::statement::{Answer, Statement, Verb};
use crate::text::c_string;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::rc::Rc;

/// The plans of a table's statements.
#[derive(Default)]
pub struct Plans(RefCell<BTreeMap<Box<[u32]>, Rc<Plan>>>);

/// A prepared statement.
pub struct Plan(pg_sys::SPIPlanPtr);

/// A connection to the server's own SQL. One that is dropped without `close` is closed by the abort that follows.
pub struct Connection(());

/// The values of a statement's parameters, in order.
pub struct Values {
    datums: Vec<Datum>,
    nulls: Vec<c_char>,
}

/// What a statement did.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// How many rows it reached.
    pub rows: u64,
    /// The fence that it answered, if it reached one row and [`Statement::answers_fence`].
    pub fence: Option<i64>,
    /// The row that it answered, if it reached one. It outlives the connection.
    pub row: Option<Datum>,
}

static DROPPED: MainThread<RefCell<Vec<Plan>>> = MainThread(RefCell::new(Vec::new()));

/// Frees the plans that were dropped since the last call.
pub fn free_dropped() {
    loop {
        let Some(plan) = DROPPED.borrow_mut().pop() else { return };
        // SAFETY: the plan was prepared and kept, and nobody holds it any more.
        unsafe { pg_sys::SPI_freeplan(plan.0) };
        std::mem::forget(plan);
    }
}

impl Plans {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.borrow().len()
    }

    /// Drops all. One that runs stays until it is done.
    pub fn clear(&self) {
        self.0.take();
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        DROPPED.borrow_mut().push(Plan(self.0));
    }
}

impl Values {
    /// None yet, with room for `count`.
    pub fn with_capacity(count: usize) -> Values {
        Values { datums: Vec::with_capacity(count), nulls: Vec::with_capacity(count) }
    }

    /// Adds a value; `None` is null.
    pub fn push(&mut self, value: Option<Datum>) {
        const IS_VALUE: c_char = b' ' as c_char;
        const IS_NULL: c_char = b'n' as c_char;
        self.datums.push(value.unwrap_or(Datum::null()));
        self.nulls.push(if value.is_some() { IS_VALUE } else { IS_NULL });
    }
}

impl Connection {
    /// Connects.
    pub fn open() -> Result<Connection, Refused> {
        // SAFETY: it opens a level that `close` or the end of the (sub)transaction closes.
        match unsafe { pg_sys::SPI_connect() } {
            code if code == pg_sys::SPI_OK_CONNECT as c_int => Ok(Connection(())),
            code => Err(Refused::Server { function: "SPI_connect", code }),
        }
    }

    /// Disconnects, and goes back to the memory context of the caller.
    pub fn close(self) -> Result<(), Refused> {
        // SAFETY: the connection is open; calls nest, so it is the innermost one.
        match unsafe { pg_sys::SPI_finish() } {
            code if code == pg_sys::SPI_OK_FINISH as c_int => Ok(()),
            code => Err(Refused::Server { function: "SPI_finish", code }),
        }
    }

    /// Runs a statement with values for its parameters: the key's, the fence, the patch's.
    pub fn run(&self, statement: &Statement, values: &mut Values) -> Result<Outcome, Refused> {
        let plan = plan(statement)?;
        let (datums, nulls) = (values.datums.as_mut_ptr(), values.nulls.as_ptr());
        // SAFETY: there are at least as many values as the plan has parameters, each of the parameter's type.
        let code = unsafe { pg_sys::SPI_execute_plan(plan.0, datums, nulls, READ_WRITE, NO_LIMIT) };
        if code < 0 {
            return Err(Refused::Server { function: "SPI_execute_plan", code });
        }
        Ok(outcome(statement))
    }
}

const READ_WRITE: bool = false;
const NO_LIMIT: std::ffi::c_long = 0;

fn outcome(statement: &Statement) -> Outcome {
    // SAFETY: the statement has just run. Its first row is read only if there is one and it has columns; a row value
    // is copied to the memory context that outlives the connection.
    unsafe {
        let rows = pg_sys::SPI_processed;
        let mut outcome = Outcome { rows, fence: None, row: None };
        let table = pg_sys::SPI_tuptable;
        if rows != 1 || table.is_null() {
            return outcome;
        }
        let (tuple, descriptor) = (*(*table).vals, (*table).tupdesc);
        let field = |number| {
            let mut is_null = false;
            let datum = pg_sys::SPI_getbinval(tuple, descriptor, number, &mut is_null);
            (!is_null).then_some(datum)
        };
        let answers_fence = statement.answers_fence();
        if answers_fence {
            outcome.fence = field(1).map(|datum| datum.value() as i64);
        }
        if statement.answer != Answer::Fence {
            let row = field(if answers_fence { 2 } else { 1 });
            outcome.row = row.map(|datum| pg_sys::SPI_datumTransfer(datum, false, VARLENA));
        }
        outcome
    }
}

const VARLENA: c_int = -1;

fn plan(statement: &Statement) -> Result<Rc<Plan>, Refused> {
    let made_of = made_of(statement);
    let plans = &statement.table.plans.0;
    if let Some(plan) = plans.borrow().get(made_of.as_slice()) {
        return Ok(plan.clone());
    }
    let plan = Rc::new(prepare(statement)?);
    plans.borrow_mut().insert(made_of.into_boxed_slice(), plan.clone());
    statement.table.added_plan();
    Ok(plan)
}

/// What sets a statement apart from the others on its table.
fn made_of(statement: &Statement) -> Vec<u32> {
    let head = [statement.verb as u32, statement.answer as u32, statement.fence.number as u32];
    let key_types = statement.fits.iter().map(|fit| fit.value_type.to_u32());
    let patch = statement.patch.iter().map(|column| column.number as u32);
    head.into_iter().chain(key_types).chain(patch).collect()
}

fn prepare(statement: &Statement) -> Result<Plan, Refused> {
    let mut types: Vec<Oid> = statement.fits.iter().map(|fit| fit.value_type).collect();
    if statement.verb.takes_fence() {
        types.push(pg_sys::INT8OID);
    }
    types.extend(statement.patch.iter().map(|column| column.type_oid));
    // A look-up by primary key has one good plan, so it need not be planned for each of the first values. In a
    // partitioned table the value decides which partitions are opened and locked; one plan for all would wait for the
    // maintenance of any of them.
    let options = match statement.table.is_partitioned {
        true => pg_sys::CURSOR_OPT_CUSTOM_PLAN,
        false => pg_sys::CURSOR_OPT_GENERIC_PLAN,
    } as c_int;
    let sql = c_string(statement.sql());
    // SAFETY: the text ends with a NUL and has as many parameters as there are types. Once kept, the plan lives until
    // it is freed.
    unsafe {
        let plan = pg_sys::SPI_prepare_cursor(sql.as_ptr(), types.len() as c_int, types.as_mut_ptr(), options);
        if plan.is_null() {
            return Err(Refused::Server { function: "SPI_prepare", code: pg_sys::SPI_result });
        }
        match pg_sys::SPI_keepplan(plan) {
            0 => Ok(Plan(plan)),
            code => Err(Refused::Server { function: "SPI_keepplan", code }),
        }
    }
}

impl Statement<'_> {
    /// The same statement with another verb and without a patch, answering no row.
    pub fn plain(self, verb: Verb) -> Self {
        Statement { verb, answer: Answer::Fence, patch: &[], ..self }
    }
}
