//! Runs a kept plan by the server's executor: with all its checks, triggers and policies, as any statement.
//!
//! As the server's programming interface for SQL (SPI) runs a statement that may write, but without what that does for
//! the general case, memory contexts of its own and a table of rows: here the answer is one row at most. Invariants: a
//! plan of more or less than one statement, which a rule can make, is not run; every call into the server is under one
//! guard, so nothing in there may have a destructor.

use crate::errors::Refused;
use crate::server::catalog;
use crate::server::raw;
use crate::server::spi::Connection;
use crate::table::running::{self, Before};
use pgrx::pg_sys::{self, Datum, Oid, ffi::pg_guard_ffi_boundary};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_long, c_void};

/// What a plan is run with.
pub(crate) struct Parameters<'a> {
    /// The table that the plan is for.
    pub(crate) table: Oid,
    /// The type of each parameter.
    pub(crate) types: &'a [Oid],
    /// The values, at least as many.
    pub(crate) values: &'a [Option<Datum>],
}

/// The fields of the one row of an answer that are read, by their index, from 0.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// A bigint.
    pub(crate) number: Option<usize>,
    /// A text.
    pub(crate) text: Option<usize>,
    /// The other fields, as a row.
    pub(crate) row: WantedRow,
}

/// What becomes of the fields of the row.
#[derive(Clone, Copy)]
pub(crate) enum WantedRow {
    None,
    /// All fields are added here, as they are.
    Stored(*mut pg_sys::Tuplestorestate),
    /// The fields from this index on become a value of a row type.
    Formed {
        first: usize,
        /// The columns of the row type; the fields are those that were not dropped, in order.
        descriptor: pg_sys::TupleDesc,
    },
}

/// What a plan answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// How many rows it reached.
    pub(crate) rows: u64,
    /// The number of the first row.
    pub(crate) number: Option<i64>,
    /// The text of the first row, in the memory context of the caller.
    pub(crate) text: Option<Datum>,
    /// The value that was formed of the first row, in the memory context of the caller.
    pub(crate) row: Option<Datum>,
}

/// Runs a plan. `None` when a rule made something else of it than one statement.
///
/// # Safety
///
/// The source is that of a kept plan with parameters of these types, each value is of its type, what is wanted is there
/// in the rows that the plan answers, and the store or the descriptor takes such rows.
pub(crate) unsafe fn run(
    source: *mut pg_sys::CachedPlanSource,
    parameters: &Parameters,
    wanted: Wanted,
) -> Option<Answered> {
    let (types, values, table) = (parameters.types, parameters.values, parameters.table);
    let _before = Before::now();
    let planning = ByIndex::default();
    // SAFETY: as the caller promises; whatever the server raises ends the closure, which holds nothing to drop.
    unsafe { pg_guard_ffi_boundary(|| run_unguarded(source, table, types, values, wanted, &planning)) }
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
        let number = wanted.number.filter(|_| has_row).and_then(field).map(|datum| datum.value() as i64);
        let transfer = |value| pg_sys::SPI_datumTransfer(value, false, VARLENA);
        let text = wanted.text.filter(|_| has_row).and_then(field).map(transfer);
        let row = match wanted.row {
            WantedRow::Formed { first, descriptor } if has_row => {
                let count = usize::try_from((*(*table).tupdesc).natts).unwrap_or(0);
                let fields: Vec<Option<Datum>> = (first..count).map(field).collect();
                let values: Vec<Datum> = fields.iter().map(|value| value.unwrap_or(Datum::null())).collect();
                let nulls: Vec<bool> = fields.iter().map(Option::is_none).collect();
                let formed = form(descriptor, values.as_ptr(), nulls.as_ptr());
                Some(transfer(formed))
            }
            _ => None,
        };
        Answered { rows, number, text, row }
    };
    connection.close()?;
    Ok(answered)
}

unsafe fn run_unguarded(
    source: *mut pg_sys::CachedPlanSource,
    table: Oid,
    types: &[Oid],
    values: &[Option<Datum>],
    wanted: Wanted,
    planning: &ByIndex,
) -> Option<Answered> {
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
        planning.begin();
        let plan = raw::GetCachedPlan(source, parameters, owner, no_environment);
        planning.end();
        let answered = only_statement(plan).map(|statement| {
            raw::EnsurePortalSnapshotExists();
            // The statement sees what the transaction has done so far.
            raw::CommandCounterIncrement();
            raw::PushActiveSnapshot(raw::GetTransactionSnapshot());
            let answered = execute(statement, table, text, parameters, wanted);
            // And the next one sees what this has done.
            raw::CommandCounterIncrement();
            raw::PopActiveSnapshot();
            answered
        });
        raw::ReleaseCachedPlan(plan, owner);
        raw::pfree(parameters.cast());
        pg_sys::error_context_stack = context.previous;
        answered
    }
}

/// Lets the planner choose an index where there is one. A plan is kept, and what it was made for grows: a scan of a
/// table with one row, or of one that a row-security policy looks into, would be kept for a million. Ends with an error
/// too.
#[derive(Default)]
struct ByIndex {
    before: Cell<Option<[bool; 3]>>,
}

impl ByIndex {
    fn begin(&self) {
        const BY_INDEX: [bool; 3] = [false, false, true];
        // SAFETY: a backend has one thread.
        unsafe {
            self.before.set(Some([pg_sys::enable_seqscan, pg_sys::enable_bitmapscan, pg_sys::enable_indexscan]));
        }
        ByIndex::set(BY_INDEX);
    }

    fn end(&self) {
        if let Some(before) = self.before.take() {
            ByIndex::set(before);
        }
    }

    fn set([sequential, bitmap, index]: [bool; 3]) {
        // SAFETY: a backend has one thread. The settings themselves keep their values.
        unsafe {
            pg_sys::enable_seqscan = sequential;
            pg_sys::enable_bitmapscan = bitmap;
            pg_sys::enable_indexscan = index;
        }
    }
}

impl Drop for ByIndex {
    fn drop(&mut self) {
        self.end();
    }
}

unsafe fn execute(
    statement: *mut pg_sys::PlannedStmt,
    table: Oid,
    text: *const c_char,
    parameters: pg_sys::ParamListInfo,
    wanted: Wanted,
) -> Answered {
    const NO_FLAGS: c_int = 0;
    const NO_LIMIT: u64 = 0;
    let forward = pg_sys::ScanDirection::ForwardScanDirection;
    // SAFETY: see `run`; a snapshot is active. The receiver outlives the execution.
    unsafe {
        let mut receiver = Receiver::new(wanted);
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

unsafe fn only_statement(plan: *mut pg_sys::CachedPlan) -> Option<*mut pg_sys::PlannedStmt> {
    // SAFETY: the list of a plan holds planned statements, and is null when it is empty.
    unsafe {
        let list = (*plan).stmt_list;
        if list.is_null() || (*list).length != 1 {
            return None;
        }
        let statement = (*(*list).elements).ptr_value.cast::<pg_sys::PlannedStmt>();
        (*statement).utilityStmt.is_null().then_some(statement)
    }
}

unsafe fn parameter_list(types: &[Oid], values: &[Option<Datum>]) -> pg_sys::ParamListInfo {
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

/// Takes the first row of an answer.
#[repr(C)]
struct Receiver {
    head: pg_sys::DestReceiver,
    wanted: Wanted,
    context: pg_sys::MemoryContext,
    is_first: bool,
    answered: Answered,
}

impl Receiver {
    fn new(wanted: Wanted) -> Receiver {
        let head = pg_sys::DestReceiver {
            receiveSlot: Some(receive),
            rStartup: Some(start),
            rShutdown: Some(end),
            rDestroy: Some(end),
            mydest: pg_sys::CommandDest::DestNone,
        };
        // SAFETY: reading a variable of the backend.
        let context = unsafe { pg_sys::CurrentMemoryContext };
        let answered = Answered { rows: 0, number: None, text: None, row: None };
        Receiver { head, wanted, context, is_first: true, answered }
    }
}

unsafe extern "C-unwind" fn start(_receiver: *mut pg_sys::DestReceiver, _operation: c_int, _row: pg_sys::TupleDesc) {}

unsafe extern "C-unwind" fn end(_receiver: *mut pg_sys::DestReceiver) {}

unsafe extern "C-unwind" fn receive(slot: *mut pg_sys::TupleTableSlot, receiver: *mut pg_sys::DestReceiver) -> bool {
    const GO_ON: bool = true;
    // SAFETY: the server passes the receiver that it was given and a row with the fields that are wanted.
    unsafe {
        let receiver = &mut *receiver.cast::<Receiver>();
        if !std::mem::replace(&mut receiver.is_first, false) {
            return GO_ON;
        }
        if let Some(index) = receiver.wanted.number {
            load(slot, index as c_int + 1);
            let is_null = *(*slot).tts_isnull.add(index);
            receiver.answered.number = (!is_null).then(|| (*(*slot).tts_values.add(index)).value() as i64);
        }
        if let Some(index) = receiver.wanted.text {
            load(slot, index as c_int + 1);
            let executors = pg_sys::CurrentMemoryContext;
            pg_sys::CurrentMemoryContext = receiver.context;
            let copy = || Datum::from(raw::pg_detoast_datum_copy((*(*slot).tts_values.add(index)).cast_mut_ptr()));
            receiver.answered.text = (!*(*slot).tts_isnull.add(index)).then(copy);
            pg_sys::CurrentMemoryContext = executors;
        }
        match receiver.wanted.row {
            WantedRow::None => {}
            WantedRow::Stored(store) => raw::tuplestore_puttupleslot(store, slot),
            WantedRow::Formed { first, descriptor } => {
                load(slot, (*(*slot).tts_tupleDescriptor).natts);
                let executors = pg_sys::CurrentMemoryContext;
                pg_sys::CurrentMemoryContext = receiver.context;
                let (values, nulls) = ((*slot).tts_values.add(first), (*slot).tts_isnull.add(first));
                receiver.answered.row = Some(form_unguarded(descriptor, values, nulls));
                pg_sys::CurrentMemoryContext = executors;
            }
        }
        GO_ON
    }
}

/// Makes the first fields of a row readable.
unsafe fn load(slot: *mut pg_sys::TupleTableSlot, count: c_int) {
    // SAFETY: the row has so many fields.
    unsafe {
        if c_int::from((*slot).tts_nvalid) < count {
            raw::slot_getsomeattrs_int(slot, count);
        }
    }
}

/// A value of a row type, in the current memory context, from a field for each of its columns that was not dropped.
///
/// # Safety
///
/// There are as many values and marks of null as there are such columns, each of the column's type.
unsafe fn form(descriptor: pg_sys::TupleDesc, values: *const Datum, nulls: *const bool) -> Datum {
    // SAFETY: as the caller promises; the closure holds nothing to drop.
    unsafe { pg_guard_ffi_boundary(|| form_unguarded(descriptor, values, nulls)) }
}

unsafe fn form_unguarded(descriptor: pg_sys::TupleDesc, values: *const Datum, nulls: *const bool) -> Datum {
    // SAFETY: see `form`. The server copies the fields, also those that lie outside of their row.
    unsafe {
        let count = usize::try_from((*descriptor).natts).unwrap_or(0);
        let all_values = raw::palloc(count * size_of::<Datum>()).cast::<Datum>();
        let all_nulls = raw::palloc(count * size_of::<bool>()).cast::<bool>();
        let mut field = 0;
        for n in 0..count {
            let is_dropped = (*catalog::attribute(descriptor, n as c_int)).attisdropped;
            *all_nulls.add(n) = is_dropped || *nulls.add(field);
            *all_values.add(n) = if is_dropped { Datum::null() } else { *values.add(field) };
            field += usize::from(!is_dropped);
        }
        let tuple = raw::heap_form_tuple(descriptor, all_values, all_nulls);
        raw::HeapTupleHeaderGetDatum((*tuple).t_data)
    }
}
