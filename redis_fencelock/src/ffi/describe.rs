//! What COMMAND DOCS, COMMAND INFO and the ACL know of a command.
//!
//! Categories need Redis 7.2 or Valkey 8; older servers know the commands by name alone.

use std::ffi::{CStr, c_int};
use std::mem::size_of;
use std::ptr;

use redis_module::raw;

use crate::ffi::context::Ctx;
use crate::ffi::guard::api;

/// A description of a command.
pub(crate) struct Docs {
    pub(crate) summary: &'static CStr,
    pub(crate) complexity: &'static CStr,
    pub(crate) arity: c_int,
    pub(crate) args: &'static [Arg],
    /// Flags of the key, `REDISMODULE_CMD_KEY_*`; 0 for a command without one.
    pub(crate) key: u32,
    pub(crate) categories: &'static CStr,
}

/// An argument: its name, its type, and the token before it.
pub(crate) struct Arg {
    pub(crate) name: &'static CStr,
    pub(crate) kind: raw::RedisModuleCommandArgType,
    pub(crate) token: Option<&'static CStr>,
    /// The unit of a number that has one.
    pub(crate) summary: Option<&'static CStr>,
    pub(crate) flags: u32,
    pub(crate) parts: &'static [Arg],
}

pub(crate) const STRING: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING;
pub(crate) const INTEGER: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER;
pub(crate) const KEY: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
pub(crate) const TOKEN: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN;
pub(crate) const ONE_OF: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF;
pub(crate) const BLOCK: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK;

pub(crate) const fn arg(name: &'static CStr, kind: raw::RedisModuleCommandArgType) -> Arg {
    Arg { name, kind, token: None, summary: None, flags: raw::REDISMODULE_CMD_ARG_NONE, parts: &[] }
}

pub(crate) const fn option(name: &'static CStr, kind: raw::RedisModuleCommandArgType, token: &'static CStr) -> Arg {
    Arg { token: Some(token), flags: raw::REDISMODULE_CMD_ARG_OPTIONAL, ..arg(name, kind) }
}

/// Names the unit: the server cannot tell seconds from milliseconds.
pub(crate) const fn in_ms(arg: Arg) -> Arg {
    Arg { summary: Some(c"milliseconds"), ..arg }
}

/// The layout of the structs below; not in the bindings.
const COMMAND_INFO_VERSION: c_int = 1;

/// Makes the module's own ACL category. Older servers have none.
pub(crate) fn add_category(ctx: Ctx, category: &CStr) {
    // SAFETY: the pointer is filled by the server or null; the name ends in NUL.
    unsafe {
        if let Some(add) = raw::RedisModule_AddACLCategory {
            add(ctx.0, category.as_ptr());
        }
    }
}

/// Describes a command that has been created, and puts it into `category` too, where the server lets modules have one.
pub(crate) fn describe(ctx: Ctx, name: &CStr, category: &CStr, docs: &Docs) -> bool {
    // SAFETY: the name ends in NUL.
    let command = unsafe { api!(RedisModule_GetCommand)(ctx.0, name.as_ptr()) };
    if command.is_null() {
        return false;
    }
    set_categories(command, docs.categories, category);
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

fn set_categories(command: *mut raw::RedisModuleCommand, categories: &CStr, own: &CStr) {
    // SAFETY: the pointers are filled by the server or null; the names end in NUL.
    unsafe {
        let Some(set) = raw::RedisModule_SetCommandACLCategories else { return };
        let add = raw::RedisModule_AddACLCategory;
        if add.is_some() {
            let with_own = [categories.to_bytes(), b" ", own.to_bytes(), b"\0"].concat();
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
