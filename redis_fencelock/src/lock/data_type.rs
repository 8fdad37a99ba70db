//! The type of a stored lock, as the server sees it: snapshots, append-only file, freeing, digest.
//!
//! Not the record, which is `fence::lock::codec`, and not what a record that arrives becomes.
//! Invariant: what one version has written a later one reads.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use fence::Fence;
use fence::lock::codec::{self, ENCODED_MAX, Notes};
use fence::lock::queue::LockName;
use redis_module::raw;

use crate::ffi::{Ctx, Io, Str, api, callback, warn};
use crate::lock::value::{self, Value};
use crate::lock::{arrival, index};
use crate::queue::waiters;
use crate::replication::APPLY;
use crate::timer::alarm;
use crate::{clock, config, server};

/// The name of the type in snapshots: nine characters, for ever.
const TYPE_NAME: &CStr = c"fencelock";
/// The version of what the type writes around the record, which has a version of its own.
const ENCODING: c_int = 2;
/// In the first one nothing followed the last fence.
const FIRST_ENCODING: c_int = 1;

/// Registers the type; false when the server refuses it.
pub(crate) fn register(ctx: Ctx) -> bool {
    // The servers write the module's name into a snapshot where one of these is set.
    let (aux_save, aux_save2) =
        if config::save_last_fence() { (Some(aux_save as _), Some(aux_save_if_any as _)) } else { (None, None) };
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load),
        rdb_save: Some(rdb_save),
        aof_rewrite: Some(aof_rewrite),
        free: Some(free),
        mem_usage: Some(mem_usage),
        digest: Some(digest),
        aux_load: Some(aux_load),
        // Redis 7.0 knows the first alone; later servers prefer the second, which may write nothing at all.
        aux_save,
        aux_save2,
        aux_save_triggers: raw::REDISMODULE_AUX_BEFORE_RDB as c_int,
        unlink2: Some(unlinked),
        // Two live copies of one hold must not be: COPY is refused without these.
        copy: None,
        copy2: None,
        unlink: None,
        free_effort: None,
        free_effort2: None,
        mem_usage2: None,
        // The index points at the value, so defragmentation must not move it.
        defrag: None,
    };
    // SAFETY: the name ends in NUL and the server copies the methods.
    let registered = unsafe { api!(RedisModule_CreateDataType)(ctx.0, TYPE_NAME.as_ptr(), ENCODING, &mut methods) };
    value::set_lock_type(registered);
    !registered.is_null()
}

callback! {
    fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) -> (), else fail_the_save();
    {
        if let Some(value) = Value::from_raw(value) {
            Io(io).save_bytes(encoded(&value, &mut [0; ENCODED_MAX]));
        }
    }
}

callback! {
    fn aof_rewrite(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) -> (), else fail_the_save();
    {
        if let Some(value) = Value::from_raw(value) {
            // SAFETY: the server passes the name of the key, alive during the call.
            let name = unsafe { Str::from_raw(key) };
            Io(io).emit_blob(APPLY, name, encoded(&value, &mut [0; ENCODED_MAX]));
        }
    }
}

/// Ends a child that saves, so that the server keeps the file that it has. In the server itself a save cannot be failed.
fn fail_the_save() {
    unsafe extern "C" {
        safe fn _exit(status: c_int) -> !;
    }
    if Ctx(ptr::null_mut()).flags() & raw::REDISMODULE_CTX_FLAGS_IS_CHILD != 0 {
        _exit(1);
    }
}

fn encoded<'b>(value: &Value, buffer: &'b mut [u8; ENCODED_MAX]) -> &'b [u8] {
    let stamp = clock::stamp(clock::exact_clocks(), server::is_primary());
    let notes = Notes { unjudged: server::is_unjudged(value.fence()), ..Notes::default() };
    codec::encode(&value.hold(), stamp, notes, buffer)
}

callback! {
    fn rdb_load(io: *mut raw::RedisModuleIO, encoding: c_int) -> *mut c_void, else ptr::null_mut();
    {
        if !is_known(encoding) {
            warn(&format!("a lock in encoding {encoding} cannot be read: this module reads up to {ENCODING}"));
            return ptr::null_mut();
        }
        let Some(loaded) = Io(io).load_bytes() else { return ptr::null_mut() };
        let name = Io(io).key_name().map_or(&[][..], Str::bytes);
        match arrival::take_in(loaded.bytes(), LockName { db: Io(io).db(), name }) {
            Ok(value) => value.into_raw().as_ptr(),
            Err(reason) => {
                warn(&format!("a lock is refused while loading: {reason}"));
                ptr::null_mut()
            }
        }
    }
}

callback! {
    /// Called on another thread too.
    fn free(value: *mut c_void) -> (), else ();
    {
        if let Some(value) = Value::from_raw(value) {
            index::free(value);
        }
    }
}

callback! {
    fn mem_usage(value: *const c_void) -> usize, else 0;
    {
        Value::from_raw(value.cast_mut()).map_or(0, |value| value.memory())
    }
}

callback! {
    /// What must be equal on a replica: not the deadline, which each server has on its own clock.
    fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) -> (), else ();
    {
        let Some(value) = Value::from_raw(value) else { return };
        let owner = value.owner();
        // SAFETY: the digest is that of the running call; pointer and length are of one slice.
        unsafe {
            api!(RedisModule_DigestAddLongLong)(digest, value.lease().fence.get() as i64);
            api!(RedisModule_DigestAddStringBuffer)(digest, owner.as_ptr().cast(), owner.len());
            api!(RedisModule_DigestEndSequence)(digest);
        }
    }
}

callback! {
    /// A value left its key: deleted, overwritten, evicted, renamed or moved. Which of them shows a moment later.
    fn unlinked(context: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) -> (), else ();
    {
        let Some(value) = Value::from_raw(value.cast_mut()) else { return };
        // A lock that was released in good order, as most are: its name is not worth two calls into the server.
        if !value.is_in_wheel() && waiters::is_empty() {
            return;
        }
        // SAFETY: the context is that of the running call.
        let (db, name) = unsafe {
            (api!(RedisModule_GetDbIdFromOptCtx)(context), api!(RedisModule_GetKeyNameFromOptCtx)(context))
        };
        if !name.is_null() {
            // SAFETY: the name is alive during the call.
            note_unlinked(value, LockName { db, name: unsafe { Str::from_raw(name.cast_mut()) }.bytes() });
        }
    }
}

/// Takes note of a value that leaves its key. Nothing may be written now, so it is checked in a moment.
fn note_unlinked(value: Value, lock: LockName) {
    if value.is_in_wheel() {
        index::suspect(value, lock);
        alarm::arm_now();
    }
    waiters::recheck_at(lock, clock::steady_us());
}

fn is_known(encoding: c_int) -> bool {
    (FIRST_ENCODING..=ENCODING).contains(&encoding)
}

callback! {
    fn aux_save(io: *mut raw::RedisModuleIO, _when: c_int) -> (), else fail_the_save();
    { save_last_fence(Io(io)) }
}

callback! {
    /// Writes nothing while no fence was issued, so that such a snapshot loads without the module.
    fn aux_save_if_any(io: *mut raw::RedisModuleIO, _when: c_int) -> (), else fail_the_save();
    {
        if server::last_fence() != 0 {
            save_last_fence(Io(io));
        }
    }
}

/// The last issued fence, and the fields of which there are none yet.
fn save_last_fence(io: Io) {
    io.save_number(server::last_fence());
    io.save_bytes(&[]);
}

fn load_last_fence(io: Io, encoding: c_int) -> Option<u64> {
    let last = io.load_number().filter(|&last| last <= Fence::MAX)?;
    if encoding != FIRST_ENCODING {
        codec::read_snapshot_fields(io.load_bytes()?.bytes()).ok()?;
    }
    Some(last)
}

callback! {
    fn aux_load(io: *mut raw::RedisModuleIO, encoding: c_int, _when: c_int) -> c_int, else raw::REDISMODULE_ERR as c_int;
    {
        match is_known(encoding).then(|| load_last_fence(Io(io), encoding)).flatten() {
            Some(last) => {
                server::observe(last);
                raw::REDISMODULE_OK as c_int
            }
            None => {
                warn("the last issued fence in this snapshot cannot be read");
                raw::REDISMODULE_ERR as c_int
            }
        }
    }
}
