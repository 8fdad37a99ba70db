//! Prepared statements that a session keeps: found or made, and run.
//!
//! A plan is found by what its statement is made of, so a change of the same columns of the same table uses one plan.
//! The server re-plans by itself when a table changes; `tables` drops the plans whose text no longer fits.

use crate::errors::Refused;
use crate::server::rows::Rows;
use crate::server::spi::{Connection, Planning};
use crate::server::types::{self, Value};
use crate::table::answer::{EachRow, Reached, RowStore, Wanted, WantedRow};
use crate::table::batch::Batch;
use crate::table::executor::{self, Parameters};
use crate::table::plan::{Head, Plan};
use crate::table::statement::Statement;
use crate::table::tables;
use crate::table::verb::{Answer, Source};
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::Cell;
use std::rc::Rc;

/// The values of a statement's parameters, in order; `None` is null.
pub(crate) type Values = Vec<Option<Datum>>;

/// What becomes of the row that a statement answers, where it answers one.
#[derive(Clone, Copy)]
pub(crate) enum RowAs<'r> {
    /// A value of its table's type, in [`Outcome::row`].
    Value,
    /// It is added here. Only where the statement answers nothing but the fields of a row without dropped columns.
    Stored(&'r Rows),
}

/// What a statement did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// How many rows it reached.
    pub(crate) rows: u64,
    /// The fence that it answered, if it reached one row and [`Statement::answers_fence`].
    pub(crate) fence: Option<i64>,
    /// The owner that it answered, if it reached one row and [`Statement::answers_owner`], in the memory context of the call.
    pub(crate) owner: Option<Value>,
    /// The row that it answered, if it reached one, in the memory context of the call.
    pub(crate) row: Option<Value>,
}

/// Runs a statement with values for its parameters: the key's, the fence, the owner, the patch's.
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
    let text = statement.answers_owner().then_some(1);
    match (statement.answer, row) {
        (Answer::Fence, _) => run_plan(statement, plan, values, Wanted { number, text, row: WantedRow::None }),
        (Answer::Row, RowAs::Stored(rows)) => {
            let row = WantedRow::Stored(rows.store(), rows.descriptor());
            run_plan(statement, plan, values, Wanted { number, text, row })
        }
        (Answer::Row, RowAs::Value) => types::with_row_type(statement.table.row_type, |descriptor| {
            let first = usize::from(number.is_some());
            run_plan(statement, plan, values, Wanted { number, text, row: WantedRow::Formed { first, descriptor } })
        }),
    }
}

fn run_plan(statement: &Statement, plan: &Plan, values: &Values, wanted: Wanted) -> Result<Outcome, Refused> {
    let parameters =
        Parameters { table: statement.table.oid, types: &plan.types, values, reads: statement.verb.reads() };
    // What takes a step was given a table that is locked for it.
    let takes_step = statement.verb.step().is_some();
    let planned = if takes_step { plan.prepared.planned() } else { None };
    // SAFETY: there are at least as many values as the plan has parameters, each of the parameter's type; the statement
    // answers the fence as a bigint, the owner as a text and the fields of the row, where it answers them. What is formed of these is a
    // row of the table.
    unsafe {
        let answered = match executor::run(plan.prepared.source(), planned.as_deref(), &parameters, wanted) {
            Some(answered) => answered,
            None => executor::run_rewritten(plan.prepared.kept(), values, wanted)?,
        };
        if !answered.fits {
            return Err(altered(statement));
        }
        if takes_step && planned.is_none() {
            plan.prepared.hold_plan(statement.table.oid);
        }
        let row = answered.row.map(|row| Value::new(row, statement.table.row_type));
        let owner = answered.text.map(|owner| Value::new(owner, pg_sys::TEXTOID));
        Ok(Outcome { rows: answered.rows, fence: answered.number, owner, row }.of_one())
    }
}

impl Outcome {
    /// What a row says counts where it is the only one.
    fn of_one(self) -> Outcome {
        if self.rows == 1 { self } else { Outcome { rows: self.rows, fence: None, owner: None, row: None } }
    }
}

/// Runs a statement on the rows of a batch, in their order. The parameters are the owner and the values of a patch that serve
/// all. Every
/// row that is reached is noted, and added to these if the statement answers rows. Answers whether it was run: not if the
/// planner would take the rows in another order.
pub(crate) fn run_many(
    statement: &Statement,
    batch: &Rc<Batch>,
    parameters: &Values,
    rows: Option<&Rows>,
    reached: &mut Vec<Reached>,
) -> Result<bool, Refused> {
    let plan = plan(statement)?;
    let store = rows.map(RowStore::of);
    let (fence, owner, life) = (statement.answers_fence(), statement.answers_owner(), statement.answers_life());
    let mut each = EachRow { fence, owner, life, store, reached };
    let parameters = Parameters {
        table: statement.table.oid,
        types: &plan.types,
        values: parameters,
        reads: statement.verb.reads(),
    };
    let _given = batch.give();
    // SAFETY: there are as many values as the plan has parameters, each of the parameter's type; the statement answers
    // the number of the row, then the fence as a bigint, its owner and whether the version is of this life where it answers these,
    // and then the fields of the row, where it answers them.
    let answered = unsafe {
        let wanted = Wanted { number: None, text: None, row: WantedRow::Each(&raw mut each) };
        executor::run(plan.prepared.source(), None, &parameters, wanted)
    };
    tables::used_plan(statement.table, &plan, plan.grown_by());
    if answered.is_some_and(|answered| !answered.fits) {
        return Err(altered(statement));
    }
    Ok(answered.is_some())
}

fn altered(statement: &Statement) -> Refused {
    Refused::Altered { table: statement.table.name.clone() }
}

fn plan(statement: &Statement) -> Result<Rc<Plan>, Refused> {
    if !tables::is_unchanged(statement.table)? {
        return Err(altered(statement));
    }
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
    let key_types: Vec<Oid> = value_types(statement).collect();
    let patch = statement.patch.iter().map(|column| column.type_oid);
    let owner = statement.takes_owner().then_some(pg_sys::TEXTOID);
    let mut types: Vec<Oid> = match statement.source {
        Source::Parameters => {
            let fence = statement.verb.takes_fence().then_some(pg_sys::INT8OID);
            key_types.iter().copied().chain(fence).chain(owner).chain(patch).collect()
        }
        Source::Given => owner.into_iter().collect(),
        Source::GivenKeys => owner.into_iter().chain(patch).collect(),
    };
    if statement.is_of_many() {
        let patch = statement.patch.iter().map(|column| column.type_oid);
        key_types.iter().copied().chain(patch).for_each(|type_oid| statement.table.depends_on_type(type_oid));
    }
    // A look-up by primary key has one good plan, so it need not be planned for each of the first values. In a
    // partitioned table the value decides which partitions are opened and locked; one plan for all would wait for the
    // maintenance of any of them.
    let planning = if statement.table.is_partitioned { Planning::EachTime } else { Planning::Once };
    let connection = Connection::open()?;
    let prepared = connection.prepare(statement.sql(), &mut types, planning)?;
    connection.close()?;
    let (head, columns) = (head(statement), columns(statement).collect());
    let (used, generation, bytes) = (Cell::new(0), Cell::new(0), Cell::new(0));
    Ok(Plan { prepared, types, key_types, head, columns, used, generation, bytes })
}

fn head(statement: &Statement) -> Head {
    let owner = statement.owner.map(|owner| (owner.column.number, owner.given.is_some()));
    (statement.verb, statement.answer, statement.fence.number, owner, statement.source)
}

fn value_types(statement: &Statement) -> impl Iterator<Item = Oid> {
    statement.fits.iter().map(|fit| fit.value_type)
}

fn columns(statement: &Statement) -> impl ExactSizeIterator<Item = i16> {
    statement.patch.iter().map(|column| column.number)
}
