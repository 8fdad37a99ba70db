//! What the server calls when something ends or changes, as functions of this library that know nothing of how.
//!
//! Invariant: each is a function without state, registered once for the life of the backend. It raises no error.

use pgrx::pg_sys::{self, Datum, Oid, SubTransactionId};
use pgrx::prelude::*;
use std::ffi::c_void;

/// The end of a subtransaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SubtransactionEnd {
    /// Its effects are gone.
    Aborted(SubTransactionId),
    /// Its effects are its parent's.
    Committed { ended: SubTransactionId, parent: SubTransactionId },
}

/// A catalog, by its cache.
#[cfg(not(feature = "pg19"))]
pub(crate) type CatalogId = i32;
/// A catalog, by its cache.
#[cfg(feature = "pg19")]
pub(crate) type CatalogId = pg_sys::SysCacheIdentifier::Type;

/// Has a function called at the end of each transaction, and each part of a prepared one.
pub(crate) fn at_transaction_end(act: fn()) {
    // SAFETY: the callback gets the function back, which is never unloaded.
    unsafe { pg_sys::RegisterXactCallback(Some(transaction_ended), act as *mut c_void) };
}

/// Has a function called at the end of each subtransaction.
pub(crate) fn at_subtransaction_end(act: fn(SubtransactionEnd)) {
    // SAFETY: the callback gets the function back, which is never unloaded.
    unsafe { pg_sys::RegisterSubXactCallback(Some(subtransaction_ended), act as *mut c_void) };
}

/// Has a function called when the locks of a transaction are given back, with whether it has committed or was prepared.
pub(crate) fn after_locks(act: fn(bool)) {
    // SAFETY: the callback gets the function back, which is never unloaded.
    unsafe { pg_sys::RegisterResourceReleaseCallback(Some(locks_released), act as *mut c_void) };
}

/// Has a function called with the oid of each relation that has changed; with none for all of them.
pub(crate) fn at_relation_change(act: fn(Option<Oid>)) {
    // SAFETY: the callback gets the function back, which is never unloaded.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), Datum::from(act as usize)) };
}

/// Has a function called with the catalog and the hash of each of its entries that has changed; with 0 for all of them.
pub(crate) fn at_catalog_change(catalog: CatalogId, act: fn(CatalogId, u32)) {
    // SAFETY: the callback gets the function back, which is never unloaded.
    unsafe { pg_sys::CacheRegisterSyscacheCallback(catalog, Some(catalog_changed), Datum::from(act as usize)) };
}

/// Has a function called with a query when its memory is freed. Another query can have the same memory afterwards.
///
/// # Safety
///
/// The query's memory is still there.
pub(crate) unsafe fn at_end_of_query(query: pg_sys::MemoryContext, act: fn(pg_sys::MemoryContext)) {
    // SAFETY: as the caller promises; both entries live in the query's memory, as the server asks, and are filled
    // before they are passed.
    unsafe {
        let ended = pg_sys::MemoryContextAlloc(query, size_of::<QueryEnded>()).cast::<QueryEnded>();
        ended.write(QueryEnded { query, act });
        let size = size_of::<pg_sys::MemoryContextCallback>();
        let entry = pg_sys::MemoryContextAlloc(query, size).cast::<pg_sys::MemoryContextCallback>();
        entry.write(pg_sys::MemoryContextCallback {
            func: Some(query_ended),
            arg: ended.cast(),
            next: std::ptr::null_mut(),
        });
        pg_sys::MemoryContextRegisterResetCallback(query, entry);
    }
}

struct QueryEnded {
    query: pg_sys::MemoryContext,
    act: fn(pg_sys::MemoryContext),
}

#[pg_guard]
unsafe extern "C-unwind" fn query_ended(ended: *mut c_void) {
    // SAFETY: the memory is freed after the callbacks are called.
    let ended = unsafe { &*ended.cast::<QueryEnded>() };
    (ended.act)(ended.query);
}

/// Most events are none of an end, so the guard is around what is done at one.
unsafe extern "C-unwind" fn transaction_ended(event: pg_sys::XactEvent::Type, act: *mut c_void) {
    use pg_sys::XactEvent::*;
    // Deferred triggers still run at the events before the end.
    if matches!(event, XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE) {
        // SAFETY: the function that was registered.
        unsafe { at_end(act) };
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_end(act: *mut c_void) {
    // SAFETY: the function that was registered.
    unsafe { std::mem::transmute::<*mut c_void, fn()>(act)() };
}

#[pg_guard]
unsafe extern "C-unwind" fn subtransaction_ended(
    event: pg_sys::SubXactEvent::Type,
    ended: SubTransactionId,
    parent: SubTransactionId,
    act: *mut c_void,
) {
    let end = match event {
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => SubtransactionEnd::Aborted(ended),
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => SubtransactionEnd::Committed { ended, parent },
        _ => return,
    };
    // SAFETY: the function that was registered.
    unsafe { std::mem::transmute::<*mut c_void, fn(SubtransactionEnd)>(act)(end) };
}

/// Called in each of three phases for each owner of resources; the guard is around what is done in one of them.
unsafe extern "C-unwind" fn locks_released(
    phase: pg_sys::ResourceReleasePhase::Type,
    is_commit: bool,
    is_transaction: bool,
    act: *mut c_void,
) {
    if is_transaction && phase == pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_AFTER_LOCKS {
        // SAFETY: the function that was registered.
        unsafe { after_locks_of(is_commit, act) };
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn after_locks_of(is_commit: bool, act: *mut c_void) {
    // SAFETY: the function that was registered.
    unsafe { std::mem::transmute::<*mut c_void, fn(bool)>(act)(is_commit) };
}

#[pg_guard]
unsafe extern "C-unwind" fn relation_changed(act: Datum, oid: Oid) {
    let changed = (oid != pg_sys::InvalidOid).then_some(oid);
    // SAFETY: the function that was registered.
    unsafe { std::mem::transmute::<usize, fn(Option<Oid>)>(act.value())(changed) };
}

#[pg_guard]
unsafe extern "C-unwind" fn catalog_changed(act: Datum, catalog: CatalogId, hash: u32) {
    // SAFETY: the function that was registered.
    unsafe { std::mem::transmute::<usize, fn(CatalogId, u32)>(act.value())(catalog, hash) };
}
