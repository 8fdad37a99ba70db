//! What a command replies, and how that is sent.
//!
//! Errors that several commands share are here.

use std::ffi::c_int;

use fence::lock::args::BadArgument;
use fence::lock::lease::{Lease, State};
use redis_module::raw;

use crate::counters::{NAME_FIELDS, NameStats};
use crate::ffi::{Ctx, Key, NotPropagated};
use crate::lock::slot::{WRONG_TYPE, WrongType};

/// What a command replies.
pub(crate) enum Reply {
    Ok,
    Integer(u64),
    Word(&'static str),
    Null,
    Error(String),
    Inspected(Box<Inspected>),
    Numbers(Vec<(&'static str, u64)>),
    /// Names with how many wait for each.
    Busiest(Vec<(usize, NameStats)>),
    Lines(&'static [&'static str]),
    /// All fields of a hash.
    Fields(Key),
    /// The client is blocked: the reply comes later.
    Later,
}

/// How a command ends: with a reply, which may be an error.
pub(crate) type CommandResult = Result<Reply, Reply>;

/// What INSPECT replies of a lock.
pub(crate) struct Inspected {
    pub(crate) owner: Vec<u8>,
    pub(crate) lease: Lease,
    pub(crate) now_us: u64,
    pub(crate) waiters: usize,
    pub(crate) state: State,
}

impl From<BadArgument<'_>> for Reply {
    fn from(bad: BadArgument) -> Reply {
        Reply::Error(format!("ERR {bad}"))
    }
}

impl From<NotPropagated> for Reply {
    fn from(_: NotPropagated) -> Reply {
        Reply::Error("ERR the write cannot be propagated, so nothing was changed: see the log of the server".into())
    }
}

impl From<WrongType> for Reply {
    fn from(_: WrongType) -> Reply {
        Reply::Error(WRONG_TYPE.into())
    }
}

impl Reply {
    pub(crate) fn read_only() -> Reply {
        Reply::Error("READONLY only the primary grants leases and fences".into())
    }

    pub(crate) fn send(self, ctx: Ctx) -> c_int {
        match self {
            Reply::Integer(number) => ctx.reply_integer(number as i64),
            Reply::Word(word) => ctx.reply_bytes(word.as_bytes()),
            Reply::Ok => ctx.reply_ok(),
            Reply::Null => ctx.reply_null(),
            Reply::Error(line) => ctx.reply_error(&line),
            Reply::Inspected(inspected) => inspected.send(ctx),
            Reply::Fields(key) => key.reply_fields(ctx),
            Reply::Later => OK,
            Reply::Numbers(numbers) => {
                ctx.reply_map(numbers.len());
                for (name, number) in numbers {
                    ctx.reply_bytes(name.as_bytes());
                    ctx.reply_integer(number as i64);
                }
                OK
            }
            Reply::Busiest(names) => {
                ctx.reply_array(names.len());
                names.into_iter().for_each(|(waiters, stats)| send_busy(ctx, waiters, &stats));
                OK
            }
            Reply::Lines(lines) => {
                ctx.reply_array(lines.len());
                for line in lines {
                    ctx.reply_bytes(line.as_bytes());
                }
                OK
            }
        }
    }
}

const OK: c_int = raw::REDISMODULE_OK as c_int;

fn send_busy(ctx: Ctx, waiters: usize, stats: &NameStats) {
    ctx.reply_map(2 + NAME_FIELDS.len());
    ctx.reply_bytes(b"key");
    ctx.reply_bytes(&stats.name);
    ctx.reply_bytes(b"db");
    ctx.reply_integer(i64::from(stats.db));
    for (name, number) in NAME_FIELDS.iter().zip(stats.fields(waiters)) {
        ctx.reply_bytes(name.as_bytes());
        ctx.reply_integer(number as i64);
    }
}

impl Inspected {
    fn send(self, ctx: Ctx) -> c_int {
        let Inspected { owner, lease, now_us, waiters, state } = self;
        ctx.reply_map(7);
        ctx.reply_bytes(b"owner");
        ctx.reply_bytes(&owner);
        let numbers = [
            ("fence", lease.fence.get()),
            ("ttl-ms", lease.left(now_us).0),
            ("held-ms", lease.held_us(now_us) / 1_000),
        ];
        for (name, number) in numbers {
            ctx.reply_bytes(name.as_bytes());
            ctx.reply_integer(number as i64);
        }
        ctx.reply_bytes(b"maxhold-left-ms");
        match lease.max_hold_left(now_us) {
            None => ctx.reply_null(),
            Some(left) => ctx.reply_integer(left.0 as i64),
        };
        ctx.reply_bytes(b"waiters");
        ctx.reply_integer(waiters as i64);
        ctx.reply_bytes(b"state");
        ctx.reply_bytes(if state == State::Held { b"held" } else { b"delay" })
    }
}
