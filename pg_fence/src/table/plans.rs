//! Prepared statements that a session keeps: found or made, and run.
//!
//! A plan is found by what its statement is made of, so a change of the same columns of the same table uses one plan.
//! The server re-plans by itself when a table changes; `tables` drops the plans whose text no longer fits.

use crate::errors::Refused;
use crate::server::types;
use crate::table::direct::Connection;
use crate::table::executor::{self, Parameters, Wanted, WantedRow};
use crate::table::plan::{Head, Plan};
use crate::table::statement::Statement;
use crate::table::tables;
use crate::table::verb::Answer;
use pg_forms::c_string;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::rc::Rc;

/// The values of a statement's parameters, in order; `None` is null.
pub(crate) type Values = Vec<Option<Datum>>;

/// What becomes of the row that a statement answers, where it answers one.
#[derive(Clone, Copy)]
pub(crate) enum RowAs {
    /// A value of its table's type, in [`Outcome::row`].
    Value,
    /// It is added here. Only where the statement answers nothing but the fields of a row without dropped columns.
    Stored(*mut pg_sys::Tuplestorestate),
}

/// What a statement did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// How many rows it reached.
    pub(crate) rows: u64,
    /// The fence that it answered, if it reached one row and [`Statement::answers_fence`].
    pub(crate) fence: Option<i64>,
    /// The row that it answered, if it reached one, in the memory context of the call.
    pub(crate) row: Option<Datum>,
}

/// Runs a statement with values for its parameters: the key's, the fence, the patch's.
pub(crate) fn run(statement: &Statement, values: &Values) -> Result<Outcome, Refused> {
    run_as(RowAs::Value, statement, values)
}

/// The same, with a choice of what becomes of the row. None is stored where a rule has made something else of the
/// statement.
pub(crate) fn run_as(row: RowAs, statement: &Statement, values: &Values) -> Result<Outcome, Refused> {
    let plan = plan(statement)?;
    let outcome = run_wanted(row, statement, &plan, values)?;
    tables::used_plan(statement.table, &plan, plan.grown_by());
    Ok(outcome)
}

fn run_wanted(row: RowAs, statement: &Statement, plan: &Plan, values: &Values) -> Result<Outcome, Refused> {
    let number = statement.answers_fence().then_some(0);
    match (statement.answer, row) {
        (Answer::Fence, _) => run_plan(plan, values, Wanted { number, row: WantedRow::None }),
        (Answer::Row, RowAs::Stored(store)) => run_plan(plan, values, Wanted { number, row: WantedRow::Stored(store) }),
        (Answer::Row, RowAs::Value) => types::with_row_type(statement.table.row_type, |descriptor| {
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
    if let Some(plan) =
        plans.borrow().iter().find(|plan| plan.is_of(head(statement), value_types(statement), columns(statement)))
    {
        return Ok(plan.clone());
    }
    let plan = Rc::new(prepare(statement)?);
    plans.borrow_mut().push(plan.clone());
    tables::used_plan(statement.table, &plan, plan.grown_by());
    Ok(plan)
}

fn prepare(statement: &Statement) -> Result<Plan, Refused> {
    let mut types: Vec<Oid> = value_types(statement).collect();
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
                let head = head(statement);
                let columns = columns(statement).collect();
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

fn head(statement: &Statement) -> Head {
    (statement.verb, statement.answer, statement.fence.number)
}

fn value_types(statement: &Statement) -> impl Iterator<Item = Oid> {
    statement.fits.iter().map(|fit| fit.value_type)
}

fn columns(statement: &Statement) -> impl ExactSizeIterator<Item = i16> {
    statement.patch.iter().map(|column| column.number)
}
