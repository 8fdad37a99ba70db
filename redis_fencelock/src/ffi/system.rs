//! The server's memory, and calls into the C library.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use crate::ffi::guard::api;

/// Memory of the server, which is ended if there is none.
pub(crate) fn allocate(bytes: usize) -> NonNull<c_void> {
    // SAFETY: the server's allocator never fails: it ends the server.
    unsafe { NonNull::new_unchecked(api!(RedisModule_Alloc)(bytes)) }
}

/// # Safety
/// The memory is from `allocate` and used no more.
pub(crate) unsafe fn free(memory: NonNull<c_void>) {
    // SAFETY: as promised.
    unsafe { api!(RedisModule_Free)(memory.as_ptr()) }
}

pub(crate) const CLOCK_REALTIME: c_int = 0;
pub(crate) const CLOCK_MONOTONIC: c_int = 1;
pub(crate) const CLOCK_MONOTONIC_COARSE: c_int = 6;
/// Goes on while the machine sleeps, as the leases of its clients do. It costs the same and has no coarse form.
pub(crate) const CLOCK_BOOTTIME: c_int = 7;

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}

const _: () = assert!(size_of::<usize>() == 8 && size_of::<Timespec>() == 16);

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    safe fn _exit(status: c_int) -> !;
}

/// A clock of the system in microseconds; 0 before its epoch, and where there is no such clock. `std::time` takes twice
/// the time.
#[inline(always)]
pub(crate) fn clock_us(clock: c_int) -> u64 {
    let mut time = Timespec { seconds: 0, nanos: 0 };
    // SAFETY: on the 64-bit systems that the servers run on a timespec is two integers of 64 bits.
    unsafe { clock_gettime(clock, &mut time) };
    time.seconds.max(0) as u64 * 1_000_000 + time.nanos as u64 / 1_000
}

/// Ends the process at once.
pub(crate) fn exit(status: c_int) -> ! {
    _exit(status)
}
