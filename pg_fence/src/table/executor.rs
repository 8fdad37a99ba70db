//! Runs a kept plan by the server's executor: with all its checks, triggers and policies, as any statement.
//!
//! As the server's programming interface for SQL (SPI) runs a statement that may write, but without what that does for
//! the general case, memory contexts of its own and a table of rows: here the answer is one row at most. Invariants: a
//! plan of more or less than one statement, which a rule can make, is not run; every call into the server is under one
//! guard, so nothing in there may have a destructor.

use crate::errors::Refused;
use crate::server::planned::{Planned, only_statement};
use crate::server::raw;
use crate::server::spi::Connection;
use crate::table::answer::{Answered, Receiver, Wanted, WantedRow, form};
use crate::table::by_index::{ByIndex, keeps_order};
use crate::table::running::{self, Before};
use crate::table::verb::Reads;
use pgrx::pg_sys::{self, Datum, Oid, ffi::pg_guard_ffi_boundary};
use std::ffi::{c_char, c_int, c_long, c_void};

/// What a plan is run with.
pub(crate) struct Parameters<'a> {
    /// The table that the plan is for.
    pub(crate) table: Oid,
    /// The type of each parameter.
    pub(crate) types: &'a [Oid],
    /// The values, at least as many.
    pub(crate) values: &'a [Option<Datum>],
    pub(crate) reads: Reads,
}

/// Runs a plan: the one that is held, else the one that the server finds or makes. `None` when a rule made something else of
/// it than one statement, or when it would change many rows in another order than that in which they are given.
///
/// # Safety
///
/// The source is that of a kept plan with parameters of these types, each value is of its type, what is wanted is there
/// in the rows that the plan answers, and the store or the descriptor takes such rows.
pub(crate) unsafe fn run(
    source: *mut pg_sys::CachedPlanSource,
    planned: Option<&Planned>,
    parameters: &Parameters,
    wanted: Wanted,
) -> Option<Answered> {
    let _before = Before::now();
    let planning = ByIndex::default();
    // SAFETY: as the caller promises; whatever the server raises ends the closure, which holds nothing to drop.
    unsafe { pg_guard_ffi_boundary(|| run_unguarded(source, planned, parameters, wanted, &planning)) }
}

/// Runs what a rule has made of a statement: none, several, or a command.
///
/// # Safety
///
/// As for [`run`]; the plan is kept, and has no more parameters than there are values.
pub(crate) unsafe fn run_rewritten(
    plan: pg_sys::SPIPlanPtr,
    values: &[Option<Datum>],
    wanted: Wanted,
) -> Result<Answered, Refused> {
    const READ_WRITE: bool = false;
    const NO_LIMIT: c_long = 0;
    const VARLENA: c_int = -1;
    const IS_VALUE: c_char = b' ' as c_char;
    const IS_NULL: c_char = b'n' as c_char;
    let mut datums: Vec<Datum> = values.iter().map(|value| value.unwrap_or(Datum::null())).collect();
    let nulls: Vec<c_char> = values.iter().map(|value| if value.is_some() { IS_VALUE } else { IS_NULL }).collect();
    let connection = Connection::open()?;
    // SAFETY: as the caller promises. The first row is read only if there is one, and has the fields that the statement
    // answers, as the server checks when a rule is made; a row value is copied to the memory context that outlives the
    // connection.
    let answered = unsafe {
        let code = pg_sys::SPI_execute_plan(plan, datums.as_mut_ptr(), nulls.as_ptr(), READ_WRITE, NO_LIMIT);
        if code < 0 {
            return Err(Refused::Server { function: "SPI_execute_plan", code });
        }
        let (rows, table) = (pg_sys::SPI_processed, pg_sys::SPI_tuptable);
        let field = |index: usize| {
            let mut is_null = false;
            let datum = pg_sys::SPI_getbinval(*(*table).vals, (*table).tupdesc, index as c_int + 1, &mut is_null);
            (!is_null).then_some(datum)
        };
        let has_row = rows > 0 && !table.is_null();
        let fits = !has_row || wanted.row.fits((*table).tupdesc);
        let number = wanted.number.filter(|_| has_row).and_then(field).map(|datum| datum.value() as i64);
        let transfer = |value| pg_sys::SPI_datumTransfer(value, false, VARLENA);
        let text = wanted.text.filter(|_| has_row).and_then(field).map(transfer);
        let row = match wanted.row {
            WantedRow::Formed { first, descriptor } if has_row && fits => {
                let count = usize::try_from((*(*table).tupdesc).natts).unwrap_or(0);
                let fields: Vec<Option<Datum>> = (first..count).map(field).collect();
                let values: Vec<Datum> = fields.iter().map(|value| value.unwrap_or(Datum::null())).collect();
                let nulls: Vec<bool> = fields.iter().map(Option::is_none).collect();
                let formed = form(descriptor, values.as_ptr(), nulls.as_ptr());
                Some(transfer(formed))
            }
            _ => None,
        };
        Answered { rows, number, text, row, fits }
    };
    connection.close()?;
    Ok(answered)
}

unsafe fn run_unguarded(
    source: *mut pg_sys::CachedPlanSource,
    planned: Option<&Planned>,
    given: &Parameters,
    wanted: Wanted,
    planning: &ByIndex,
) -> Option<Answered> {
    let (types, values, table) = (given.types, given.values, given.table);
    let no_environment = std::ptr::null_mut();
    // SAFETY: see `run`. The owner of resources gives the plan, the snapshot and the memory back when an error ends
    // this.
    unsafe {
        let text = (*source).query_string;
        let mut context = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(add_statement),
            arg: text.cast_mut().cast(),
        };
        pg_sys::error_context_stack = &mut context;
        let parameters = parameter_list(types, values);
        let owner = pg_sys::CurrentResourceOwner;
        let is_of_many = matches!(wanted.row, WantedRow::Each(_));
        let plan = match planned {
            Some(planned) => planned.plan(),
            None => {
                planning.begin(is_of_many);
                let plan = raw::GetCachedPlan(source, parameters, owner, no_environment);
                planning.end();
                plan
            }
        };
        let statement = only_statement(plan).filter(|&statement| !is_of_many || keeps_order(statement));
        let answered = statement.map(|statement| {
            raw::EnsurePortalSnapshotExists();
            // The statement sees what the transaction has done so far.
            raw::CommandCounterIncrement();
            raw::PushActiveSnapshot(match given.reads {
                Reads::ByLevel => raw::GetTransactionSnapshot(),
                Reads::Latest => raw::GetLatestSnapshot(),
            });
            let receiver = Receiver::new(wanted, planned.is_none());
            let answered = execute(statement, table, text, parameters, receiver);
            // And the next one sees what this has done.
            raw::CommandCounterIncrement();
            raw::PopActiveSnapshot();
            answered
        });
        if planned.is_none() {
            raw::ReleaseCachedPlan(plan, owner);
        }
        raw::pfree(parameters.cast());
        pg_sys::error_context_stack = context.previous;
        answered
    }
}

unsafe fn execute(
    statement: *mut pg_sys::PlannedStmt,
    table: Oid,
    text: *const c_char,
    parameters: pg_sys::ParamListInfo,
    mut receiver: Receiver,
) -> Answered {
    const NO_FLAGS: c_int = 0;
    const NO_LIMIT: u64 = 0;
    let forward = pg_sys::ScanDirection::ForwardScanDirection;
    // SAFETY: see `run`; a snapshot is active. The receiver outlives the execution.
    unsafe {
        let query = raw::CreateQueryDesc(
            statement,
            text,
            raw::GetActiveSnapshot(),
            std::ptr::null_mut(),
            (&raw mut receiver).cast(),
            parameters,
            std::ptr::null_mut(),
            NO_FLAGS,
        );
        let_read_writer(statement, table);
        raw::ExecutorStart(query, NO_FLAGS);
        running::begin((*(*query).estate).es_query_cxt);
        #[cfg(any(feature = "pg18", feature = "pg19"))]
        raw::ExecutorRun(query, forward, NO_LIMIT);
        #[cfg(not(any(feature = "pg18", feature = "pg19")))]
        raw::ExecutorRun(query, forward, NO_LIMIT, true);
        let rows = (*(*query).estate).es_processed;
        raw::ExecutorFinish(query);
        raw::ExecutorEnd(query);
        raw::FreeQueryDesc(query);
        Answered { rows, ..receiver.answered }
    }
}

/// The writer of a version is asked for by this library, not by the caller, whose rights on the column `xmin` do not matter:
/// they are left out of what the plan needs. It answers whether the version is of this life, and no number.
unsafe fn let_read_writer(statement: *mut pg_sys::PlannedStmt, table: Oid) {
    const WRITER: c_int = pg_sys::MinTransactionIdAttributeNumber - pg_sys::FirstLowInvalidHeapAttributeNumber;
    #[cfg(feature = "pg15")]
    type Rights = pg_sys::RangeTblEntry;
    #[cfg(not(feature = "pg15"))]
    type Rights = pg_sys::RTEPermissionInfo;
    // SAFETY: the list of a plan is null or holds what it is declared to hold. The plan is one of this library's own.
    unsafe {
        #[cfg(feature = "pg15")]
        let all = (*statement).rtable;
        #[cfg(not(feature = "pg15"))]
        let all = (*statement).permInfos;
        let count = all.as_ref().map_or(0, |all| all.length);
        for n in 0..count {
            let rights = &mut *(*(*all).elements.offset(n as isize)).ptr_value.cast::<Rights>();
            if rights.relid == table && raw::bms_is_member(WRITER, rights.selectedCols) {
                rights.selectedCols = raw::bms_del_member(rights.selectedCols, WRITER);
            }
        }
    }
}

unsafe fn parameter_list(types: &[Oid], values: &[Option<Datum>]) -> pg_sys::ParamListInfo {
    assert!(values.len() >= types.len(), "each parameter has a value");
    // SAFETY: the list has room for as many parameters as it is made for.
    unsafe {
        let list = raw::makeParamList(types.len() as c_int);
        for (n, (&ptype, value)) in types.iter().zip(values).enumerate() {
            *(*list).params.as_mut_ptr().add(n) = pg_sys::ParamExternData {
                value: value.unwrap_or(Datum::null()),
                isnull: value.is_none(),
                // A plan for these values alone may use them.
                pflags: pg_sys::PARAM_FLAG_CONST as u16,
                ptype,
            };
        }
        list
    }
}

/// Adds the statement to an error's context, as the server does where a function runs SQL.
unsafe extern "C-unwind" fn add_statement(text: *mut c_void) {
    // SAFETY: called while an error is made, with the text of the statement that runs.
    unsafe {
        raw::set_errcontext_domain(std::ptr::null());
        raw::errcontext_msg(c"SQL statement \"%s\"".as_ptr(), text);
    }
}
