//! Functions of the server without the guard that `pg_sys` puts around each of its own.
//!
//! For callers that raise no error, or have one guard around many calls. Invariant: every declaration is that of the
//! bindings, checked when this is compiled.

use pgrx::pg_sys::{self, *};
use std::ffi::{c_char, c_int, c_void};

macro_rules! declare {
    ($( $(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $answer:ty)?; )+) => {
        unsafe extern "C-unwind" { $(
            $(#[$attribute])*
            pub(crate) fn $name($($argument: $type),*) $(-> $answer)?;
        )+ }
        $(
            $(#[$attribute])*
            const _: unsafe fn($($type),*) $(-> $answer)? = pg_sys::$name;
        )+
    };
}

// The clock, and the state of the server.
declare! {
    fn GetCurrentTimestamp() -> TimestampTz;
    fn GetTopFullTransactionIdIfAny() -> FullTransactionId;
    fn GetUserId() -> Oid;
    fn RecoveryInProgress() -> bool;
    fn get_fn_expr_argtype(function: *mut FmgrInfo, argument: c_int) -> Oid;
}

// Locks in shared memory, and what they guard.
declare! {
    fn BackendPidGetProcWithLock(pid: c_int) -> *mut PGPROC;
    fn LWLockAcquire(lock: *mut LWLock, mode: LWLockMode::Type) -> bool;
    fn LWLockRelease(lock: *mut LWLock);
}

// Locks of transactions.
declare! {
    fn LockRelease(tag: *const LOCKTAG, mode: LOCKMODE, of_session: bool) -> bool;
    fn LockWaiterCount(tag: *const LOCKTAG) -> c_int;
}

// Rows of the extension's own tables.
declare! {
    fn ReadBuffer(relation: Relation, block: BlockNumber) -> Buffer;
    fn RelationGetNumberOfBlocksInFork(relation: Relation, fork: ForkNumber::Type) -> BlockNumber;
    fn ReleaseBuffer(buffer: Buffer);
    fn heap_deform_tuple(tuple: HeapTuple, columns: TupleDesc, values: *mut Datum, are_null: *mut bool);
    fn heap_fetch(
        relation: Relation,
        snapshot: Snapshot,
        tuple: HeapTuple,
        buffer: *mut Buffer,
        keep_buffer: bool,
    ) -> bool;
    fn heap_freetuple(tuple: HeapTuple);
    #[cfg(not(feature = "pg19"))]
    fn heap_page_prune_opt(relation: Relation, buffer: Buffer);
    #[cfg(feature = "pg19")]
    fn heap_page_prune_opt(relation: Relation, buffer: Buffer, map: *mut Buffer, is_read_only: bool);
    #[cfg(feature = "pg15")]
    fn simple_heap_update(relation: Relation, old: ItemPointer, tuple: HeapTuple);
    #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
    fn simple_heap_update(
        relation: Relation,
        old: ItemPointer,
        tuple: HeapTuple,
        indexes: *mut TU_UpdateIndexes::Type,
    );
    #[cfg(feature = "pg19")]
    fn simple_heap_update(
        relation: Relation,
        old: *const ItemPointerData,
        tuple: HeapTuple,
        indexes: *mut TU_UpdateIndexes::Type,
    );
}

// Reading a jsonb value.
declare! {
    fn JsonbIteratorInit(container: *mut JsonbContainer) -> *mut JsonbIterator;
    fn JsonbIteratorNext(
        iterator: *mut *mut JsonbIterator,
        value: *mut JsonbValue,
        skip_nested: bool,
    ) -> JsonbIteratorToken::Type;
}

// Running a statement.
declare! {
    fn CommandCounterIncrement();
    fn bms_del_member(set: *mut Bitmapset, member: c_int) -> *mut Bitmapset;
    fn bms_is_member(member: c_int, set: *const Bitmapset) -> bool;
    fn CreateQueryDesc(
        plan: *mut PlannedStmt,
        text: *const c_char,
        snapshot: Snapshot,
        crosscheck: Snapshot,
        receiver: *mut DestReceiver,
        parameters: ParamListInfo,
        environment: *mut QueryEnvironment,
        instrument: c_int,
    ) -> *mut QueryDesc;
    fn EnsurePortalSnapshotExists();
    fn ExecutorEnd(query: *mut QueryDesc);
    fn ExecutorFinish(query: *mut QueryDesc);
    #[cfg(any(feature = "pg18", feature = "pg19"))]
    fn ExecutorRun(query: *mut QueryDesc, direction: ScanDirection::Type, count: u64);
    #[cfg(not(any(feature = "pg18", feature = "pg19")))]
    fn ExecutorRun(query: *mut QueryDesc, direction: ScanDirection::Type, count: u64, once: bool);
    fn ExecutorStart(query: *mut QueryDesc, flags: c_int);
    fn FreeQueryDesc(query: *mut QueryDesc);
    fn GetActiveSnapshot() -> Snapshot;
    fn GetCachedPlan(
        source: *mut CachedPlanSource,
        parameters: ParamListInfo,
        owner: ResourceOwner,
        environment: *mut QueryEnvironment,
    ) -> *mut CachedPlan;
    fn GetLatestSnapshot() -> Snapshot;
    fn GetTransactionSnapshot() -> Snapshot;
    fn HeapTupleHeaderGetDatum(tuple: HeapTupleHeader) -> Datum;
    fn PopActiveSnapshot();
    fn ProcessInterrupts();
    fn PushActiveSnapshot(snapshot: Snapshot);
    fn ReleaseCachedPlan(plan: *mut CachedPlan, owner: ResourceOwner);
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    fn heap_form_tuple(columns: TupleDesc, values: *mut Datum, are_null: *mut bool) -> HeapTuple;
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    fn heap_form_tuple(columns: TupleDesc, values: *const Datum, are_null: *const bool) -> HeapTuple;
    fn pg_detoast_datum_copy(value: *mut varlena) -> *mut varlena;
    fn domain_check(value: Datum, is_null: bool, domain: Oid, kept: *mut *mut c_void, context: MemoryContext);
    fn makeParamList(count: c_int) -> ParamListInfo;
    fn palloc(size: usize) -> *mut c_void;
    fn pfree(pointer: *mut c_void);
    fn set_errcontext_domain(domain: *const c_char) -> c_int;
    fn slot_getsomeattrs_int(slot: *mut TupleTableSlot, count: c_int);
    #[cfg(not(any(feature = "pg17", feature = "pg18", feature = "pg19")))]
    fn tuplestore_putvalues(
        store: *mut Tuplestorestate,
        columns: TupleDesc,
        values: *mut Datum,
        are_null: *mut bool,
    );
    #[cfg(any(feature = "pg17", feature = "pg18", feature = "pg19"))]
    fn tuplestore_putvalues(
        store: *mut Tuplestorestate,
        columns: TupleDesc,
        values: *const Datum,
        are_null: *const bool,
    );
    fn tuplestore_puttupleslot(store: *mut Tuplestorestate, slot: *mut TupleTableSlot);
}

unsafe extern "C-unwind" {
    /// The only one that the bindings lack, for it takes any number of arguments: `elog.h` declares it so.
    pub(crate) fn errcontext_msg(format: *const c_char, ...) -> c_int;
}
