//! What is run in a subtransaction of its own, so that an error of the server has no effect but to be seen.

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::{self, panic::CaughtError};
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe};

/// What `act` gives. An error of the server then has no effect, and `or` says what to give instead: it may raise the error
/// again, which later than there cannot be done.
pub(crate) fn attempt<T>(
    act: impl FnOnce() -> T + UnwindSafe + RefUnwindSafe,
    or: impl Fn(CaughtError) -> T + UnwindSafe + RefUnwindSafe,
) -> T {
    // SAFETY: a savepoint is begun and ended around the call, on either way out; context and owner are those of before.
    unsafe {
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let back = move || {
            pg_sys::MemoryContextSwitchTo(context);
            pg_sys::CurrentResourceOwner = owner;
        };
        pgrx::PgTryBuilder::new(|| {
            let answer = act();
            pg_sys::ReleaseCurrentSubTransaction();
            answer
        })
        .catch_others(|cause| {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
            back();
            or(cause)
        })
        .finally(back)
        .execute()
    }
}

/// Runs what waits for a lock with a `lock_timeout` of so many milliseconds. Answers whether it had the lock by then. A
/// shorter timeout of the session stays, and is its error.
pub(crate) fn or_lock_timeout(ms: i32, act: impl FnOnce()) -> bool {
    // SAFETY: reading a setting of the backend.
    let own = unsafe { pg_sys::LockTimeout };
    let is_own = own > 0 && own <= ms;
    // SAFETY: writing it; it is put back on either way out.
    let set = |ms| unsafe { pg_sys::LockTimeout = ms };
    attempt(
        AssertUnwindSafe(|| {
            set(if is_own { own } else { ms.max(1) });
            act();
            set(own);
            true
        }),
        |cause| {
            set(own);
            if is_own || sql_error_code(&cause) != Some(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE) {
                cause.rethrow();
            }
            false
        },
    )
}

/// The SQLSTATE of an error of the server; none of a panic.
pub(crate) fn sql_error_code(cause: &CaughtError) -> Option<PgSqlErrorCode> {
    match cause {
        CaughtError::PostgresError(report) => Some(report.sql_error_code()),
        _ => None,
    }
}
