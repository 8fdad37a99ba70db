//! Prepared statements that a session keeps, and running them.
//!
//! A plan is found by what its statement is made of, so a change of the same columns of the same table uses one plan.
//! The server re-plans by itself when a table changes; `relation` drops plans whose text no longer fits. Invariant: a
//! plan is freed at the start of a call, never while a callback or an error is under way.

use crate::errors::Refused;
use crate::server::text::c_string;
use crate::server::{self, MainThread};
use crate::table::executor::{self, Parameters, Wanted, WantedRow};
use crate::table::statement::{Answer, Statement, Verb};
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int};
use std::rc::Rc;

/// The plans of a table's statements.
#[derive(Default)]
pub struct Plans(RefCell<Vec<Rc<Plan>>>);

/// A prepared statement.
pub struct Plan {
    kept: pg_sys::SPIPlanPtr,
    source: *mut pg_sys::CachedPlanSource,
    /// The types of its parameters: the key's come first.
    types: Vec<Oid>,
    /// What sets its statement apart from others on the table, with those types and the columns of the patch.
    head: (Verb, Answer, i16),
    columns: Vec<i16>,
    /// When it was used last, by the clock of `relation`.
    pub used: Cell<u64>,
    /// What the server has planned with the bytes below: it plans anew when something changes.
    generation: Cell<i32>,
    bytes: Cell<usize>,
}

/// A connection to the server's own SQL. One that is dropped without `close` is closed by the abort that follows.
pub struct Connection(());

/// The values of a statement's parameters, in order; `None` is null.
pub type Values = Vec<Option<Datum>>;

/// What becomes of the row that a statement answers, where it answers one.
#[derive(Clone, Copy)]
pub enum RowAs {
    /// A value of its table's type, in [`Outcome::row`].
    Value,
    /// It is added here. Only where the statement answers nothing but the fields of a row without dropped columns.
    Stored(*mut pg_sys::Tuplestorestate),
}

/// What a statement did.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// How many rows it reached.
    pub rows: u64,
    /// The fence that it answered, if it reached one row and [`Statement::answers_fence`].
    pub fence: Option<i64>,
    /// The row that it answered, if it reached one, in the memory context of the call.
    pub row: Option<Datum>,
}

static DROPPED: MainThread<RefCell<Vec<pg_sys::SPIPlanPtr>>> = MainThread(RefCell::new(Vec::new()));

/// Frees the plans that were dropped since the last call.
pub fn free_dropped() {
    loop {
        let Some(plan) = DROPPED.borrow_mut().pop() else { return };
        // SAFETY: the plan was prepared and kept, and nobody holds it any more.
        unsafe { pg_sys::SPI_freeplan(plan) };
    }
}

impl Plans {
    /// The memory that they take.
    pub fn bytes(&self) -> usize {
        self.0.borrow().iter().map(|plan| plan.bytes.get()).sum()
    }

    /// When each was used last.
    pub fn uses(&self) -> Vec<u64> {
        self.0.borrow().iter().map(|plan| plan.used.get()).collect()
    }

    /// Drops those that were used last at this time. One that runs stays until it is done. Answers what they took.
    pub fn drop_used_at(&self, used: u64) -> usize {
        let mut plans = self.0.borrow_mut();
        let dropped = plans.iter().filter(|plan| plan.used.get() == used).map(|plan| plan.bytes.get()).sum();
        plans.retain(|plan| plan.used.get() != used);
        dropped
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        DROPPED.borrow_mut().push(self.kept);
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
}

/// Runs a statement with values for its parameters: the key's, the fence, the patch's.
pub fn run(statement: &Statement, values: &Values) -> Result<Outcome, Refused> {
    run_as(RowAs::Value, statement, values)
}

/// The same, with a choice of what becomes of the row. None is stored where a rule has made something else of the
/// statement.
pub fn run_as(row: RowAs, statement: &Statement, values: &Values) -> Result<Outcome, Refused> {
    let plan = plan(statement)?;
    let outcome = run_wanted(row, statement, &plan, values)?;
    statement.table.used_plan(&plan, plan.grown_by());
    Ok(outcome)
}

fn run_wanted(row: RowAs, statement: &Statement, plan: &Plan, values: &Values) -> Result<Outcome, Refused> {
    let number = statement.answers_fence().then_some(0);
    match (statement.answer, row) {
        (Answer::Fence, _) => run_plan(plan, values, Wanted { number, row: WantedRow::None }),
        (Answer::Row, RowAs::Stored(store)) => run_plan(plan, values, Wanted { number, row: WantedRow::Stored(store) }),
        (Answer::Row, RowAs::Value) => server::with_row_type(statement.table.row_type, |descriptor| {
            let first = usize::from(number.is_some());
            run_plan(plan, values, Wanted { number, row: WantedRow::Formed { first, descriptor } })
        }),
    }
}

fn run_plan(plan: &Plan, values: &Values, wanted: Wanted) -> Result<Outcome, Refused> {
    let parameters = Parameters { types: &plan.types, values };
    // SAFETY: there are at least as many values as the plan has parameters, each of the parameter's type; the statement
    // answers the fence as a bigint and then the fields of the row, where it answers them.
    let answered = unsafe { executor::run(plan.source, &parameters, wanted) };
    match answered {
        Some(answered) => Ok(Outcome::of(answered.rows, answered.number, answered.row)),
        None => run_rewritten(plan, values, wanted),
    }
}

impl Outcome {
    /// What a row says counts where it is the only one.
    fn of(rows: u64, fence: Option<i64>, row: Option<Datum>) -> Outcome {
        if rows == 1 { Outcome { rows, fence, row } } else { Outcome { rows, fence: None, row: None } }
    }
}

/// What a kept plan takes beside its source: the server's entry for it and ours.
const KEPT_BYTES: usize = 2_048;

const READ_WRITE: bool = false;
const NO_LIMIT: std::ffi::c_long = 0;
const VARLENA: c_int = -1;

/// Runs what a rule has made of a statement: none, several, or a command.
fn run_rewritten(plan: &Plan, values: &Values, wanted: Wanted) -> Result<Outcome, Refused> {
    const IS_VALUE: c_char = b' ' as c_char;
    const IS_NULL: c_char = b'n' as c_char;
    let mut datums: Vec<Datum> = values.iter().map(|value| value.unwrap_or(Datum::null())).collect();
    let nulls: Vec<c_char> = values.iter().map(|value| if value.is_some() { IS_VALUE } else { IS_NULL }).collect();
    let connection = Connection::open()?;
    // SAFETY: there are at least as many values as the plan has parameters, each of the parameter's type. The first row
    // is read only if there is one, and has the fields that the statement answers, as the server checks when a rule is
    // made; a row value is copied to the memory context that outlives the connection.
    let outcome = unsafe {
        let code = pg_sys::SPI_execute_plan(plan.kept, datums.as_mut_ptr(), nulls.as_ptr(), READ_WRITE, NO_LIMIT);
        if code < 0 {
            return Err(Refused::Server { function: "SPI_execute_plan", code });
        }
        let (rows, table) = (pg_sys::SPI_processed, pg_sys::SPI_tuptable);
        let field = |place: usize| {
            let mut is_null = false;
            let number = place as c_int + 1;
            let datum = pg_sys::SPI_getbinval(*(*table).vals, (*table).tupdesc, number, &mut is_null);
            (!is_null).then_some(datum)
        };
        let has_row = rows > 0 && !table.is_null();
        let fence = wanted.number.filter(|_| has_row).and_then(field).map(|datum| datum.value() as i64);
        let row = match wanted.row {
            WantedRow::Formed { first, descriptor } if has_row => {
                let count = usize::try_from((*(*table).tupdesc).natts).unwrap_or(0);
                let fields: Vec<Option<Datum>> = (first..count).map(field).collect();
                let values: Vec<Datum> = fields.iter().map(|value| value.unwrap_or(Datum::null())).collect();
                let nulls: Vec<bool> = fields.iter().map(Option::is_none).collect();
                let formed = executor::form(descriptor, values.as_ptr(), nulls.as_ptr());
                Some(pg_sys::SPI_datumTransfer(formed, false, VARLENA))
            }
            _ => None,
        };
        Outcome::of(rows, fence, row)
    };
    connection.close()?;
    Ok(outcome)
}

fn plan(statement: &Statement) -> Result<Rc<Plan>, Refused> {
    let plans = &statement.table.plans.0;
    if let Some(plan) = plans.borrow().iter().find(|plan| plan.is_of(statement)) {
        return Ok(plan.clone());
    }
    let plan = Rc::new(prepare(statement)?);
    plans.borrow_mut().push(plan.clone());
    statement.table.used_plan(&plan, plan.grown_by());
    Ok(plan)
}

impl Plan {
    /// How much more memory it takes than when this was asked last.
    fn grown_by(&self) -> isize {
        // SAFETY: the source is kept as long as this plan, and so is what the server has planned for it last, if that is
        // there; both have memory contexts of their own.
        let bytes = unsafe {
            let source = &*self.source;
            if source.generation == self.generation.get() && self.bytes.get() != 0 {
                return 0;
            }
            self.generation.set(source.generation);
            let planned = source.gplan.as_ref().map_or(0, |plan| pg_sys::MemoryContextMemAllocated(plan.context, true));
            KEPT_BYTES + pg_sys::MemoryContextMemAllocated(source.context, true) + planned
        };
        let before = self.bytes.replace(bytes);
        bytes as isize - before as isize
    }

    /// Whether it is the plan of this statement, which is one on the same table.
    fn is_of(&self, statement: &Statement) -> bool {
        let (fits, patch) = (statement.fits, statement.patch);
        let head = (statement.verb, statement.answer, statement.fence.number);
        self.head == head
            && self.columns.len() == patch.len()
            && self.columns.iter().zip(patch).all(|(&number, column)| number == column.number)
            && self.types.iter().zip(fits).all(|(&known, fit)| known == fit.value_type)
    }
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
    let connection = Connection::open()?;
    // SAFETY: the text ends with a NUL and has as many parameters as there are types. Once kept, the plan lives until
    // it is freed, and so does the source of its one statement.
    let plan = unsafe {
        let kept = pg_sys::SPI_prepare_cursor(sql.as_ptr(), types.len() as c_int, types.as_mut_ptr(), options);
        if kept.is_null() {
            return Err(Refused::Server { function: "SPI_prepare", code: pg_sys::SPI_result });
        }
        match pg_sys::SPI_keepplan(kept) {
            0 => {
                let sources = pg_sys::SPI_plan_get_plan_sources(kept);
                let head = (statement.verb, statement.answer, statement.fence.number);
                let columns = statement.patch.iter().map(|column| column.number).collect();
                Plan {
                    kept,
                    source: (*(*sources).elements).ptr_value.cast(),
                    types,
                    head,
                    columns,
                    used: Cell::new(0),
                    generation: Cell::new(0),
                    bytes: Cell::new(0),
                }
            }
            code => return Err(Refused::Server { function: "SPI_keepplan", code }),
        }
    };
    connection.close()?;
    Ok(plan)
}

impl Statement<'_> {
    /// The same statement with another verb and without a patch, answering no row.
    pub fn plain(self, verb: Verb) -> Self {
        Statement { verb, answer: Answer::Fence, patch: &[], ..self }
    }
}
