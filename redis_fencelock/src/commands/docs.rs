//! What COMMAND DOCS says of the commands: descriptions alone.

use redis_module::raw;

use crate::ffi::describe::{Arg, BLOCK, Docs, INTEGER, KEY, ONE_OF, STRING, TOKEN, arg, in_ms, option};

pub(crate) const ACQUIRE: Docs = Docs {
    summary: c"Grants a lock for a number of milliseconds and issues a fence",
    complexity: c"O(log N) with N locks that somebody waits for",
    arity: -4,
    args: ACQUIRE_ARGS,
    key: CHANGED,
    categories: c"write fast blocking",
};
pub(crate) const STEAL: Docs = Docs {
    summary: c"Takes a lock over for a number of milliseconds, ahead of its queue, and issues a fence",
    complexity: c"O(log N) with N locks that somebody waits for",
    arity: -4,
    args: STEAL_ARGS,
    key: CHANGED,
    // For operators: a user without dangerous commands takes no lock from another.
    categories: c"write fast dangerous",
};
pub(crate) const EXTEND: Docs = Docs {
    summary: c"Sets the lease to a number of milliseconds from now, if it is still the caller's",
    complexity: c"O(1)",
    arity: -4,
    args: EXTEND_ARGS,
    key: CHANGED,
    categories: c"write fast",
};
pub(crate) const RELEASE: Docs = Docs {
    summary: c"Ends the lease, if it is still the caller's, and hands the lock on",
    complexity: c"O(log N) with N locks that somebody waits for; with QUEUED O(M) with M places in the queue",
    arity: -3,
    args: RELEASE_ARGS,
    key: REMOVED,
    categories: c"write fast",
};
pub(crate) const CHECK: Docs = Docs {
    summary: c"Reports whether a fence is the live hold of a lock",
    complexity: c"O(1)",
    arity: 3,
    args: CHECK_ARGS,
    key: READ_ONLY,
    categories: c"read fast",
};
pub(crate) const INSPECT: Docs = Docs {
    summary: c"Reports who holds a lock and for how long",
    complexity: c"O(1)",
    arity: 2,
    args: INSPECT_ARGS,
    key: READ_ONLY,
    categories: c"read fast",
};
pub(crate) const AWAIT: Docs = Docs {
    summary: c"Waits for the end of a hold, for a number of milliseconds at most, and reports why it ended",
    complexity: c"O(log N) with N locks whose end somebody awaits",
    arity: 4,
    args: AWAIT_ARGS,
    key: READ_ONLY,
    categories: c"read fast blocking",
};
pub(crate) const CLAIM: Docs = Docs {
    summary: c"Stamps a fence on a hash and returns its fields, unless a newer fence is stored",
    complexity: c"O(N) with N fields",
    arity: 3,
    args: CLAIM_ARGS,
    key: CHANGED,
    categories: c"write",
};
pub(crate) const WRITE: Docs = Docs {
    summary: c"Sets fields of a hash while its stamp is the caller's",
    complexity: c"O(N) with N fields written",
    arity: -5,
    args: WRITE_ARGS,
    key: CHANGED,
    categories: c"write fast",
};
pub(crate) const STATS: Docs = Docs {
    summary: c"Counters of the server, or of one busy lock",
    complexity: c"O(1)",
    arity: -1,
    args: STATS_ARGS,
    key: READ_ONLY,
    categories: c"read fast",
};
pub(crate) const TOP: Docs = Docs {
    summary: c"Lists the busiest locks",
    complexity: c"O(N) with N names in the table of STATS",
    arity: -2,
    args: TOP_ARGS,
    key: 0,
    categories: c"read",
};
pub(crate) const RAISE: Docs = Docs {
    summary: c"Issues no fence at or below a given one from now on",
    complexity: c"O(1)",
    arity: 2,
    args: RAISE_ARGS,
    key: 0,
    categories: c"write fast admin dangerous",
};
pub(crate) const HELP: Docs =
    Docs { summary: c"Describes the commands", complexity: c"O(1)", arity: 1, args: &[], key: 0, categories: c"fast" };

const LOCK: Arg = arg(c"key", KEY);
const OWNER: Arg = arg(c"owner", STRING);
const TTL: Arg = in_ms(arg(c"ttl-ms", INTEGER));
const FENCE: Arg = arg(c"fence", INTEGER);
const FENCE_OPTION: Arg = option(c"fence", INTEGER, c"FENCE");
const MAX_HOLD: Arg = in_ms(option(c"maxhold-ms", INTEGER, c"MAXHOLD"));
const DELAY: Arg = in_ms(option(c"delay-ms", INTEGER, c"DELAY"));

const ACQUIRE_ARGS: &[Arg] = &[
    LOCK,
    OWNER,
    TTL,
    in_ms(option(c"wait-ms", INTEGER, c"WAIT")),
    option(c"retry", TOKEN, c"RETRY"),
    MAX_HOLD,
    DELAY,
    option(c"ephemeral", TOKEN, c"EPHEMERAL"),
];
const STEAL_ARGS: &[Arg] = &[LOCK, OWNER, TTL, FENCE_OPTION, MAX_HOLD, DELAY];
const EXTEND_ARGS: &[Arg] = &[LOCK, OWNER, TTL, FENCE_OPTION, option(c"longer", TOKEN, c"GT")];
const RELEASE_ARGS: &[Arg] = &[
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
const CHECK_ARGS: &[Arg] = &[LOCK, FENCE];
const INSPECT_ARGS: &[Arg] = &[LOCK];
const AWAIT_ARGS: &[Arg] = &[LOCK, FENCE, in_ms(arg(c"ms", INTEGER))];
const CLAIM_ARGS: &[Arg] = &[arg(c"resource", KEY), FENCE];
const WRITE_ARGS: &[Arg] = &[
    arg(c"resource", KEY),
    FENCE,
    Arg {
        flags: raw::REDISMODULE_CMD_ARG_MULTIPLE,
        parts: &[arg(c"field", STRING), arg(c"value", STRING)],
        ..arg(c"data", BLOCK)
    },
];
const STATS_ARGS: &[Arg] = &[Arg { flags: raw::REDISMODULE_CMD_ARG_OPTIONAL, ..LOCK }];
const TOP_ARGS: &[Arg] = &[arg(c"n", INTEGER), option(c"counter", STRING, c"BY")];
const RAISE_ARGS: &[Arg] = &[FENCE];

const WRITES: u32 = raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS;
/// The flags of keys that are read, changed, and removed.
const READ_ONLY: u32 = raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS;
const CHANGED: u32 = WRITES | raw::REDISMODULE_CMD_KEY_UPDATE;
const REMOVED: u32 = WRITES | raw::REDISMODULE_CMD_KEY_DELETE;
