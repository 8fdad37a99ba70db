//! What the CONTEXT of the server's own errors names.
//!
//! Invariant: the server's list of contexts has an entry of ours only while the call that it describes runs.

use crate::server::raw;
use pgrx::pg_sys;
use std::ffi::{CStr, c_char, c_void};

/// A line of context: a format with a `%s`, and after it a `%zu` where there is a place.
struct Line {
    format: *const c_char,
    name: *const c_char,
    place: usize,
}

/// Takes the last entry from the server's list, also when an error ends the call.
struct Entered {
    previous: *mut pg_sys::ErrorContextCallback,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: a variable of the backend's one thread; the entry before ours outlives it.
        unsafe { pg_sys::error_context_stack = self.previous };
    }
}

/// Calls `act`. An error of the server in it says in its CONTEXT what it is about: `format`, with `name` for its `%s`.
pub(crate) fn within<T>(format: &'static CStr, name: &CStr, act: impl FnOnce() -> T) -> T {
    with_line(Line { format: format.as_ptr(), name: name.as_ptr(), place: 0 }, act)
}

/// The same about an element of an array argument, by its place from 1.
pub(crate) fn within_element<T>(argument: &'static CStr, place: usize, act: impl FnOnce() -> T) -> T {
    with_line(Line { format: c"argument \"%s\", element %zu".as_ptr(), name: argument.as_ptr(), place }, act)
}

fn with_line<T>(mut line: Line, act: impl FnOnce() -> T) -> T {
    // SAFETY: a variable of the backend's one thread.
    let previous = unsafe { pg_sys::error_context_stack };
    let arg = (&raw mut line).cast();
    let mut entry = pg_sys::ErrorContextCallback { previous, callback: Some(add_line), arg };
    let _entered = Entered { previous };
    // SAFETY: the entry and the line outlive the call, after which the list ends with the one before.
    unsafe { pg_sys::error_context_stack = &raw mut entry };
    act()
}

unsafe extern "C-unwind" fn add_line(line: *mut c_void) {
    // SAFETY: called while an error is made, with the line of a call that runs.
    unsafe {
        let line = &*line.cast::<Line>();
        raw::set_errcontext_domain(std::ptr::null());
        raw::errcontext_msg(line.format, line.name, line.place);
    }
}
