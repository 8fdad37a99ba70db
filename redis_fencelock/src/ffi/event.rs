//! Events of the server, and what comes with each.

use std::ffi::{c_char, c_int, c_void};

use redis_module::raw;

use crate::ffi::context::Ctx;
use crate::ffi::guard::{FromServer, api};

/// What the server calls at an event.
pub(crate) type EventProc = unsafe extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);
/// What the server calls after a change of a key.
pub(crate) type KeyEventProc =
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, c_int, *const c_char, *mut raw::RedisModuleString) -> c_int;

impl Ctx<'_> {
    /// Subscribes to an event, or ends the subscription; false when the server lacks it.
    pub(crate) fn subscribe(self, id: u64, handler: Option<EventProc>) -> bool {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the handler is a function of this module, which stays loaded.
        unsafe { api!(RedisModule_SubscribeToServerEvent)(self.0, event, handler) == raw::REDISMODULE_OK as c_int }
    }

    /// Subscribes to evictions alone: other keys cost nothing. The server cannot refuse this one.
    pub(crate) fn subscribe_to_evictions(self, handler: KeyEventProc) {
        let evicted = raw::REDISMODULE_NOTIFY_EVICTED;
        // SAFETY: the handler is a function of this module, which stays loaded.
        unsafe { api!(RedisModule_SubscribeToKeyspaceEvents)(self.0, evicted, Some(handler)) };
    }
}

macro_rules! comes_with_an_event {
    ($type:ident from $raw:ident, |$data:ident| $made:expr) => {
        // SAFETY: this event comes with this struct, or with none.
        unsafe impl FromServer for Option<$type> {
            type Raw = *mut c_void;

            unsafe fn from_server(raw: *mut c_void) -> Option<$type> {
                // SAFETY: the struct is alive during the call.
                unsafe { raw.cast::<raw::$raw>().as_ref() }.map(|$data| $made)
            }
        }
    };
}

/// Of a flush.
pub(crate) struct Flush {
    /// The database; `None` for all.
    pub(crate) db: Option<i32>,
    /// The values are freed by this thread.
    pub(crate) is_sync: bool,
}
comes_with_an_event!(Flush from RedisModuleFlushInfo, |flush| Flush {
    db: (flush.dbnum >= 0).then_some(flush.dbnum),
    is_sync: flush.sync != 0
});

/// Of SWAPDB: the two databases.
pub(crate) struct Swap(pub [i32; 2]);
comes_with_an_event!(Swap from RedisModuleSwapDbInfo, |swap| Swap([swap.dbnum_first, swap.dbnum_second]));

/// Of a connection: its number.
pub(crate) struct Client(pub u64);
comes_with_an_event!(Client from RedisModuleClientInfo, |client| Client(client.id));
