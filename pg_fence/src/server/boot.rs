//! The steady clock of the host, and which of its boots it belongs to.
//!
//! All backends of a server share both. The clock also runs while the host sleeps. Invariant: two readings whose boots have
//! one number, not 0, are of one clock.

use crate::server::session::{self, MainThread};
use crate::server::text;
use fence::lock::lease::Now;
use fence::lock::stored::Boot;
use std::cell::OnceCell;
use std::ffi::c_int;
use std::path::Path;

/// One moment: the steady clock, the wall clock, and the boot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Now,
    pub(crate) boot: Boot,
}

/// This moment.
pub(crate) fn moment() -> Moment {
    let now = Now { steady_us: steady_us(), wall_us: session::now_us() };
    Moment { now, boot: Boot::at(epoch(), now) }
}

/// The steady clock in microseconds.
pub(crate) fn steady_us() -> u64 {
    let mut time = Timespec { seconds: 0, nanos: 0 };
    // SAFETY: on the 64-bit systems that the server runs on a timespec is two integers of 64 bits.
    unsafe { clock_gettime(CLOCK, &mut time) };
    (time.seconds.max(0) as u64).saturating_mul(1_000_000).saturating_add(time.nanos.max(0) as u64 / 1_000)
}

/// A number of this boot of the host, and of the container's own clock where it has one; 0 where the system does not say.
fn epoch() -> u64 {
    static EPOCH: MainThread<OnceCell<u64>> = MainThread(OnceCell::new());
    *EPOCH.get_or_init(|| {
        let Ok(mut boot) = std::fs::read("/proc/sys/kernel/random/boot_id") else { return 0 };
        let clock = std::fs::read_link(Path::new("/proc/self/ns/time")).unwrap_or_default();
        boot.extend_from_slice(clock.as_os_str().as_encoded_bytes());
        text::hash(&boot)
    })
}

/// CLOCK_BOOTTIME.
#[cfg(target_os = "linux")]
const CLOCK: c_int = 7;
/// CLOCK_MONOTONIC, which other systems number so or otherwise; there no boot is known.
#[cfg(not(target_os = "linux"))]
const CLOCK: c_int = if cfg!(target_os = "macos") { 6 } else { 4 };

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}

const _: () = assert!(size_of::<usize>() == 8 && size_of::<Timespec>() == 16);

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
}
