//! The server's own SQL (SPI): a connection, statements that are run once, and those that are prepared and kept.
//!
//! Every name in a text is quoted and qualified by the caller. Invariant: a kept statement is freed by its owner alone.

use crate::errors::Refused;
use crate::server::planned::{self, Planned};
use crate::server::session::MainThread;
use crate::server::types::Value;
use pg_forms::c_string;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_int, c_long};
use std::rc::Rc;

const READ_WRITE: bool = false;
const READ_ONLY: bool = true;
const NO_LIMIT: c_long = 0;

/// A connection to the server's own SQL. One that is dropped without `close` is closed by the abort that follows.
pub(crate) struct Connection(());

impl Connection {
    pub(crate) fn open() -> Result<Connection, Refused> {
        // SAFETY: it opens a level that `close` or the end of the (sub)transaction closes.
        match unsafe { pg_sys::SPI_connect() } {
            code if code == pg_sys::SPI_OK_CONNECT as c_int => Ok(Connection(())),
            code => Err(Refused::Server { function: "SPI_connect", code }),
        }
    }

    /// Disconnects, and goes back to the memory context of the caller.
    pub(crate) fn close(self) -> Result<(), Refused> {
        // SAFETY: the connection is open; calls nest, so it is the innermost one.
        match unsafe { pg_sys::SPI_finish() } {
            code if code == pg_sys::SPI_OK_FINISH as c_int => Ok(()),
            code => Err(Refused::Server { function: "SPI_finish", code }),
        }
    }

    /// The first field of the first row that a query answers, as text; `None` where there is none. Reads by the
    /// snapshot that is in force, as it is used while statements of the caller run.
    pub(crate) fn read_text(&self, sql: Vec<u8>) -> Result<Option<CString>, Refused> {
        Connection::read_as(READ_ONLY, sql)
    }

    /// The same by a snapshot of now, which shows what the statements before it have done.
    pub(crate) fn read_text_now(&self, sql: Vec<u8>) -> Result<Option<CString>, Refused> {
        Connection::read_as(READ_WRITE, sql)
    }

    fn read_as(how: bool, sql: Vec<u8>) -> Result<Option<CString>, Refused> {
        let sql = c_string(sql);
        // SAFETY: the text ends with a NUL; the result is read only if there is a row, and copied before it goes.
        unsafe {
            let code = pg_sys::SPI_execute(sql.as_ptr(), how, 1);
            if code != pg_sys::SPI_OK_SELECT as c_int {
                return Err(Refused::Server { function: "SPI_execute", code });
            }
            let table = pg_sys::SPI_tuptable;
            if pg_sys::SPI_processed == 0 || table.is_null() {
                return Ok(None);
            }
            let text = pg_sys::SPI_getvalue(*(*table).vals, (*table).tupdesc, 1);
            Ok((!text.is_null()).then(|| CStr::from_ptr(text).to_owned()))
        }
    }

    /// Runs a text of one statement with values for its parameters. Answers how many rows it reached.
    pub(crate) fn run_direct(&self, sql: Vec<u8>, values: &[Value]) -> Result<u64, Refused> {
        let sql = c_string(sql);
        let mut types: Vec<Oid> = values.iter().map(|value| value.type_oid()).collect();
        let mut datums: Vec<Datum> = values.iter().map(|value| value.datum()).collect();
        let none_is_null = std::ptr::null();
        // SAFETY: the text ends with a NUL; there are as many types as values, and each value is of its type.
        unsafe {
            let code = pg_sys::SPI_execute_with_args(
                sql.as_ptr(),
                values.len() as c_int,
                types.as_mut_ptr(),
                datums.as_mut_ptr(),
                none_is_null,
                READ_WRITE,
                NO_LIMIT,
            );
            match code {
                0.. => Ok(pg_sys::SPI_processed),
                code => Err(Refused::Server { function: "SPI_execute_with_args", code }),
            }
        }
    }

    /// Prepares a statement and keeps it. The text has a parameter for each type.
    pub(crate) fn prepare(&self, sql: Vec<u8>, types: &mut [Oid], planning: Planning) -> Result<Prepared, Refused> {
        let sql = c_string(sql);
        let options = match planning {
            Planning::Once => pg_sys::CURSOR_OPT_GENERIC_PLAN,
            Planning::EachTime => pg_sys::CURSOR_OPT_CUSTOM_PLAN,
        } as c_int;
        // SAFETY: the text ends with a NUL. Once kept, the plan lives until it is freed, and so does the source of its
        // one statement.
        unsafe {
            let kept = pg_sys::SPI_prepare_cursor(sql.as_ptr(), types.len() as c_int, types.as_mut_ptr(), options);
            if kept.is_null() {
                return Err(Refused::Server { function: "SPI_prepare", code: pg_sys::SPI_result });
            }
            match pg_sys::SPI_keepplan(kept) {
                0 => {
                    let sources = pg_sys::SPI_plan_get_plan_sources(kept);
                    let source = (*(*sources).elements).ptr_value.cast();
                    Ok(Prepared { kept, source, planned: RefCell::default() })
                }
                code => Err(Refused::Server { function: "SPI_keepplan", code }),
            }
        }
    }
}

/// How often a kept statement is planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Planning {
    /// Once for all values, and again when something changes.
    Once,
    /// For the values of each run.
    EachTime,
}

/// A prepared statement that is kept as long as this lives. It is freed later, by [`free_dropped`].
pub(crate) struct Prepared {
    kept: pg_sys::SPIPlanPtr,
    source: *mut pg_sys::CachedPlanSource,
    planned: RefCell<Option<Rc<Planned>>>,
}

static DROPPED: MainThread<RefCell<Vec<pg_sys::SPIPlanPtr>>> = MainThread(RefCell::new(Vec::new()));

/// Frees what was dropped since the last call. Called at the start of a call, never while a callback or an error is
/// under way.
pub(crate) fn free_dropped() {
    planned::release_dropped();
    loop {
        let Some(kept) = DROPPED.borrow_mut().pop() else { return };
        // SAFETY: the plan was kept, and nobody holds it any more.
        unsafe { pg_sys::SPI_freeplan(kept) };
    }
}

impl Prepared {
    /// The server's plan, as long as this lives.
    pub(crate) fn kept(&self) -> pg_sys::SPIPlanPtr {
        self.kept
    }

    /// What its one statement is planned from, as long as this lives.
    pub(crate) fn source(&self) -> *mut pg_sys::CachedPlanSource {
        self.source
    }

    /// The plan that is held, if it is still the right one. The caller has its table locked as the statement locks it.
    pub(crate) fn planned(&self) -> Option<Rc<Planned>> {
        // SAFETY: the source is kept.
        self.planned.borrow().as_ref().filter(|planned| unsafe { planned.is_right(self.source) }).cloned()
    }

    /// Holds the plan that the server has made for a statement on this table, if it can be held.
    pub(crate) fn hold_plan(&self, table: Oid) {
        // SAFETY: the source is kept.
        self.planned.replace(unsafe { Planned::of(self.source, table) }.map(Rc::new));
    }

    /// How often the server has planned it.
    pub(crate) fn generation(&self) -> i32 {
        // SAFETY: the source is kept.
        unsafe { (*self.source).generation }
    }

    /// The memory of the source, and of what the server has planned for it last.
    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: the source is kept, and so is what was planned for it, if that is there; both have memory contexts of
        // their own.
        unsafe {
            let source = &*self.source;
            let planned = source.gplan.as_ref().map_or(0, |plan| pg_sys::MemoryContextMemAllocated(plan.context, true));
            pg_sys::MemoryContextMemAllocated(source.context, true) + planned
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        DROPPED.borrow_mut().push(self.kept);
    }
}
