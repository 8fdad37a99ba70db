//! Keys.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::{self, NonNull};

use redis_module::raw;

use crate::ffi::context::Ctx;
use crate::ffi::guard::{FromServer, api, callback, warn};
use crate::ffi::string::{OwnedStr, Str};

/// What an open key holds, seen from a type of the module.
pub(crate) enum Content {
    Nothing,
    /// A value of that type.
    Ours(NonNull<c_void>),
    Other,
}

/// An open key, closed when dropped.
pub(crate) struct Key(pub(in crate::ffi) *mut raw::RedisModuleKey);

impl Key {
    /// What the key holds; a value of another type than `ours` is another's.
    pub(crate) fn content(&self, ours: *mut raw::RedisModuleType) -> Content {
        // SAFETY: the key is open; a null one counts as empty.
        unsafe {
            if api!(RedisModule_ModuleTypeGetType)(self.0) == ours {
                let value = NonNull::new(api!(RedisModule_ModuleTypeGetValue)(self.0));
                value.map_or(Content::Other, Content::Ours)
            } else if api!(RedisModule_KeyType)(self.0) == raw::REDISMODULE_KEYTYPE_EMPTY as c_int {
                Content::Nothing
            } else {
                Content::Other
            }
        }
    }

    /// Stores a value, which the keyspace owns from now on, in place of anything that is there.
    ///
    /// # Safety
    /// The key is open for writing and the value is of type `ours`.
    pub(crate) unsafe fn set(&self, ours: *mut raw::RedisModuleType, value: NonNull<c_void>) {
        // SAFETY: as promised.
        unsafe { api!(RedisModule_ModuleTypeSetValue)(self.0, ours, value.as_ptr()) };
    }

    /// Stores a value in place of the one of the same type that is there, which is not freed.
    ///
    /// # Safety
    /// The key is open for writing, and both values are of type `ours`.
    pub(crate) unsafe fn replace(&self, ours: *mut raw::RedisModuleType, value: NonNull<c_void>) {
        let mut old = ptr::null_mut();
        // SAFETY: as promised.
        unsafe { api!(RedisModule_ModuleTypeReplaceValue)(self.0, ours, value.as_ptr(), &mut old) };
    }

    /// Deletes the key.
    pub(crate) fn delete(&self) {
        // SAFETY: the key is open for writing.
        unsafe { api!(RedisModule_DeleteKey)(self.0) };
    }

    /// Sets one field of a hash, or of a key that holds nothing.
    pub(crate) fn set_field(&self, field: Str, value: Str) {
        let (flags, end) = (raw::REDISMODULE_HASH_COUNT_ALL as c_int, ptr::null::<c_char>());
        // SAFETY: the key is open for writing; the list of fields and values ends in a null pointer.
        let set = unsafe { api!(RedisModule_HashSet)(self.0, flags, field.0, value.0, end) };
        if set != 1 {
            warn("a field of a hash was propagated and cannot be set");
        }
    }

    /// Replies all fields of a hash, in the protocol of the client.
    pub(crate) fn reply_fields(&self, ctx: Ctx) -> c_int {
        let mut fields = Fields { ctx, count: 0 };
        let data: *mut Fields = &mut fields;
        // SAFETY: key and context are alive; the cursor is freed once; the callback gets `data` during the calls alone.
        // The length of the map that is begun is set at the end.
        unsafe {
            api!(RedisModule_ReplyWithMap)(ctx.0, raw::REDISMODULE_POSTPONED_LEN as c_long);
            let cursor = api!(RedisModule_ScanCursorCreate)();
            while api!(RedisModule_ScanKey)(self.0, cursor, Some(on_field), data.cast()) != 0 {}
            api!(RedisModule_ScanCursorDestroy)(cursor);
            api!(RedisModule_ReplySetMapLength)(ctx.0, (*data).count);
        }
        raw::REDISMODULE_OK as c_int
    }

    /// Removes a TTL that a client has set: the lease alone decides when a lock ends.
    pub(crate) fn clear_expire(&self) {
        // SAFETY: the key is open for writing.
        unsafe {
            if api!(RedisModule_GetExpire)(self.0) != NO_EXPIRE {
                api!(RedisModule_SetExpire)(self.0, NO_EXPIRE);
            }
        }
    }
}

/// A reply of fields that is being written.
struct Fields<'a> {
    ctx: Ctx<'a>,
    count: c_long,
}

/// What `reply_fields` has passed to itself.
struct Data(*mut c_void);

// SAFETY: `on_field` is called by `reply_fields` alone.
unsafe impl FromServer for Data {
    type Raw = *mut c_void;

    unsafe fn from_server(raw: *mut c_void) -> Data {
        Data(raw)
    }
}

/// The key that is read, which the callback does not need.
struct Unused;

// SAFETY: it is dropped.
unsafe impl FromServer for Unused {
    type Raw = *mut raw::RedisModuleKey;

    unsafe fn from_server(_raw: Self::Raw) -> Unused {
        Unused
    }
}

callback! {
    fn on_field(_key: Unused, field: Str, value: Str, data: Data) -> (), else ();
    {
        // SAFETY: `reply_fields` passes a pointer to its own variable, and nobody else uses it during the scan.
        let fields = unsafe { &mut *data.0.cast::<Fields>() };
        fields.count += 1;
        // SAFETY: context and strings are alive; the server copies what it sends.
        unsafe {
            api!(RedisModule_ReplyWithString)(fields.ctx.0, field.0);
            api!(RedisModule_ReplyWithString)(fields.ctx.0, value.0);
        }
    }
}

const NO_EXPIRE: i64 = raw::REDISMODULE_NO_EXPIRE as i64;

impl Key {
    /// Closes the key before its time.
    pub(crate) fn close(&mut self) {
        let key = std::mem::replace(&mut self.0, ptr::null_mut());
        if !key.is_null() {
            // SAFETY: opened once and closed once.
            unsafe { api!(RedisModule_CloseKey)(key) }
        }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.close();
    }
}

/// The field of a hash, or why there is none.
pub(crate) enum Hash {
    WrongType,
    NoField,
    Field(OwnedStr),
}

impl Ctx<'_> {
    /// Opens a key for reading and writing. Nothing is signalled or created by that alone.
    pub(crate) fn open(self, name: Str) -> Key {
        let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int;
        // SAFETY: context and name are alive; the key is closed when dropped.
        Key(unsafe { api!(RedisModule_OpenKey)(self.0, name.0, mode) })
    }

    /// Opens a key for reading; `None` when there is none.
    pub(crate) fn open_for_reading(self, name: Str) -> Option<Key> {
        // SAFETY: context and name are alive; the key is closed when dropped.
        let key = unsafe { api!(RedisModule_OpenKey)(self.0, name.0, raw::REDISMODULE_READ as c_int) };
        (!key.is_null()).then(|| Key(key))
    }

    /// The field of a hash.
    pub(crate) fn hash_field(self, name: Str, field: &CStr) -> Hash {
        let Some(key) = self.open_for_reading(name) else { return Hash::NoField };
        let mut found: *mut raw::RedisModuleString = ptr::null_mut();
        let flags = raw::REDISMODULE_HASH_CFIELDS as c_int;
        let end: *const c_char = ptr::null();
        // SAFETY: the key is open; the list of fields and cells ends in a null pointer.
        unsafe {
            match api!(RedisModule_KeyType)(key.0) as isize {
                raw::REDISMODULE_KEYTYPE_EMPTY => return Hash::NoField,
                raw::REDISMODULE_KEYTYPE_HASH => {}
                _ => return Hash::WrongType,
            }
            let cell: *mut *mut raw::RedisModuleString = &mut found;
            api!(RedisModule_HashGet)(key.0, flags, field.as_ptr(), cell, end);
        }
        if found.is_null() { Hash::NoField } else { Hash::Field(OwnedStr(found)) }
    }
}
