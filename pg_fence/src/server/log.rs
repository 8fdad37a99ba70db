//! Messages of the server: lines of the log, notices to the client, errors.

use crate::server::catalog::RelationName;
use pg_forms::{c_string, packed_sqlstate};
use pgrx::pg_sys;
use std::ffi::{CStr, CString, c_char, c_int};

/// Writes a line to the server's log.
pub(crate) fn log_line(message: Vec<u8>) {
    report_line(pg_sys::LOG as i32, message, None);
}

/// Writes a line at level DEBUG1. The message is made only if the log or the client takes that level.
pub(crate) fn debug_line(message: impl FnOnce() -> Vec<u8>) {
    let level = pg_sys::DEBUG1 as i32;
    // SAFETY: it compares settings.
    if unsafe { pg_sys::message_level_is_interesting(level) } {
        report_line(level, message(), None);
    }
}

/// Sends the client a notice.
pub(crate) fn notice(message: Vec<u8>, hint: Vec<u8>) {
    report_line(pg_sys::NOTICE as i32, message, Some(hint));
}

fn report_line(level: i32, message: Vec<u8>, hint: Option<Vec<u8>>) {
    let (message, hint) = (c_string(message), hint.map(c_string));
    let mut entry = pg_sys::ErrorData {
        elevel: level,
        message: message.as_ptr().cast_mut(),
        hint: hint.as_ref().map_or(std::ptr::null_mut(), |hint| hint.as_ptr().cast_mut()),
        filename: c"pg_fence".as_ptr(),
        funcname: c"pg_fence".as_ptr(),
        ..Default::default()
    };
    // SAFETY: below ERROR the function returns; it copies the strings, which live until then.
    unsafe { pg_sys::ThrowErrorData(&mut entry) };
}

/// An error on its way to the server.
pub(crate) struct Report {
    sqlstate: &'static str,
    message: Vec<u8>,
    detail: Option<Vec<u8>>,
    hint: Option<Vec<u8>>,
    relation: Option<RelationName>,
    column: Option<CString>,
    routine: &'static CStr,
}

impl Report {
    pub(crate) fn new(sqlstate: &'static str, message: Vec<u8>) -> Report {
        Report { sqlstate, message, detail: None, hint: None, relation: None, column: None, routine: c"pg_fence" }
    }

    pub(crate) fn message_if(mut self, yes: bool, message: impl FnOnce() -> Vec<u8>) -> Report {
        if yes {
            self.message = message();
        }
        self
    }

    /// The same with words before the message.
    pub(crate) fn prefixed(mut self, mut words: Vec<u8>) -> Report {
        words.append(&mut self.message);
        self.message = words;
        self
    }

    pub(crate) fn detail(mut self, detail: Vec<u8>) -> Report {
        self.detail = Some(detail);
        self
    }

    pub(crate) fn hint(mut self, hint: Vec<u8>) -> Report {
        self.hint = Some(hint);
        self
    }

    pub(crate) fn about(mut self, relation: RelationName) -> Report {
        self.relation = Some(relation);
        self
    }

    pub(crate) fn column(mut self, column: CString) -> Report {
        self.column = Some(column);
        self
    }

    /// The function of the server that drivers may know the error by.
    pub(crate) fn routine(mut self, routine: &'static CStr) -> Report {
        self.routine = routine;
        self
    }

    /// Raises it as an error of the server, with a code word as the name of the constraint.
    pub(crate) fn raise(self, code: &CStr) -> ! {
        let mut error = pg_sys::ErrorData {
            elevel: pg_sys::PGERROR as c_int,
            sqlerrcode: packed_sqlstate(self.sqlstate),
            message: duplicate(&c_string(self.message)),
            detail: self.detail.map_or(std::ptr::null_mut(), |text| duplicate(&c_string(text))),
            hint: self.hint.map_or(std::ptr::null_mut(), |text| duplicate(&c_string(text))),
            filename: c"pg_fence".as_ptr(),
            funcname: self.routine.as_ptr(),
            ..Default::default()
        };
        error.constraint_name = duplicate(code);
        if let Some(relation) = self.relation {
            error.schema_name = duplicate(&relation.schema);
            error.table_name = duplicate(&relation.name);
        }
        if let Some(column) = self.column {
            error.column_name = duplicate(&column);
        }
        // SAFETY: every pointer in `error` is null or a string that lives in the current memory context. The function
        // copies them and does not return; the unwinding that follows frees the Rust values of all frames.
        unsafe { pg_sys::ThrowErrorData(&mut error) };
        unreachable!("an error was raised")
    }
}

fn duplicate(text: &CStr) -> *mut c_char {
    // SAFETY: `text` ends with a NUL; the copy lives in the current memory context.
    unsafe { pg_sys::pstrdup(text.as_ptr()) }
}

const _: () = assert!(packed_sqlstate("P0002") == pgrx::PgSqlErrorCode::ERRCODE_NO_DATA_FOUND as c_int);
