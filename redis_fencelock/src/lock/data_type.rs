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

use crate::ffi::{Ctx, Digest, Io, KeyOrigin, Str, callback, system, warn};
use crate::lock::value::{self, Value, Viewed};
use crate::lock::{arrival, index};
use crate::queue::{awaiters, waiters};
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
    let registered = ctx.create_type(TYPE_NAME, ENCODING, &mut methods);
    value::set_lock_type(registered);
    !registered.is_null()
}

callback! {
    fn rdb_save(io: Io, value: Value) -> (), else fail_the_save();
    { io.save_bytes(encoded(&value, &mut [0; ENCODED_MAX])) }
}

callback! {
    fn aof_rewrite(io: Io, key: Str, value: Value) -> (), else fail_the_save();
    { io.emit_blob(APPLY, key, encoded(&value, &mut [0; ENCODED_MAX])) }
}

/// Ends a child that saves, so that the server keeps the file that it has. In the server itself a save cannot be
/// failed.
fn fail_the_save() {
    if Ctx::none().flags() & raw::REDISMODULE_CTX_FLAGS_IS_CHILD != 0 {
        system::exit(1);
    }
}

fn encoded<'b>(value: &Value, buffer: &'b mut [u8; ENCODED_MAX]) -> &'b [u8] {
    let stamp = clock::stamp(clock::exact_clocks(), server::is_primary());
    let notes = Notes { unjudged: server::is_unjudged(value.fence()), ..Notes::default() };
    codec::encode(&value.hold(), stamp, notes, buffer)
}

callback! {
    fn rdb_load(io: Io, encoding: c_int) -> *mut c_void, else ptr::null_mut();
    {
        if !is_known(encoding) {
            warn(&format!("a lock in encoding {encoding} cannot be read: this module reads up to {ENCODING}"));
            return ptr::null_mut();
        }
        let Some(loaded) = io.load_bytes() else { return ptr::null_mut() };
        let name = io.key_name().map_or(&[][..], Str::bytes);
        match arrival::take_in(loaded.bytes(), LockName { db: io.db(), name }) {
            Ok(value) => value.as_raw().as_ptr(),
            Err(reason) => {
                warn(&format!("a lock is refused while loading: {reason}"));
                ptr::null_mut()
            }
        }
    }
}

callback! {
    /// Called on another thread too.
    fn free(value: Value) -> (), else ();
    { index::free(value) }
}

callback! {
    fn mem_usage(value: Viewed) -> usize, else 0;
    { value.0.memory() }
}

callback! {
    /// What must be equal on a replica: not the deadline, which each server has on its own clock.
    fn digest(digest: Digest, value: Value) -> (), else ();
    { digest.add(value.fence().get(), value.owner()) }
}

callback! {
    /// A value leaves its key: deleted, overwritten, evicted, renamed or moved. Which of them, shows a moment later.
    fn unlinked(key: KeyOrigin, value: Viewed) -> (), else ();
    {
        let value = value.0;
        // Most locks were released: the index has dropped them, and their name would cost two calls into the server.
        if !value.is_in_wheel() && waiters::is_empty() && !awaiters::awaits(value.fence()) {
            return;
        }
        if let Some(name) = key.name() {
            note_unlinked(&value, LockName { db: key.db(), name: name.bytes() });
        }
    }
}

/// Notes a value that is leaving its key. Nothing may be written now, so the timer checks it.
fn note_unlinked(value: &Value, lock: LockName) {
    if value.is_in_wheel() {
        index::suspect(value, lock);
        alarm::arm_now();
    }
    waiters::recheck_at(lock, clock::steady_us());
    if awaiters::awaits(value.fence()) {
        awaiters::unlink(lock, value.fence());
    }
}

fn is_known(encoding: c_int) -> bool {
    (FIRST_ENCODING..=ENCODING).contains(&encoding)
}

callback! {
    fn aux_save(io: Io, _when: c_int) -> (), else fail_the_save();
    { save_last_fence(io) }
}

callback! {
    /// Writes nothing while no fence was issued, so that such a snapshot loads without the module.
    fn aux_save_if_any(io: Io, _when: c_int) -> (), else fail_the_save();
    {
        if server::last_fence() != 0 {
            save_last_fence(io);
        }
    }
}

/// Saves the last issued fence, and an empty list of further fields.
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
    fn aux_load(io: Io, encoding: c_int, _when: c_int) -> c_int, else raw::REDISMODULE_ERR as c_int;
    {
        match is_known(encoding).then(|| load_last_fence(io, encoding)).flatten() {
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
