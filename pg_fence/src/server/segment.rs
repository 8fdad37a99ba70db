//! Memory that all sessions of the server share, as a value of one type each.
//!
//! Not what lies in it. Three ways lead to it: the server's registry of segments, from version 17 on; before that some bytes
//! of the main segment, for what is small; and what is reserved when the server starts, for a library that is preloaded.
//! Invariant: a segment is made ready once, before anyone else sees it, and lives as long as the server.

use crate::server::session::MainThread;
use pgrx::pg_sys;
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
use pgrx::pg_sys::panic::pgrx_extern_c_guard;
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::CStr;
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
use std::ffi::c_void;

/// What is shared under a name.
///
/// # Safety
///
/// All zeros, which `make_ready` then changes, is a value of the type. One of another layout has another name.
pub(crate) unsafe trait Segment: Sync + Sized + 'static {
    const NAME: &'static CStr;

    /// Makes the zeros what they should be. Nobody else uses them yet.
    fn make_ready(&mut self) {}

    /// This process has the segment from now on.
    fn attached(&'static self) {}
}

/// Whether a segment of any size can be had without preloading.
pub(crate) const CAN_ATTACH: bool = cfg!(not(any(feature = "pg15", feature = "pg16")));

/// The segment from the server's registry, which makes it for whoever asks first. The server refuses it with an error where
/// there is no room.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub(crate) fn registered<S: Segment>() -> Option<&'static S> {
    let mut found = false;
    // SAFETY: the segment has the size of its type, and is made ready before anyone sees it.
    let segment = unsafe {
        #[cfg(not(feature = "pg19"))]
        let segment =
            pg_sys::GetNamedDSMSegment(S::NAME.as_ptr(), size_of::<S>(), Some(make_registered::<S>), &mut found);
        #[cfg(feature = "pg19")]
        let segment = pg_sys::GetNamedDSMSegment(
            S::NAME.as_ptr(),
            size_of::<S>(),
            Some(make_registered::<S>),
            &mut found,
            std::ptr::null_mut(),
        );
        segment.cast::<S>().as_ref()
    };
    segment.inspect(|segment| segment.attached())
}

/// None: the server has no registry.
#[cfg(any(feature = "pg15", feature = "pg16"))]
pub(crate) fn registered<S: Segment>() -> Option<&'static S> {
    None
}

/// A small segment: from the registry where there is one.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub(crate) fn small<S: Segment>() -> Option<&'static S> {
    registered()
}

/// A small segment: from what the server's main one has left for such needs, under the lock that guards it.
#[cfg(any(feature = "pg15", feature = "pg16"))]
pub(crate) fn small<S: Segment>() -> Option<&'static S> {
    const ADDIN_SHMEM_INIT_LOCK: usize = 21;
    // SAFETY: the lock is one of the server's individual ones, known by its number.
    unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(ADDIN_SHMEM_INIT_LOCK)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let segment = in_main_segment();
        pg_sys::LWLockRelease(lock);
        segment
    }
}

/// What reserves and takes the one segment that is preloaded, and the server's hooks as they were before.
static PRELOADED: MainThread<Cell<Preloaded>> =
    MainThread(Cell::new(Preloaded { size: 0, take: || (), requested_before: None, started_before: None }));

#[derive(Clone, Copy)]
struct Preloaded {
    size: usize,
    take: fn(),
    requested_before: pg_sys::shmem_request_hook_type,
    started_before: pg_sys::shmem_startup_hook_type,
}

/// Reserves a segment, if the library is being preloaded. Called once, when it is loaded.
pub(crate) fn reserve<S: Segment>() {
    // SAFETY: the hooks are the server's to call, once each; those that were there before are called first.
    unsafe {
        if pg_sys::process_shared_preload_libraries_in_progress {
            PRELOADED.set(Preloaded {
                size: size_of::<S>(),
                take: take_reserved::<S>,
                requested_before: pg_sys::shmem_request_hook,
                started_before: pg_sys::shmem_startup_hook,
            });
            pg_sys::shmem_request_hook = Some(request);
            pg_sys::shmem_startup_hook = Some(start);
        }
    }
}

fn take_reserved<S: Segment>() {
    // SAFETY: called by the startup hook: the memory was requested, and the one process that runs starts all others.
    unsafe { in_main_segment::<S>() };
}

/// # Safety
///
/// Nobody else asks for a segment of this name meanwhile.
unsafe fn in_main_segment<S: Segment>() -> Option<&'static S> {
    let mut found = false;
    // SAFETY: the memory has the size of the type. If it was not found, nobody else uses it yet.
    let segment = unsafe {
        let memory = pg_sys::ShmemInitStruct(S::NAME.as_ptr(), size_of::<S>(), &mut found).cast::<S>();
        if !found {
            make_ready(memory);
        }
        memory.as_ref()
    };
    segment.inspect(|segment| segment.attached())
}

/// # Safety
///
/// The memory has the size of the type, and nobody else uses it.
unsafe fn make_ready<S: Segment>(memory: *mut S) {
    // SAFETY: as the caller promises; all zeros is a value of the type.
    unsafe {
        memory.write_bytes(0, 1);
        (*memory).make_ready();
    }
}

#[cfg(any(feature = "pg17", feature = "pg18"))]
unsafe extern "C-unwind" fn make_registered<S: Segment>(memory: *mut c_void) {
    // SAFETY: the server has made memory of the size that was asked for. No panic leaves the guard.
    unsafe { pgrx_extern_c_guard(|| make_ready::<S>(memory.cast())) };
}

#[cfg(feature = "pg19")]
unsafe extern "C-unwind" fn make_registered<S: Segment>(memory: *mut c_void, _argument: *mut c_void) {
    // SAFETY: the server has made memory of the size that was asked for. No panic leaves the guard.
    unsafe { pgrx_extern_c_guard(|| make_ready::<S>(memory.cast())) };
}

#[pg_guard]
unsafe extern "C-unwind" fn request() {
    let preloaded = PRELOADED.get();
    // SAFETY: the server calls this hook when memory may be requested.
    unsafe {
        if let Some(before) = preloaded.requested_before {
            before();
        }
        pg_sys::RequestAddinShmemSpace(preloaded.size);
    }
}

/// Called when the memory is there; again after a crash, with new memory.
#[pg_guard]
unsafe extern "C-unwind" fn start() {
    let preloaded = PRELOADED.get();
    // SAFETY: the server calls this hook in the one process that then starts all others.
    unsafe {
        if let Some(before) = preloaded.started_before {
            before();
        }
    }
    (preloaded.take)();
}
