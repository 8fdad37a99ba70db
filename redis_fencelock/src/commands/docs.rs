//! What COMMAND DOCS, COMMAND INFO and the ACL know of the commands.
//!
//! Only descriptions. Categories need Redis 7.2 or Valkey 8; older servers know the commands by name alone.

use std::ffi::{CStr, c_int};
use std::mem::size_of;
use std::ptr;

use redis_module::raw;

use crate::ffi::{Ctx, api};

/// A description of a command.
pub(crate) struct Docs {
    pub summary: &'static CStr,
    pub complexity: &'static CStr,
    pub arity: c_int,
    pub args: &'static [Arg],
    /// Flags of the key, `REDISMODULE_CMD_KEY_*`; 0 for a command without one.
    pub key: u32,
    pub categories: &'static CStr,
}

/// An argument: what it is called, what it is, and the word before it.
pub(crate) struct Arg {
    name: &'static CStr,
    kind: raw::RedisModuleCommandArgType,
    token: Option<&'static CStr>,
    /// The unit of a number that has one.
    summary: Option<&'static CStr>,
    flags: u32,
    parts: &'static [Arg],
}

const STRING: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING;
const INTEGER: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER;
const KEY: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
const TOKEN: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN;
const ONE_OF: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF;
const BLOCK: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK;

const fn arg(name: &'static CStr, kind: raw::RedisModuleCommandArgType) -> Arg {
    Arg { name, kind, token: None, summary: None, flags: raw::REDISMODULE_CMD_ARG_NONE, parts: &[] }
}

const fn option(name: &'static CStr, kind: raw::RedisModuleCommandArgType, token: &'static CStr) -> Arg {
    Arg { token: Some(token), flags: raw::REDISMODULE_CMD_ARG_OPTIONAL, ..arg(name, kind) }
}

/// Seconds in place of milliseconds would be taken without a word.
const fn in_ms(arg: Arg) -> Arg {
    Arg { summary: Some(c"milliseconds"), ..arg }
}

const LOCK: Arg = arg(c"key", KEY);
const OWNER: Arg = arg(c"owner", STRING);
const TTL: Arg = in_ms(arg(c"ttl-ms", INTEGER));
const FENCE: Arg = arg(c"fence", INTEGER);
const FENCE_OPTION: Arg = option(c"fence", INTEGER, c"FENCE");

pub(crate) const ACQUIRE: &[Arg] = &[
    LOCK,
    OWNER,
    TTL,
    in_ms(option(c"wait-ms", INTEGER, c"WAIT")),
    option(c"retry", TOKEN, c"RETRY"),
    in_ms(option(c"maxhold-ms", INTEGER, c"MAXHOLD")),
    in_ms(option(c"delay-ms", INTEGER, c"DELAY")),
    option(c"ephemeral", TOKEN, c"EPHEMERAL"),
];
pub(crate) const EXTEND: &[Arg] = &[LOCK, OWNER, TTL, FENCE_OPTION];
pub(crate) const RELEASE: &[Arg] = &[
    LOCK,
    OWNER,
    Arg {
        flags: raw::REDISMODULE_CMD_ARG_OPTIONAL,
        parts: &[
            Arg { flags: raw::REDISMODULE_CMD_ARG_NONE, ..FENCE_OPTION },
            Arg { flags: raw::REDISMODULE_CMD_ARG_NONE, ..option(c"queued", TOKEN, c"QUEUED") },
        ],
        ..arg(c"which", ONE_OF)
    },
];
pub(crate) const CHECK: &[Arg] = &[LOCK, FENCE];
pub(crate) const INSPECT: &[Arg] = &[LOCK];
pub(crate) const CLAIM: &[Arg] = &[arg(c"resource", KEY), FENCE];
pub(crate) const WRITE: &[Arg] = &[
    arg(c"resource", KEY),
    FENCE,
    Arg {
        flags: raw::REDISMODULE_CMD_ARG_MULTIPLE,
        parts: &[arg(c"field", STRING), arg(c"value", STRING)],
        ..arg(c"data", BLOCK)
    },
];
pub(crate) const STATS: &[Arg] = &[Arg { flags: raw::REDISMODULE_CMD_ARG_OPTIONAL, ..LOCK }];
pub(crate) const TOP: &[Arg] = &[arg(c"n", INTEGER), option(c"counter", STRING, c"BY")];
pub(crate) const RAISE: &[Arg] = &[FENCE];

const READ: u32 = raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS;
const WRITES: u32 = raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS;
/// The flags of keys that are looked at, changed, given a value, and removed.
pub(crate) const LOOKED_AT: u32 = READ;
pub(crate) const CHANGED: u32 = WRITES | raw::REDISMODULE_CMD_KEY_UPDATE;
pub(crate) const REMOVED: u32 = WRITES | raw::REDISMODULE_CMD_KEY_DELETE;

/// The category of the module's commands, where the server lets modules have one.
const CATEGORY: &CStr = c"fencelock";

/// Makes the module's own ACL category. Its absence is no error.
pub(crate) fn add_category(ctx: Ctx) {
    // SAFETY: the pointer is filled by the server or null; the name ends in NUL.
    unsafe {
        if let Some(add) = raw::RedisModule_AddACLCategory {
            add(ctx.0, CATEGORY.as_ptr());
        }
    }
}

/// The layout of the structs below; not in the bindings.
const COMMAND_INFO_VERSION: c_int = 1;

/// Describes a command that has been created.
pub(crate) fn describe(ctx: Ctx, name: &CStr, docs: &Docs) -> bool {
    // SAFETY: the name ends in NUL.
    let command = unsafe { api!(RedisModule_GetCommand)(ctx.0, name.as_ptr()) };
    if command.is_null() {
        return false;
    }
    set_categories(command, docs.categories);
    let version = raw::RedisModuleCommandInfoVersion {
        version: COMMAND_INFO_VERSION,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // Parts of arguments live here until the server has copied them.
    let mut parts = Vec::new();
    let mut args = described(docs.args, &mut parts);
    let mut keys = [key_spec(docs.key), END_OF_KEYS];
    let info = raw::RedisModuleCommandInfo {
        version: &version,
        summary: docs.summary.as_ptr(),
        complexity: docs.complexity.as_ptr(),
        since: c"0.1.0".as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: docs.arity,
        key_specs: if docs.key == 0 { ptr::null_mut() } else { keys.as_mut_ptr() },
        args: if docs.args.is_empty() { ptr::null_mut() } else { args.as_mut_ptr() },
    };
    // SAFETY: the lists end in zeroed entries, the strings in NUL, and the server copies all of them.
    unsafe { api!(RedisModule_SetCommandInfo)(command, &info) == raw::REDISMODULE_OK as c_int }
}

fn set_categories(command: *mut raw::RedisModuleCommand, categories: &CStr) {
    // SAFETY: the pointers are filled by the server or null; the names end in NUL.
    unsafe {
        let Some(set) = raw::RedisModule_SetCommandACLCategories else { return };
        let own = raw::RedisModule_AddACLCategory;
        if own.is_some() {
            let with_own = [categories.to_bytes(), b" ", CATEGORY.to_bytes(), b"\0"].concat();
            set(command, with_own.as_ptr().cast());
        } else {
            set(command, categories.as_ptr());
        }
    }
}

type List = Vec<raw::RedisModuleCommandArg>;

fn described(args: &[Arg], parts: &mut Vec<List>) -> List {
    let mut list: List = Vec::new();
    for arg in args {
        let subargs = if arg.parts.is_empty() {
            ptr::null_mut()
        } else {
            let mut inner = described(arg.parts, &mut Vec::new());
            let start = inner.as_mut_ptr();
            parts.push(inner);
            start
        };
        let key_spec_index = if arg.kind == KEY { 0 } else { -1 };
        let token = arg.token.map_or(ptr::null(), CStr::as_ptr);
        list.push(raw::RedisModuleCommandArg {
            name: arg.name.as_ptr(),
            type_: arg.kind,
            key_spec_index,
            token,
            summary: arg.summary.map_or(ptr::null(), CStr::as_ptr),
            flags: arg.flags as c_int,
            subargs,
            ..END_OF_ARGS
        });
    }
    list.push(END_OF_ARGS);
    list
}

const END_OF_ARGS: raw::RedisModuleCommandArg = raw::RedisModuleCommandArg {
    name: ptr::null(),
    type_: STRING,
    key_spec_index: -1,
    token: ptr::null(),
    summary: ptr::null(),
    since: ptr::null(),
    flags: 0,
    deprecated_since: ptr::null(),
    subargs: ptr::null_mut(),
    display_text: ptr::null(),
};

/// The one key, at position 1.
fn key_spec(flags: u32) -> raw::RedisModuleCommandKeySpec {
    raw::RedisModuleCommandKeySpec {
        flags: u64::from(flags),
        begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX,
        bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
            index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 },
        },
        find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE,
        fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
            range: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 1, limit: 0 },
        },
        ..END_OF_KEYS
    }
}

const END_OF_KEYS: raw::RedisModuleCommandKeySpec = raw::RedisModuleCommandKeySpec {
    notes: ptr::null(),
    flags: 0,
    begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INVALID,
    bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
        index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 0 },
    },
    find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_OMITTED,
    fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
        range: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 0, limit: 0 },
    },
};
