//! A sequence that is read and set, not counted up: a number that no rollback takes back, logged before the commit of
//! whoever used it.

use crate::server::catalog;
use pgrx::pg_sys::{self, Datum, NullableDatum, Oid};

/// A sequence of the extension. To be used with the rights of its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sequence(Oid);

impl Sequence {
    /// The sequence of this oid; none where it is something else.
    pub(crate) fn of(oid: Oid) -> Option<Sequence> {
        (catalog::relation_kind(oid) == pg_sys::RELKIND_SEQUENCE).then_some(Sequence(oid))
    }

    pub(crate) fn oid(self) -> Oid {
        self.0
    }

    /// The last number; 0 where it has none.
    pub(crate) fn last(self) -> u64 {
        // SAFETY: the function takes a sequence and gives a bigint or null.
        let last = unsafe { Call::new([self.0.into()]).make(pg_sys::pg_sequence_last_value) };
        last.and_then(|last| u64::try_from(last.value() as i64).ok()).unwrap_or(0)
    }

    /// Sets the last number.
    pub(crate) fn set(self, last: i64) {
        // SAFETY: the function takes a sequence and a bigint. It raises the server's error where the sequence ends before.
        unsafe { Call::new([self.0.into(), last.into()]).make(pg_sys::setval_oid) };
    }
}

/// A call as the server lays it out: the arguments follow.
#[repr(C)]
struct Call<const N: usize> {
    head: pg_sys::FunctionCallInfoBaseData,
    arguments: [NullableDatum; N],
}

const _: () = assert!(size_of::<pg_sys::FunctionCallInfoBaseData>() == std::mem::offset_of!(Call<2>, arguments));

impl<const N: usize> Call<N> {
    fn new(arguments: [Datum; N]) -> Call<N> {
        let head = pg_sys::FunctionCallInfoBaseData { nargs: N as _, ..Default::default() };
        Call { head, arguments: arguments.map(|value| NullableDatum { value, isnull: false }) }
    }

    /// What the function answers; none for null.
    ///
    /// # Safety
    ///
    /// It takes arguments of these types.
    unsafe fn make(mut self, function: unsafe fn(pg_sys::FunctionCallInfo) -> Datum) -> Option<Datum> {
        // SAFETY: as the caller promises.
        let answer = unsafe { function((&raw mut self).cast()) };
        (!self.head.isnull).then_some(answer)
    }
}
