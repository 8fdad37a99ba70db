//! The server's own SQL (SPI), and the statements that are run so seldom that their plans are not kept.
//!
//! Not those on fenced rows (`statement`, `plans`). Every name in such a text is quoted and qualified as it is there.

use crate::errors::Refused;
use crate::server::types::Value;
use pg_forms::c_string;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::{CStr, CString, c_int, c_long};

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
        let sql = c_string(sql);
        // SAFETY: the text ends with a NUL; the result is read only if there is a row, and copied before it goes.
        unsafe {
            let code = pg_sys::SPI_execute(sql.as_ptr(), READ_ONLY, 1);
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
}
