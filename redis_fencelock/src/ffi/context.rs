//! The context of a call.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;

use redis_module::raw;

use crate::ffi::guard::{FromServer, api};
use crate::ffi::main_thread::MainThread;
use crate::ffi::string::Str;

/// The context of a call, good for `'a`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Ctx<'a>(pub(in crate::ffi) *mut raw::RedisModuleCtx, PhantomData<&'a ()>);

// SAFETY: the context is good during the call.
unsafe impl FromServer for Ctx<'_> {
    type Raw = *mut raw::RedisModuleCtx;

    unsafe fn from_server(raw: Self::Raw) -> Self {
        Ctx(raw, PhantomData)
    }
}

/// A context for timers, good for the life of the process.
static DETACHED: MainThread<Cell<Ctx<'static>>> = MainThread::new(Cell::new(Ctx::none()));

/// What the server calls when a timer is due.
pub(crate) type TimerProc = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void);

/// What comes of a call of a command by the module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Called {
    Done,
    /// The server does not serve the key.
    NotPermitted,
    /// It was refused for another reason: while the cluster is down with ENETDOWN or EROFS.
    Failed,
}

/// EPERM: what a call to a key of another server ends with.
const NOT_PERMITTED: c_int = 1;

impl Ctx<'static> {
    /// No context: for calls that need none.
    pub(crate) const fn none() -> Ctx<'static> {
        Ctx(ptr::null_mut(), PhantomData)
    }

    /// A context for timers, good for the life of the process; none before `make_detached`.
    pub(crate) fn detached() -> Ctx<'static> {
        DETACHED.get()
    }

    /// A number drawn at random, of 63 bits: as an integer of the protocol it is not negative.
    pub(crate) fn random() -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: pointer and length are of one array.
        unsafe { api!(RedisModule_GetRandomBytes)(bytes.as_mut_ptr(), bytes.len()) };
        u64::from_le_bytes(bytes) >> 1
    }

    /// Whether a write may be propagated now. In a fail-over or a pause it would end the server.
    pub(crate) fn may_replicate() -> bool {
        // SAFETY: takes no argument.
        unsafe { api!(RedisModule_AvoidReplicaTraffic)() == 0 }
    }
}

impl Ctx<'_> {
    /// Makes the context for timers.
    pub(crate) fn make_detached(self) {
        // SAFETY: the context is that of the load; the one that it makes lives as long as the process.
        DETACHED.set(Ctx(unsafe { api!(RedisModule_GetDetachedThreadSafeContext)(self.0) }, PhantomData));
    }

    /// The flags of the context, `REDISMODULE_CTX_FLAGS_*`.
    pub(crate) fn flags(self) -> u32 {
        // SAFETY: a null context is allowed too.
        unsafe { api!(RedisModule_GetContextFlags)(self.0) as u32 }
    }

    pub(crate) fn selected_db(self) -> i32 {
        // SAFETY: the context is that of the running call.
        unsafe { api!(RedisModule_GetSelectedDb)(self.0) }
    }

    /// Selects a database; false when there is none of that number.
    pub(crate) fn select_db(self, db: i32) -> bool {
        // SAFETY: the context is that of the running call.
        unsafe { api!(RedisModule_SelectDb)(self.0, db) == raw::REDISMODULE_OK as c_int }
    }

    /// The connection that runs the command.
    pub(crate) fn client_id(self) -> u64 {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_GetClientId)(self.0) }
    }

    /// Closes a connection, if it is still there.
    pub(crate) fn close_client(self, client: u64) {
        // SAFETY: the server looks the number up.
        unsafe { api!(RedisModule_DeauthenticateAndCloseClient)(self.0, client) };
    }

    /// Publishes a keyspace event of the module's class, if the server is to publish any: an event that nobody gets
    /// costs as much as a reading of the clock.
    pub(crate) fn notify(self, event: &CStr, name: Str) {
        const CLASS: c_int = raw::REDISMODULE_NOTIFY_MODULE as c_int;
        // SAFETY: the event ends in NUL; context and name are alive.
        unsafe {
            if api!(RedisModule_GetNotifyKeyspaceEvents)() & CLASS != 0 {
                api!(RedisModule_NotifyKeyspaceEvent)(self.0, CLASS, event.as_ptr(), name.0);
            }
        }
    }

    /// Publishes the event that the server's own HSET does.
    pub(crate) fn notify_hset(self, name: Str) {
        const CLASS: c_int = raw::REDISMODULE_NOTIFY_HASH as c_int;
        // SAFETY: the event ends in NUL; context and name are alive.
        unsafe { api!(RedisModule_NotifyKeyspaceEvent)(self.0, CLASS, c"hset".as_ptr(), name.0) };
    }

    /// Signals clients that watch the key.
    pub(crate) fn signal_modified(self, name: Str) {
        // SAFETY: context and name are alive.
        unsafe { api!(RedisModule_SignalModifiedKey)(self.0, name.0) };
    }

    /// Calls a command with one argument, and drops the reply.
    pub(crate) fn call(self, command: &CStr, argument: Str) -> Called {
        // SAFETY: the format asks for one string, which follows.
        let reply =
            CallReply::of(unsafe { api!(RedisModule_Call)(self.0, command.as_ptr(), c"s".as_ptr(), argument.0) });
        // The server sets `errno`, and nothing else was called since.
        match reply {
            Some(_) => Called::Done,
            None if std::io::Error::last_os_error().raw_os_error() == Some(NOT_PERMITTED) => Called::NotPermitted,
            None => Called::Failed,
        }
    }

    /// The value of a setting of the server.
    pub(crate) fn setting(self, name: &CStr) -> Option<String> {
        let format = c"cc".as_ptr();
        // SAFETY: the format asks for two strings that end in NUL, which follow.
        let reply = CallReply::of(unsafe {
            api!(RedisModule_Call)(self.0, c"CONFIG".as_ptr(), format, c"GET".as_ptr(), name.as_ptr())
        })?;
        reply.element(1)
    }

    /// Calls `callback` on the event loop after `after_ms`.
    pub(crate) fn create_timer(self, after_ms: u64, callback: TimerProc) -> raw::RedisModuleTimerID {
        // SAFETY: the callback is a function of this module, which cannot be unloaded.
        unsafe { api!(RedisModule_CreateTimer)(self.0, after_ms as i64, Some(callback), ptr::null_mut()) }
    }

    pub(crate) fn stop_timer(self, timer: raw::RedisModuleTimerID) {
        // SAFETY: the id may be of a timer that is gone: the server looks it up.
        unsafe { api!(RedisModule_StopTimer)(self.0, timer, ptr::null_mut()) };
    }
}

/// The reply of a call of our own, freed when dropped.
struct CallReply(*mut raw::RedisModuleCallReply);

impl CallReply {
    fn of(reply: *mut raw::RedisModuleCallReply) -> Option<CallReply> {
        // Not `then_some`, which would make one of a null pointer and drop it.
        (!reply.is_null()).then(|| CallReply(reply))
    }

    fn text(&self) -> Option<String> {
        let mut length = 0;
        // SAFETY: the reply is alive, and the server returns a pointer to `length` bytes of it.
        unsafe {
            let start = api!(RedisModule_CallReplyStringPtr)(self.0, &mut length);
            let bytes = (!start.is_null()).then(|| std::slice::from_raw_parts(start.cast(), length))?;
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
    }

    /// The text of an element of an array.
    fn element(&self, at: usize) -> Option<String> {
        // SAFETY: the reply is alive; the element belongs to it and is not freed by itself.
        let element = CallReply::of(unsafe { api!(RedisModule_CallReplyArrayElement)(self.0, at) })?;
        let element = std::mem::ManuallyDrop::new(element);
        element.text()
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: made by a call and freed once.
        unsafe { api!(RedisModule_FreeCallReply)(self.0) }
    }
}
