//! The backend: its one thread, its clock, its transaction.

use crate::server::raw;
use crate::server::subtransaction;
use pgrx::pg_sys;
use std::ffi::{CStr, CString};
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::ThreadId;

/// State of the backend. A backend has one thread, which alone runs the functions of an extension.
pub(crate) struct MainThread<T>(pub(crate) T);

// SAFETY: see above; no other thread of the process ever calls into this library.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> Deref for MainThread<T> {
    type Target = T;

    fn deref(&self) -> &T {
        debug_assert!(is_first_thread(), "another thread uses the state of the backend");
        &self.0
    }
}

/// Whether this is the thread that asked first. A process that is forked keeps it.
fn is_first_thread() -> bool {
    static FIRST: OnceLock<ThreadId> = OnceLock::new();
    let this = std::thread::current().id();
    *FIRST.get_or_init(|| this) == this
}

/// The clock as microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    const US_PER_DAY: i64 = 24 * 60 * 60 * 1_000_000;
    let days = i64::from(pg_sys::POSTGRES_EPOCH_JDATE) - i64::from(pg_sys::UNIX_EPOCH_JDATE);
    // SAFETY: it reads the clock.
    let since_2000 = unsafe { raw::GetCurrentTimestamp() };
    u64::try_from(since_2000.saturating_add(days * US_PER_DAY)).unwrap_or(0)
}

/// Raises an error on a standby, before taking a lock that recovery does not allow.
pub(crate) fn refuse_on_standby(function: &CStr) {
    // SAFETY: it raises an error or does nothing.
    unsafe {
        if raw::RecoveryInProgress() {
            pg_sys::PreventCommandDuringRecovery(function.as_ptr());
        }
    }
}

/// The ID of this process.
pub(crate) fn process_id() -> i32 {
    // SAFETY: reading a number of the process.
    unsafe { pg_sys::MyProcPid }
}

/// The oid of the database.
pub(crate) fn database() -> u32 {
    // SAFETY: reading a number of the backend.
    unsafe { pg_sys::MyDatabaseId.to_u32() }
}

/// The clock, in the server's own time.
pub(crate) fn now() -> i64 {
    // SAFETY: it reads the clock.
    unsafe { raw::GetCurrentTimestamp() }
}

/// A time of [`now`] as the session writes it.
pub(crate) fn time_text(time: i64) -> CString {
    // SAFETY: the text is the server's own, copied before the next one takes its place.
    unsafe { CStr::from_ptr(pg_sys::timestamptz_to_str(time)).to_owned() }
}

/// A number that nobody can guess; `None` where the server has no source of such.
pub(crate) fn random() -> Option<u64> {
    let mut number = 0_u64;
    // SAFETY: as many bytes are written as the number has.
    let is_random = unsafe { pg_sys::pg_strong_random((&raw mut number).cast(), size_of::<u64>()) };
    is_random.then_some(number)
}

/// Whether a transaction is under way.
pub(crate) fn is_in_transaction() -> bool {
    // SAFETY: reading a state of the backend.
    unsafe { pg_sys::IsTransactionState() }
}

/// Whether this process helps another with a query.
pub(crate) fn is_parallel_worker() -> bool {
    // SAFETY: reading a number of the process.
    unsafe { pg_sys::ParallelWorkerNumber >= 0 }
}

/// Whether the server is a standby, or not yet consistent.
pub(crate) fn is_in_recovery() -> bool {
    // SAFETY: reading a flag of the server.
    unsafe { raw::RecoveryInProgress() }
}

/// The whole number of the transaction under way, if it has one yet.
pub(crate) fn transaction() -> Option<u64> {
    // SAFETY: reading a number of the backend.
    let number = unsafe { raw::GetTopFullTransactionIdIfAny() }.value;
    (number != 0).then_some(number)
}

/// The whole number of the next transaction that the server gives one.
pub(crate) fn next_transaction() -> u64 {
    // SAFETY: an aligned number of 64 bits in shared memory, which only grows. Whoever has seen a version has seen, by the
    // lock of its page, that its writer's number was given out.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let place = &raw mut (*pg_sys::ShmemVariableCache).nextXid.value;
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let place = &raw mut (*pg_sys::TransamVariables).nextXid.value;
        AtomicU64::from_ptr(place).load(Relaxed)
    }
}

/// The number of the running subtransaction.
pub(crate) fn subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: reading a number of the backend.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// Whether the transaction goes on after the statement that the client has sent: a transaction block, or one of several
/// statements in one message. DO and CALL go on by themselves, and what is not sent by a client ends its transaction
/// itself. A function that the client calls does not, but inside a savepoint of its own nothing shows that.
pub(crate) fn is_in_transaction_block() -> bool {
    // SAFETY: reading variables of the backend; the portal that runs stays while it does.
    unsafe {
        if pg_sys::IsTransactionBlock() {
            return true;
        }
        match clients_portal().as_ref() {
            Some(portal) => {
                matches!(portal.commandTag, pg_sys::CommandTag::CMDTAG_DO | pg_sys::CommandTag::CMDTAG_CALL)
            }
            None => pg_sys::MyBackendType == pg_sys::BackendType::B_BG_WORKER,
        }
    }
}

/// Whether the client has begun a transaction block that goes on after its statement: BEGIN, or several statements in one
/// message. A function in autocommit is in none, nor is one with subtransactions of its own, as far as the server shows it: of
/// those only a savepoint that was there before the statement says that there is a block.
pub(crate) fn is_in_clients_block() -> bool {
    const OUTERMOST: i32 = 1;
    // SAFETY: reading variables of the backend; the portal that runs stays while it does.
    unsafe {
        if pg_sys::GetCurrentTransactionNestLevel() <= OUTERMOST {
            return pg_sys::IsTransactionBlock();
        }
        clients_portal().as_ref().is_none_or(|portal| portal.createLevel > OUTERMOST)
    }
}

/// Gives up the snapshots that the client's statement has for its result, as COMMIT in a procedure does.
///
/// # Safety
///
/// The statement is a CALL that is not atomic.
pub(crate) unsafe fn give_up_result_snapshot() {
    // SAFETY: the snapshot, where there is one, is registered with the portal's owner.
    unsafe {
        let Some(portal) = clients_portal().as_mut() else { return };
        if !portal.holdSnapshot.is_null() && !portal.resowner.is_null() {
            pg_sys::UnregisterSnapshotFromOwner(portal.holdSnapshot, portal.resowner);
            portal.holdSnapshot = std::ptr::null_mut();
        }
    }
}

/// The portal that runs the client's statement. While a cursor of a function or of DO runs, that is the active one, and
/// the client's is the one without a name: no cursor can have none.
fn clients_portal() -> pg_sys::Portal {
    // SAFETY: the look-up reads a table of the backend; a portal stays while it runs.
    unsafe {
        let unnamed = pg_sys::GetPortalByName(c"".as_ptr());
        let runs = unnamed.as_ref().is_some_and(|portal| portal.status == pg_sys::PortalStatus::PORTAL_ACTIVE);
        if runs { unnamed } else { pg_sys::ActivePortal }
    }
}

/// Raises an error in a read-only transaction.
pub(crate) fn refuse_when_read_only(function: &CStr) {
    // SAFETY: it raises an error or does nothing.
    unsafe {
        if pg_sys::XactReadOnly {
            pg_sys::PreventCommandIfReadOnly(function.as_ptr());
        }
    }
}

/// `lock_timeout` in microseconds, where there is one.
pub(crate) fn lock_timeout_us() -> Option<u64> {
    // SAFETY: reading a setting of the backend.
    let ms = unsafe { pg_sys::LockTimeout };
    u64::try_from(ms).ok().filter(|&ms| ms > 0).map(|ms| ms * 1_000)
}

/// Whether all statements of the transaction read by one snapshot: REPEATABLE READ or SERIALIZABLE.
pub(crate) fn reads_one_snapshot() -> bool {
    // SAFETY: reading a number of the backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// Raises the server's error when the stack is nearly used up by recursion.
pub(crate) fn check_stack_depth() {
    // SAFETY: it raises an error or does nothing.
    unsafe { pg_sys::check_stack_depth() };
}

/// Raises the server's error if the call is cancelled.
pub(crate) fn check_for_interrupts() {
    pg_sys::check_for_interrupts!();
}

/// Reserves the prefix, so that a misspelt setting is an error.
pub(crate) fn reserve_setting_prefix(prefix: &CStr) {
    // SAFETY: the prefix ends with a NUL and is copied.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}

/// Makes the server analyse again every query that this session keeps, when it next runs.
pub(crate) fn forget_analyses() {
    // SAFETY: it marks entries of a list. Plans that run are kept until they are done.
    unsafe { pg_sys::ResetPlanCache() };
}

/// Does something during which the server acts on no cancel and no termination. It does so at the next occasion after it.
pub(crate) fn without_cancels<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: a counter of this process.
    let held = unsafe { pg_sys::InterruptHoldoffCount };
    // SAFETY: the same; an error that is not caught sets it to zero.
    unsafe { pg_sys::InterruptHoldoffCount = held + 1 };
    let answer = act();
    // SAFETY: the same. It is not counted down, because an error that `act` has caught has set it to zero, too.
    unsafe { pg_sys::InterruptHoldoffCount = held };
    answer
}

/// What `act` gives, or `None` when the server refused it with an error, which then has no effect. A cancel and the end
/// of the session pass through.
pub(crate) fn unless_refused<T>(act: impl FnOnce() -> T + UnwindSafe + RefUnwindSafe) -> Option<T> {
    use pgrx::PgSqlErrorCode::{ERRCODE_ADMIN_SHUTDOWN, ERRCODE_CRASH_SHUTDOWN, ERRCODE_QUERY_CANCELED};
    // SAFETY: reading a state of the backend.
    if unsafe { pg_sys::IsInParallelMode() } {
        return None;
    }
    let or = |cause| match subtransaction::sql_error_code(&cause) {
        Some(ERRCODE_QUERY_CANCELED | ERRCODE_ADMIN_SHUTDOWN | ERRCODE_CRASH_SHUTDOWN) | None => cause.rethrow(),
        Some(_) => None,
    };
    subtransaction::attempt(|| Some(act()), or)
}
