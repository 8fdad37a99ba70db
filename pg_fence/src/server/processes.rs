//! The sessions of the server: whose they are, and ending them.
//!
//! Not the right to do so. Invariant: a session is ended only while it is in the transaction that the caller has seen, and is
//! of the role that the caller has checked: a process ID can be another's by now, and a session in its next transaction.

use crate::server::lock_table::Transaction;
use crate::server::raw;
use pgrx::pg_sys::{self, Oid};
use std::ffi::{CStr, CString, c_int};

/// A session in the transaction that was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    /// The role that has logged in; none for a process that has none.
    pub(crate) role: Option<Oid>,
    /// Whether it has written its commit, and waits for a standby to have it too.
    pub(crate) waits_for_standby: bool,
}

/// The session that is in this transaction; none where it has ended, or was prepared.
pub(crate) fn session_in(transaction: &Transaction) -> Option<Session> {
    with_process(transaction, |process| Session {
        role: (process.roleId != pg_sys::InvalidOid).then_some(process.roleId),
        waits_for_standby: process.syncRepState != NOT_WAITING,
    })
}

/// Ends the session of this role that is in this transaction, as pg_terminate_backend() does. Answers whether it was there.
pub(crate) fn terminate(transaction: &Transaction, role: Option<Oid>) -> bool {
    const TERMINATE: c_int = 15;
    let role = role.unwrap_or(pg_sys::InvalidOid);
    // Whoever has written anything cannot leave the transaction before this is done: it would need the lock that is held here.
    let sent = with_process(transaction, |process| {
        // SAFETY: the process is one of the server's, which leads a group of its own.
        process.roleId == role && process.syncRepState == NOT_WAITING && unsafe { kill(-process.pid, TERMINATE) == 0 }
    });
    sent == Some(true)
}

/// Whether a role is a superuser; a process without a role may do as much.
pub(crate) fn is_superuser(role: Option<Oid>) -> bool {
    // SAFETY: it reads the catalog alone.
    role.is_none_or(|role| unsafe { pg_sys::superuser_arg(role) })
}

/// Whether a role sees what the sessions of another do, by the rule of `pg_stat_activity`.
pub(crate) fn may_watch(watcher: Oid, role: Option<Oid>) -> bool {
    // SAFETY: it reads the catalog alone.
    unsafe {
        pg_sys::has_privs_of_role(watcher, pg_sys::ROLE_PG_READ_ALL_STATS.into())
            || role.is_some_and(|role| pg_sys::has_privs_of_role(watcher, role))
    }
}

/// The name of a role; empty where there is none.
pub(crate) fn role_name(role: Option<Oid>) -> CString {
    const MISSING_IS_OK: bool = true;
    // SAFETY: it reads the catalog; a null answer is not read.
    unsafe {
        let name = pg_sys::GetUserNameFromId(role.unwrap_or(pg_sys::InvalidOid), MISSING_IS_OK);
        if name.is_null() { CString::default() } else { CStr::from_ptr(name).to_owned() }
    }
}

const NOT_WAITING: c_int = pg_sys::SYNC_REP_NOT_WAITING as c_int;

/// Does something with the entry of the process that is in this transaction, while none can leave one in which it has written.
/// It may not call the server.
fn with_process<T>(transaction: &Transaction, act: impl FnOnce(&pg_sys::PGPROC) -> T) -> Option<T> {
    const PROC_ARRAY_LOCK: usize = 4;
    // SAFETY: the lock is one of the server's individual ones, known by its number. Entries are of running processes while it
    // is held; nothing in between raises an error.
    unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(PROC_ARRAY_LOCK)).lock;
        raw::LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
        let process = raw::BackendPidGetProcWithLock(transaction.pid).as_ref();
        let answer = process.filter(|process| virtual_id(process) == transaction.virtual_id).map(act);
        raw::LWLockRelease(lock);
        answer
    }
}

fn virtual_id(process: &pg_sys::PGPROC) -> (i32, u32) {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    return (process.backendId, process.lxid);
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    return (process.vxid.procNumber, process.vxid.lxid);
}

unsafe extern "C" {
    fn kill(process: c_int, signal: c_int) -> c_int;
}
