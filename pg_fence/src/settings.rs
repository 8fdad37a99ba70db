//! The settings of the extension, and what is accepted as a fence by them.
//!
//! Only superusers may change them: whoever could raise the limits could lock every later holder out of a row.

use crate::errors::{FenceProblem, Refused};
use crate::server::session;
use crate::table::relation::{Column, Table};
use fence::lock::lease::{LONGEST, Millis};
use fence::{Brought, Fence, FenceLimits, FenceRefused};
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, GucValue};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

const US_PER_S: u64 = 1_000_000;
const DEFAULT_MAX_FENCE_AHEAD_S: i32 = (Brought::ByClaim.ahead_us() / US_PER_S) as i32;

static MAX_FENCE_AHEAD_S: GucSetting<i32> = GucSetting::<i32>::new(DEFAULT_MAX_FENCE_AHEAD_S);
static TRACK: GucSetting<bool> = GucSetting::<bool>::new(true);
static CHECK_LIFE: GucSetting<bool> = GucSetting::<bool>::new(true);
const DEFAULT_MAX_TTL_S: i32 = 24 * 60 * 60;
const LONGEST_S: i32 = (LONGEST.0 / 1_000) as i32;
const _: () = assert!(LONGEST.0 / 1_000 <= i32::MAX as u64);
static MAX_TTL_S: GucSetting<i32> = GucSetting::<i32>::new(DEFAULT_MAX_TTL_S);
/// Each waiter has a connection of its own, of which a pool has some ten.
const DEFAULT_MAX_WAITERS: i32 = 10;
static MAX_WAITERS: GucSetting<i32> = GucSetting::<i32>::new(DEFAULT_MAX_WAITERS);
static LEASE_IN_TRANSACTION: GucSetting<bool> = GucSetting::<bool>::new(false);
const PLAN_MEMORY_KB: i32 = 16 * 1024;
static PLAN_MEMORY: GucSetting<i32> = GucSetting::<i32>::new(PLAN_MEMORY_KB);
static MAX_FENCE_TEXT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"9007199254740991"));
const _: () = assert!(Fence::MAX == 9_007_199_254_740_991);

/// `pg_fence.max_fence` as a number. The server's own integer settings have 32 bits, so it is a text there.
static MAX_FENCE: AtomicU64 = AtomicU64::new(Fence::MAX);

/// Makes the settings known to the server. Called once, when the library is loaded.
pub(crate) fn define() {
    GucRegistry::define_int_guc(
        c"pg_fence.max_fence_ahead",
        c"How far a fence may be ahead of the server's clock.",
        c"Fences are numbers in microseconds since 1970. One that is far ahead would lock out every later holder.",
        &MAX_FENCE_AHEAD_S,
        0,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_bool_guc(
        c"pg_fence.track",
        c"Whether calls are counted in pg_stat_fence.",
        c"Counts that are there stay.",
        &TRACK,
        GucContext::Suset,
        GucFlags::empty(),
    );
    GucRegistry::define_bool_guc(
        c"pg_fence.check_life",
        c"Whether a claim counts only in the life of the server in which it was made.",
        c"A server that was promoted, restored or crashed can have lost writes that came after a claim.",
        &CHECK_LIFE,
        GucContext::Suset,
        GucFlags::empty(),
    );
    GucRegistry::define_int_guc(
        c"pg_fence.plan_memory",
        c"How much memory a session uses to keep the plans of the functions.",
        c"The plans that were used least recently are dropped. One that is larger is kept while it is the only one.",
        &PLAN_MEMORY,
        0,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_KB,
    );
    GucRegistry::define_int_guc(
        c"pg_fence.max_ttl",
        c"The longest lease, wait, longest hold and delay that fencelock_acquire() accepts.",
        c"A lease of a client that is gone keeps its lock for as long.",
        &MAX_TTL_S,
        1,
        LONGEST_S,
        GucContext::Suset,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_int_guc(
        c"pg_fence.max_waiters_per_lock",
        c"How many sessions may wait for a lock at the same time; one more is answered at once.",
        c"Each of them has a connection to the server, which a pool lacks meanwhile.",
        &MAX_WAITERS,
        0,
        i32::MAX,
        GucContext::Suset,
        GucFlags::empty(),
    );
    GucRegistry::define_bool_guc(
        c"pg_fence.lease_in_transaction",
        c"Whether locks may be acquired, extended and released in a transaction block.",
        c"Until COMMIT such a lock is busy, even past its ttl.",
        &LEASE_IN_TRANSACTION,
        GucContext::Userset,
        GucFlags::empty(),
    );
    // SAFETY: both hooks are guarded, so no panic leaves them, and neither raises an error.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            c"pg_fence.max_fence",
            c"The largest fence that is accepted.",
            c"An integer from 1 to 9007199254740991. Set it low where fences are small counters.",
            &MAX_FENCE_TEXT,
            GucContext::Suset,
            GucFlags::empty(),
            Some(check_max_fence),
            Some(assign_max_fence),
            None,
        );
    }
    session::reserve_setting_prefix(c"pg_fence");
}

/// Takes a number as a fence for this column. Errors: it is out of range.
pub(crate) fn accepted_fence(table: &Table, column: &Column, number: Option<i64>) -> Result<Fence, Refused> {
    let column_max = if column.base_type == pg_sys::INT4OID { i32::MAX as u64 } else { i64::MAX as u64 };
    let above_column =
        |fence, max| FenceProblem::AboveColumn { fence, max, table: table.name.clone(), column: column.name.clone() };
    accepted(number, column_max, above_column)
}

/// Takes a number as a fence that no column of the caller's holds. Errors: it is out of range.
pub(crate) fn accepted_number(number: Option<i64>) -> Result<Fence, Refused> {
    accepted(number, i64::MAX as u64, |fence, max| FenceProblem::AboveSetting { fence, max })
}

fn accepted(
    number: Option<i64>,
    column_max: u64,
    above_column: impl FnOnce(i64, u64) -> FenceProblem,
) -> Result<Fence, Refused> {
    let refused = |problem| Err(Refused::Fence(problem));
    let Some(number) = number else {
        return refused(FenceProblem::Null);
    };
    let limits = fence_limits();
    let max = limits.max.min(column_max);
    match (FenceLimits { max, ..limits }).accept(number, session::now_us()) {
        Ok(fence) => Ok(fence),
        Err(FenceRefused::NotPositive) => refused(FenceProblem::NotPositive(number)),
        Err(FenceRefused::AheadOfClock(horizon)) => {
            refused(FenceProblem::Ahead { fence: number, horizon, max_ahead_s: max_fence_ahead_s() })
        }
        Err(FenceRefused::AboveMax(max)) if max == column_max => refused(above_column(number, max)),
        Err(FenceRefused::AboveMax(Fence::MAX)) => refused(FenceProblem::AboveProtocol(number)),
        Err(FenceRefused::AboveMax(max)) => refused(FenceProblem::AboveSetting { fence: number, max }),
    }
}

fn fence_limits() -> FenceLimits {
    FenceLimits { max: MAX_FENCE.load(Ordering::Relaxed), max_ahead_us: max_fence_ahead_s().saturating_mul(US_PER_S) }
}

/// `pg_fence.track`.
pub(crate) fn tracks() -> bool {
    read(&TRACK)
}

/// `pg_fence.check_life`.
pub(crate) fn checks_life() -> bool {
    read(&CHECK_LIFE)
}

/// `pg_fence.max_ttl`.
pub(crate) fn max_ttl() -> Millis {
    Millis(u64::try_from(read(&MAX_TTL_S)).unwrap_or(0) * 1_000)
}

/// `pg_fence.max_waiters_per_lock`.
pub(crate) fn max_waiters() -> usize {
    usize::try_from(read(&MAX_WAITERS)).unwrap_or(0)
}

/// `pg_fence.lease_in_transaction`.
pub(crate) fn leases_in_transaction() -> bool {
    read(&LEASE_IN_TRANSACTION)
}

/// `pg_fence.plan_memory` in bytes.
pub(crate) fn plan_memory() -> usize {
    usize::try_from(read(&PLAN_MEMORY)).unwrap_or(0).saturating_mul(1024)
}

/// `pg_fence.max_fence_ahead` in seconds.
fn max_fence_ahead_s() -> u64 {
    u64::try_from(read(&MAX_FENCE_AHEAD_S)).unwrap_or(0)
}

/// The value of a setting, which the thread of the backend alone reads and writes.
fn read<T: Copy + GucValue<Raw = T>>(setting: &GucSetting<T>) -> T {
    // SAFETY: the setting lives as long as the library, and holds a value of its type.
    unsafe { *setting.as_ptr() }
}

/// A fence in canonical form: digits alone, no leading zero.
fn parse_fence(text: &CStr) -> Option<u64> {
    let digits = text.to_str().ok()?;
    let fence = Fence::new(digits.parse().ok()?)?;
    (fence.to_string() == digits).then_some(fence.get())
}

#[pg_guard]
unsafe extern "C-unwind" fn check_max_fence(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: the server passes a pointer to the new text, which is never null for a setting with a default.
    let text = unsafe { CStr::from_ptr(*value) };
    parse_fence(text).is_some()
}

#[pg_guard]
unsafe extern "C-unwind" fn assign_max_fence(value: *const c_char, _extra: *mut c_void) {
    // SAFETY: the text has passed the check above.
    let text = unsafe { CStr::from_ptr(value) };
    MAX_FENCE.store(parse_fence(text).unwrap_or(Fence::MAX), Ordering::Relaxed);
}
