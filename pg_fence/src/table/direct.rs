//! Statements of the extension that are run so seldom that their plans are not kept.
//!
//! Not those on fenced rows (`statement`, `plans`). Every name in such a text is quoted and qualified as it is there.

use crate::errors::Refused;
use crate::server::text::c_string;
use crate::server::{self, Value};
use crate::table::plans::Connection;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::{CStr, CString, c_int, c_long};

const READ_WRITE: bool = false;
const READ_ONLY: bool = true;
const NO_LIMIT: c_long = 0;

impl Connection {
    /// The first field of the first row that a query answers, as text; `None` where there is none. Reads by the
    /// snapshot that is in force, as it is used while statements of the caller run.
    pub fn read_text(&self, sql: Vec<u8>) -> Result<Option<CString>, Refused> {
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
            Ok((!text.is_null()).then(|| server::owned(CStr::from_ptr(text))))
        }
    }

    /// Runs a text of one statement with values for its parameters. Answers how many rows it reached.
    pub fn run_direct(&self, sql: Vec<u8>, values: &[Value]) -> Result<u64, Refused> {
        let sql = c_string(sql);
        let mut types: Vec<Oid> = values.iter().map(|value| value.type_oid).collect();
        let mut datums: Vec<Datum> = values.iter().map(|value| value.datum).collect();
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
