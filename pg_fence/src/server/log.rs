//! Lines in the server's log, and notices to the client.

use pg_forms::c_string;
use pgrx::pg_sys;

/// Writes a line to the server's log.
pub fn log_line(message: Vec<u8>) {
    report_line(pg_sys::LOG as i32, message, None);
}

/// Writes a line for whoever looks at level DEBUG1, in the log or as a client; nobody else pays for making it.
pub fn debug_line(message: impl FnOnce() -> Vec<u8>) {
    let level = pg_sys::DEBUG1 as i32;
    // SAFETY: it compares settings.
    if unsafe { pg_sys::message_level_is_interesting(level) } {
        report_line(level, message(), None);
    }
}

/// Tells the client something that is no error.
pub fn notice(message: Vec<u8>, hint: Vec<u8>) {
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
