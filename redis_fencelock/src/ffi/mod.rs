//! The edge to the server: raw calls behind small types, and the guard that turns a panic into an answer.
//!
//! No rule and no state of its own. Functions newer than Redis 7.0 are looked up, never assumed.
//! Invariant: no panic crosses into the server. Every callback is made by [`callback!`], which catches it.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_longlong, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use fence::cluster::Served;
use redis_module::raw;

use self::main_thread::MainThread;

#[cfg(feature = "drill")]
pub(crate) mod drill;
pub(crate) mod main_thread;

/// A function of the module API, or a panic that names the one that the server lacks. For use in an unsafe block: reading
/// the pointer is sound, because the server fills it while the module loads and never changes it.
macro_rules! api {
    ($name:ident) => {
        match ::redis_module::raw::$name {
            Some(function) => function,
            None => $crate::ffi::missing(stringify!($name)),
        }
    };
}
pub(crate) use api;

/// Defines a function that the server calls. A panic in it is logged and the value after `else` returned.
macro_rules! callback {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty, else $fallback:expr;
     $body:block) => {
        $(#[$meta])*
        $visibility unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            $crate::ffi::guarded(stringify!($name), || $body, || $fallback)
        }
    };
}
pub(crate) use callback;

#[cold]
pub(crate) fn missing(name: &'static str) -> ! {
    panic!("the server has no {name}")
}

/// Runs `body`; after a panic, logs it and runs `fallback`.
pub(crate) fn guarded<R>(name: &'static str, body: impl FnOnce() -> R, fallback: impl FnOnce() -> R) -> R {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(feature = "drill")]
        drill::panic_if_target(name);
        body()
    }));
    outcome.unwrap_or_else(|_| {
        warn(&format!("a panic in {name} was caught; the server goes on"));
        fallback()
    })
}

/// Makes panics write one log line and nothing else: the default hook prints a backtrace through the C library, whose
/// memory must not be freed by the allocator of a server that loads modules with RTLD_DEEPBIND.
pub(crate) fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| warn(&format!("internal error: {info}"))));
}

/// Writes a warning to the log of the server.
pub(crate) fn warn(line: &str) {
    let line = CString::new(format!("fencelock: {line}").replace('\0', "\\0")).unwrap_or_default();
    // SAFETY: strings that end in NUL; a null context is allowed.
    unsafe { api!(RedisModule_Log)(ptr::null_mut(), c"warning".as_ptr(), c"%s".as_ptr(), line.as_ptr()) }
}

/// What a client is told after a panic.
pub(crate) const INTERNAL_ERROR: &str = "ERR internal error, see the log of the server";

/// The context of a call.
#[derive(Clone, Copy)]
pub(crate) struct Ctx(pub *mut raw::RedisModuleCtx);

/// A context for timers, good for the life of the process.
static DETACHED: MainThread<Cell<Ctx>> = MainThread::new(Cell::new(Ctx::none()));

/// A string of the server, such as the name of a key, that somebody else keeps alive for `'a`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Str<'a>(*mut raw::RedisModuleString, PhantomData<&'a [u8]>);

impl<'a> Str<'a> {
    /// # Safety
    /// The string is alive for `'a`.
    pub unsafe fn from_raw(string: *mut raw::RedisModuleString) -> Str<'a> {
        Str(string, PhantomData)
    }

    pub fn bytes(self) -> &'a [u8] {
        let mut length = 0;
        // SAFETY: the string is alive, and the server returns a pointer to `length` bytes of it.
        unsafe {
            let start = api!(RedisModule_StringPtrLen)(self.0, &mut length);
            if start.is_null() { &[] } else { std::slice::from_raw_parts(start.cast(), length) }
        }
    }
}

/// A string made by us, freed when dropped.
pub(crate) struct OwnedStr(*mut raw::RedisModuleString);

impl OwnedStr {
    pub fn new(bytes: &[u8]) -> OwnedStr {
        // SAFETY: the bytes are copied; without a context the string is ours to free.
        OwnedStr(unsafe { api!(RedisModule_CreateString)(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()) })
    }

    pub fn as_str(&self) -> Str<'_> {
        Str(self.0, PhantomData)
    }
}

impl Drop for OwnedStr {
    fn drop(&mut self) {
        // SAFETY: made without a context and freed once.
        unsafe { api!(RedisModule_FreeString)(ptr::null_mut(), self.0) }
    }
}

impl Ctx {
    /// No context: for calls that need none.
    pub const fn none() -> Ctx {
        Ctx(ptr::null_mut())
    }

    /// A context for timers, good for the life of the process; none before `make_detached`.
    pub fn detached() -> Ctx {
        DETACHED.get()
    }

    /// Makes the context for timers.
    pub fn make_detached(self) {
        // SAFETY: the context is that of the load; the one that it makes lives as long as the process.
        DETACHED.set(Ctx(unsafe { api!(RedisModule_GetDetachedThreadSafeContext)(self.0) }));
    }

    /// The flags of the context, `REDISMODULE_CTX_FLAGS_*`.
    pub fn flags(self) -> u32 {
        // SAFETY: a null context is allowed too.
        unsafe { api!(RedisModule_GetContextFlags)(self.0) as u32 }
    }

    pub fn selected_db(self) -> i32 {
        // SAFETY: the context is that of the running call.
        unsafe { api!(RedisModule_GetSelectedDb)(self.0) }
    }

    /// Selects a database; false when there is none of that number.
    pub fn select_db(self, db: i32) -> bool {
        // SAFETY: the context is that of the running call.
        unsafe { api!(RedisModule_SelectDb)(self.0, db) == raw::REDISMODULE_OK as c_int }
    }

    /// Opens a key for reading and writing. Nothing is signalled or created by that alone.
    pub fn open(self, name: Str) -> Key {
        let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int;
        // SAFETY: context and name are alive; the key is closed when dropped.
        Key(unsafe { api!(RedisModule_OpenKey)(self.0, name.0, mode) })
    }

    /// Opens a key for reading; `None` when there is none.
    pub fn open_for_reading(self, name: Str) -> Option<Key> {
        // SAFETY: context and name are alive; the key is closed when dropped.
        let key = unsafe { api!(RedisModule_OpenKey)(self.0, name.0, raw::REDISMODULE_READ as c_int) };
        (!key.is_null()).then(|| Key(key))
    }

    /// The connection that runs the command.
    pub fn client_id(self) -> u64 {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_GetClientId)(self.0) }
    }

    /// A number drawn at random, of 63 bits: as an integer of the protocol it is not negative.
    pub fn random() -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: pointer and length are of one array.
        unsafe { api!(RedisModule_GetRandomBytes)(bytes.as_mut_ptr(), bytes.len()) };
        u64::from_le_bytes(bytes) >> 1
    }

    /// Closes a connection, if it is still there.
    pub fn close_client(self, client: u64) {
        // SAFETY: the server looks the number up.
        unsafe { api!(RedisModule_DeauthenticateAndCloseClient)(self.0, client) };
    }

    /// Publishes a keyspace event of the module's class, if the server is to publish any: an event that nobody gets costs
    /// as much as a reading of the clock.
    pub fn notify(self, event: &CStr, name: Str) {
        const CLASS: c_int = raw::REDISMODULE_NOTIFY_MODULE as c_int;
        // SAFETY: the event ends in NUL; context and name are alive.
        unsafe {
            if api!(RedisModule_GetNotifyKeyspaceEvents)() & CLASS != 0 {
                api!(RedisModule_NotifyKeyspaceEvent)(self.0, CLASS, event.as_ptr(), name.0);
            }
        }
    }

    /// Publishes the event that the server's own HSET does.
    pub fn notify_hset(self, name: Str) {
        const CLASS: c_int = raw::REDISMODULE_NOTIFY_HASH as c_int;
        // SAFETY: the event ends in NUL; context and name are alive.
        unsafe { api!(RedisModule_NotifyKeyspaceEvent)(self.0, CLASS, c"hset".as_ptr(), name.0) };
    }

    /// The field of a hash.
    pub fn hash_field(self, name: Str, field: &CStr) -> Hash {
        let Some(key) = self.open_for_reading(name) else { return Hash::NoField };
        let mut found: *mut raw::RedisModuleString = ptr::null_mut();
        let flags = raw::REDISMODULE_HASH_CFIELDS as c_int;
        let end: *const c_char = ptr::null();
        // SAFETY: the key is open; the list of fields and places ends in a null pointer.
        unsafe {
            match api!(RedisModule_KeyType)(key.0) as isize {
                raw::REDISMODULE_KEYTYPE_EMPTY => return Hash::NoField,
                raw::REDISMODULE_KEYTYPE_HASH => {}
                _ => return Hash::WrongType,
            }
            let place: *mut *mut raw::RedisModuleString = &mut found;
            api!(RedisModule_HashGet)(key.0, flags, field.as_ptr(), place, end);
        }
        if found.is_null() { Hash::NoField } else { Hash::Field(OwnedStr(found)) }
    }

    /// The value of a setting of the server.
    pub fn setting(self, name: &CStr) -> Option<String> {
        let format = c"cc".as_ptr();
        // SAFETY: the format asks for two strings that end in NUL, which follow.
        let reply = CallReply::of(unsafe {
            api!(RedisModule_Call)(self.0, c"CONFIG".as_ptr(), format, c"GET".as_ptr(), name.as_ptr())
        })?;
        reply.element(1)
    }

    /// Tells clients that watch the key.
    pub fn signal_modified(self, name: Str) {
        // SAFETY: context and name are alive.
        unsafe { api!(RedisModule_SignalModifiedKey)(self.0, name.0) };
    }

    /// Sends `command name blob` to the replicas and the append-only file.
    pub fn replicate_blob(self, command: &CStr, name: Str, blob: &[u8]) -> Result<(), NotPropagated> {
        let format = c"sb".as_ptr();
        // SAFETY: the format asks for a string and for bytes with their length, which follow.
        propagated(command, || unsafe {
            api!(RedisModule_Replicate)(self.0, command.as_ptr(), format, name.0, blob.as_ptr(), blob.len())
        })
    }

    /// Sends `command name number word` to the replicas and the append-only file.
    pub fn replicate_end(self, command: &CStr, name: Str, number: u64, word: &str) -> Result<(), NotPropagated> {
        let format = c"slb".as_ptr();
        let number = number as c_longlong;
        // SAFETY: the format asks for a string, a long long, and bytes with their length, which follow.
        propagated(command, || unsafe {
            api!(RedisModule_Replicate)(self.0, command.as_ptr(), format, name.0, number, word.as_ptr(), word.len())
        })
    }

    /// Sends `command number` to the replicas and the append-only file.
    pub fn replicate_number(self, command: &CStr, number: u64) -> Result<(), NotPropagated> {
        // SAFETY: the format asks for one long long, which follows.
        propagated(command, || unsafe {
            api!(RedisModule_Replicate)(self.0, command.as_ptr(), c"l".as_ptr(), number as c_longlong)
        })
    }

    /// Sends `command numbers...` to the replicas alone.
    pub fn replicate_to_replicas(self, command: &CStr, numbers: [u64; 4]) -> Result<(), NotPropagated> {
        let format = c"Allll".as_ptr();
        let [one, two, three, four] = numbers.map(|number| number as c_longlong);
        // SAFETY: the format asks for four long longs, which follow.
        propagated(command, || unsafe {
            api!(RedisModule_Replicate)(self.0, command.as_ptr(), format, one, two, three, four)
        })
    }

    /// Sends `command name words...` to the replicas and the append-only file.
    pub fn replicate_strings(self, command: &CStr, name: Str, words: &[Str]) -> Result<(), NotPropagated> {
        let format = c"sv".as_ptr();
        // SAFETY: the format asks for a string and for an array of strings with its length, which follow.
        propagated(command, || unsafe {
            api!(RedisModule_Replicate)(self.0, command.as_ptr(), format, name.0, words.as_ptr(), words.len())
        })
    }

    /// Whether a write may be propagated now. In a fail-over or a pause it would end the server.
    pub fn may_replicate() -> bool {
        // SAFETY: takes no argument.
        unsafe { api!(RedisModule_AvoidReplicaTraffic)() == 0 }
    }

    /// Sends the running command on as it came, and counts one change for the next snapshot.
    pub fn replicate_verbatim(self) {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplicateVerbatim)(self.0) };
    }

    /// Asks the server whether it serves the key, by a command that changes nothing and that a cluster redirects or refuses
    /// like any other.
    pub fn probe(self, command: &CStr, name: Str) -> Served {
        // SAFETY: the format asks for one string, which follows.
        let reply = CallReply::of(unsafe { api!(RedisModule_Call)(self.0, command.as_ptr(), c"s".as_ptr(), name.0) });
        // What the system says last is what the call has said: nothing else was called since.
        match reply {
            Some(_) => Served::Here,
            None if std::io::Error::last_os_error().raw_os_error() == Some(NOT_PERMITTED) => Served::Elsewhere,
            None => Served::Down,
        }
    }

    /// Calls `callback` with `data` on the event loop after `after_ms`.
    pub fn create_timer(self, after_ms: u64, callback: TimerProc) -> raw::RedisModuleTimerID {
        // SAFETY: the callback is a function of this module, which cannot be unloaded.
        unsafe { api!(RedisModule_CreateTimer)(self.0, after_ms as i64, Some(callback), ptr::null_mut()) }
    }

    pub fn stop_timer(self, timer: raw::RedisModuleTimerID) {
        // SAFETY: the id may be of a timer that is gone: the server looks it up.
        unsafe { api!(RedisModule_StopTimer)(self.0, timer, ptr::null_mut()) };
    }

    pub fn reply_integer(self, number: i64) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplyWithLongLong)(self.0, number) }
    }

    pub fn reply_null(self) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplyWithNull)(self.0) }
    }

    pub fn reply_ok(self) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplyWithSimpleString)(self.0, c"OK".as_ptr()) }
    }

    pub fn reply_bytes(self, bytes: &[u8]) -> c_int {
        // SAFETY: pointer and length are of one slice, which the server copies.
        unsafe { api!(RedisModule_ReplyWithStringBuffer)(self.0, bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Starts a map of `pairs` keys and values: flat in RESP2.
    pub fn reply_map(self, pairs: usize) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplyWithMap)(self.0, pairs as i64) }
    }

    /// Starts an array.
    pub fn reply_array(self, length: usize) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplyWithArray)(self.0, length as i64) }
    }

    /// An error reply. `line` begins with its code word.
    pub fn reply_error(self, line: &str) -> c_int {
        let line = CString::new(line.replace('\0', "\\0")).unwrap_or_default();
        // SAFETY: the line ends in NUL and is copied.
        unsafe { api!(RedisModule_ReplyWithError)(self.0, line.as_ptr()) }
    }

    pub fn wrong_arity(self) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_WrongArity)(self.0) }
    }
}

/// The server has refused to propagate a write, which must not be made then.
#[derive(Debug)]
pub(crate) struct NotPropagated;

fn propagated(command: &CStr, propagate: impl FnOnce() -> c_int) -> Result<(), NotPropagated> {
    #[cfg(feature = "drill")]
    let propagate = || if drill::take_target("propagate") { raw::REDISMODULE_ERR as c_int } else { propagate() };
    if propagate() == raw::REDISMODULE_OK as c_int {
        return Ok(());
    }
    warn(&format!("{} cannot be propagated, so the write is refused; is it renamed?", command.to_string_lossy()));
    Err(NotPropagated)
}

/// Whether the server is Valkey: it still says `redis_version` for clients of Redis, and its own version beside it.
pub(crate) fn is_valkey() -> bool {
    ServerInfo::of(c"server").has(c"valkey_version")
}

/// EPERM: what a call to a key of another server ends with. While the cluster is down it is ENETDOWN or EROFS.
const NOT_PERMITTED: c_int = 1;

/// A section of what INFO tells, freed when dropped.
pub(crate) struct ServerInfo(*mut raw::RedisModuleServerInfoData);

impl ServerInfo {
    pub fn of(section: &CStr) -> ServerInfo {
        // SAFETY: the section ends in NUL; without a context the data is ours to free.
        ServerInfo(unsafe { api!(RedisModule_GetServerInfo)(ptr::null_mut(), section.as_ptr()) })
    }

    /// Whether there is such a field.
    pub fn has(&self, field: &CStr) -> bool {
        // SAFETY: the data is alive and the field ends in NUL; the text belongs to the data.
        !unsafe { api!(RedisModule_ServerInfoGetFieldC)(self.0, field.as_ptr()) }.is_null()
    }

    /// A field that is a number.
    pub fn number(&self, field: &CStr) -> Option<u64> {
        let mut error = 0;
        // SAFETY: the data is alive and the field ends in NUL.
        let number = unsafe { api!(RedisModule_ServerInfoGetFieldUnsigned)(self.0, field.as_ptr(), &mut error) };
        (error == 0).then_some(number)
    }

    /// A field that is a text.
    pub fn text(&self, field: &CStr) -> Option<String> {
        // SAFETY: the data is alive and the field ends in NUL; the text ends in NUL and lives as long as the data.
        unsafe {
            let text = api!(RedisModule_ServerInfoGetFieldC)(self.0, field.as_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }
}

impl Drop for ServerInfo {
    fn drop(&mut self) {
        // SAFETY: made by `of` without a context and freed once.
        unsafe { api!(RedisModule_FreeServerInfo)(ptr::null_mut(), self.0) }
    }
}

/// The field of a hash, or why there is none.
pub(crate) enum Hash {
    WrongType,
    NoField,
    Field(OwnedStr),
}

/// The reply of a call of our own, freed when dropped.
pub(crate) struct CallReply(*mut raw::RedisModuleCallReply);

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

/// What the server calls when a timer is due.
pub(crate) type TimerProc = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void);

/// What an open key holds, seen from a type of the module.
pub(crate) enum Content {
    Nothing,
    /// A value of that type.
    Ours(NonNull<c_void>),
    Other,
}

/// An open key, closed when dropped.
pub(crate) struct Key(*mut raw::RedisModuleKey);

impl Key {
    /// What the key holds; a value of another type than `ours` is another's.
    pub fn content(&self, ours: *mut raw::RedisModuleType) -> Content {
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
    pub unsafe fn set(&self, ours: *mut raw::RedisModuleType, value: NonNull<c_void>) {
        // SAFETY: as promised.
        unsafe { api!(RedisModule_ModuleTypeSetValue)(self.0, ours, value.as_ptr()) };
    }

    /// Stores a value in place of the one of the same type that is there, which is not freed.
    ///
    /// # Safety
    /// The key is open for writing, and both values are of type `ours`.
    pub unsafe fn replace(&self, ours: *mut raw::RedisModuleType, value: NonNull<c_void>) {
        let mut old = ptr::null_mut();
        // SAFETY: as promised.
        unsafe { api!(RedisModule_ModuleTypeReplaceValue)(self.0, ours, value.as_ptr(), &mut old) };
    }

    /// Deletes the key.
    pub fn delete(&self) {
        // SAFETY: the key is open for writing.
        unsafe { api!(RedisModule_DeleteKey)(self.0) };
    }

    /// Sets one field of a hash, or of a key that holds nothing.
    pub fn set_field(&self, field: Str, value: Str) {
        let (flags, end) = (raw::REDISMODULE_HASH_COUNT_ALL as c_int, ptr::null::<c_char>());
        // SAFETY: the key is open for writing; the list of fields and values ends in a null pointer.
        let set = unsafe { api!(RedisModule_HashSet)(self.0, flags, field.0, value.0, end) };
        if set != 1 {
            warn("a field of a hash was propagated and cannot be set");
        }
    }

    /// Replies all fields of a hash, in the protocol of the client.
    pub fn reply_fields(&self, ctx: Ctx) -> c_int {
        let mut fields = Fields { ctx, count: 0 };
        let data: *mut Fields = &mut fields;
        // SAFETY: key and context are alive; the cursor is freed once; the callback gets `data` during the calls alone. The
        // length of the map that is begun is set at the end.
        unsafe {
            api!(RedisModule_ReplyWithMap)(ctx.0, raw::REDISMODULE_POSTPONED_LEN as c_long);
            let cursor = api!(RedisModule_ScanCursorCreate)();
            while api!(RedisModule_ScanKey)(self.0, cursor, Some(on_field), data.cast()) != 0 {}
            api!(RedisModule_ScanCursorDestroy)(cursor);
            api!(RedisModule_ReplySetMapLength)(ctx.0, (*data).count);
        }
        raw::REDISMODULE_OK as c_int
    }

    /// Takes a time to live away that somebody has set: the lease alone decides when a lock ends.
    pub fn clear_expire(&self) {
        // SAFETY: the key is open for writing.
        unsafe {
            if api!(RedisModule_GetExpire)(self.0) != NO_EXPIRE {
                api!(RedisModule_SetExpire)(self.0, NO_EXPIRE);
            }
        }
    }
}

/// A reply of fields that is being written.
struct Fields {
    ctx: Ctx,
    count: c_long,
}

callback! {
    fn on_field(
        _key: *mut raw::RedisModuleKey,
        field: *mut raw::RedisModuleString,
        value: *mut raw::RedisModuleString,
        data: *mut c_void,
    ) -> (), else ();
    {
        // SAFETY: `reply_fields` passes a pointer to its own variable, and nobody else uses it during the scan.
        let fields = unsafe { &mut *data.cast::<Fields>() };
        fields.count += 1;
        // SAFETY: context and strings are alive; the server copies what it sends.
        unsafe {
            api!(RedisModule_ReplyWithString)(fields.ctx.0, field);
            api!(RedisModule_ReplyWithString)(fields.ctx.0, value);
        }
    }
}

const NO_EXPIRE: i64 = raw::REDISMODULE_NO_EXPIRE as i64;

impl Key {
    /// Closes the key before its time.
    pub fn close(&mut self) {
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

/// The server's stream while it saves or loads a value.
#[derive(Clone, Copy)]
pub(crate) struct Io(pub *mut raw::RedisModuleIO);

/// Bytes that the server allocated for us.
pub(crate) struct Loaded {
    start: *mut c_char,
    length: usize,
}

impl Loaded {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the server gave `length` bytes, which are ours until dropped.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.length) }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: allocated by the server for us and freed once.
        unsafe { api!(RedisModule_Free)(self.start.cast()) }
    }
}

impl Io {
    pub fn save_bytes(self, bytes: &[u8]) {
        // SAFETY: pointer and length are of one slice, which the server copies.
        unsafe { api!(RedisModule_SaveStringBuffer)(self.0, bytes.as_ptr().cast(), bytes.len()) }
    }

    pub fn save_number(self, number: u64) {
        // SAFETY: the stream is that of the running call.
        unsafe { api!(RedisModule_SaveUnsigned)(self.0, number) }
    }

    pub fn load_bytes(self) -> Option<Loaded> {
        let mut length = 0;
        // SAFETY: the stream is that of the running call.
        let start = unsafe { api!(RedisModule_LoadStringBuffer)(self.0, &mut length) };
        if start.is_null() {
            return None;
        }
        let loaded = Loaded { start, length };
        (!self.failed()).then_some(loaded)
    }

    pub fn load_number(self) -> Option<u64> {
        // SAFETY: the stream is that of the running call.
        let number = unsafe { api!(RedisModule_LoadUnsigned)(self.0) };
        (!self.failed()).then_some(number)
    }

    /// Writes `command key blob` into an append-only file that is being rewritten.
    pub fn emit_blob(self, command: &CStr, key: Str, blob: &[u8]) {
        let format = c"sb".as_ptr();
        // SAFETY: the format asks for a string and for bytes with their length, which follow.
        unsafe { api!(RedisModule_EmitAOF)(self.0, command.as_ptr(), format, key.0, blob.as_ptr(), blob.len()) }
    }

    /// The name of the key that is loaded; `None` where the server does not know it.
    pub fn key_name<'a>(self) -> Option<Str<'a>> {
        // SAFETY: the stream is that of the running call.
        let name = unsafe { api!(RedisModule_GetKeyNameFromIO)(self.0) };
        (!name.is_null()).then_some(Str(name.cast_mut(), PhantomData))
    }

    pub fn db(self) -> i32 {
        // SAFETY: the stream is that of the running call.
        unsafe { api!(RedisModule_GetDbIdFromIO)(self.0) }
    }

    fn failed(self) -> bool {
        // SAFETY: the stream is that of the running call.
        unsafe { api!(RedisModule_IsIOError)(self.0) != 0 }
    }
}
