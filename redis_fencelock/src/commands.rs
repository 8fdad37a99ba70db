//! The commands: read the arguments, ask the rule, carry it out, answer.
//!
//! No rule here, and no reply before the work is done, so that a panic can still be answered by an error.
//! Invariant: a refused command has changed nothing.

use std::ffi::c_int;

use fence::args::{self, BadArgument};
use fence::lease::{self, Denied, Hold, Lease, State};
use redis_module::raw;

use crate::ffi::{Ctx, Name, callback};
use crate::server::server;
use crate::store::{Slot, WrongType};

/// The most words of any command with a fixed number of options.
const WORDS_MAX: usize = 16;

/// What a command replies.
enum Answer {
    Integer(u64),
    Null,
    Error(String),
    Inspected(Inspected),
}

/// What INSPECT tells of a lock.
struct Inspected {
    owner: Vec<u8>,
    lease: Lease,
    now_us: u64,
    state: State,
}

/// The words of a command, with the key at 1.
struct Words<'a> {
    words: [&'a [u8]; WORDS_MAX],
    count: usize,
    key: Name,
}

impl From<BadArgument<'_>> for Answer {
    fn from(bad: BadArgument) -> Answer {
        Answer::Error(format!("ERR {bad}"))
    }
}

impl From<WrongType> for Answer {
    fn from(_: WrongType) -> Answer {
        Answer::Error("WRONGTYPE Operation against a key holding the wrong kind of value".into())
    }
}

type Reply = Result<Answer, Answer>;

fn acquire(ctx: Ctx, words: &Words) -> Reply {
    let request = args::acquire(words.at(2), words.at(3), words.from(4), server().max_ttl.get())?;
    let slot = open_to_write(ctx, words.key)?;
    let clocks = server().clocks();
    let mut issuer = server().issuer();
    match lease::acquire(slot.lease(), request.terms, &mut issuer, server().now(clocks)) {
        Ok(lease) => {
            server().set_issuer(issuer);
            slot.grant(&Hold { lease, owner: request.owner }, clocks);
            Ok(Answer::Integer(lease.fence.get()))
        }
        Err(Denied::Held | Denied::Delayed) => Ok(Answer::Null),
        Err(Denied::FencesUsedUp) => {
            Err(Answer::Error(format!("ERR all fences up to {} are issued", fence::Fence::MAX)))
        }
    }
}

fn extend(ctx: Ctx, words: &Words) -> Reply {
    let request = args::extend(words.at(2), words.at(3), words.from(4), server().max_ttl.get())?;
    let slot = open_to_write(ctx, words.key)?;
    let clocks = server().clocks();
    match lease::extend(slot.hold(), request.caller, request.ttl, clocks.steady_us) {
        Ok(lease) => {
            slot.extend(lease, clocks);
            Ok(Answer::Integer(lease.left(clocks.steady_us).0))
        }
        Err(_) => Ok(Answer::Integer(0)),
    }
}

fn release(ctx: Ctx, words: &Words) -> Reply {
    let caller = args::release(words.at(2), words.from(3))?;
    let slot = open_to_write(ctx, words.key)?;
    match lease::release(slot.hold(), caller, server().steady_us()) {
        Ok(_) => {
            slot.remove();
            Ok(Answer::Integer(1))
        }
        Err(_) => Ok(Answer::Integer(0)),
    }
}

fn inspect(ctx: Ctx, words: &Words) -> Reply {
    let Some(value) = Slot::look(ctx, words.key)? else { return Ok(Answer::Null) };
    let now_us = server().steady_us();
    let lease = value.lease();
    Ok(match lease.state(now_us) {
        State::Free => Answer::Null,
        state => Answer::Inspected(Inspected { owner: value.owner().to_vec(), lease, now_us, state }),
    })
}

/// Opens the lock for a change. A replica grants nothing, even where it lets clients write.
fn open_to_write(ctx: Ctx, key: Name) -> Result<Slot, Answer> {
    if !server().is_primary.get() {
        return Err(Answer::Error("READONLY only the primary grants, extends and releases leases".into()));
    }
    Ok(Slot::open(ctx, key)?)
}

impl Answer {
    fn send(self, ctx: Ctx) -> c_int {
        match self {
            Answer::Integer(number) => ctx.reply_integer(number as i64),
            Answer::Null => ctx.reply_null(),
            Answer::Error(line) => ctx.reply_error(&line),
            Answer::Inspected(inspected) => inspected.send(ctx),
        }
    }
}

impl Inspected {
    fn send(self, ctx: Ctx) -> c_int {
        let Inspected { owner, lease, now_us, state } = self;
        let end_us = now_us.min(lease.deadline_us);
        ctx.reply_map(7);
        ctx.reply_bytes(b"owner");
        ctx.reply_bytes(&owner);
        let numbers = [
            ("fence", lease.fence.get()),
            ("ttl-ms", lease.left(now_us).0),
            ("held-ms", end_us.saturating_sub(lease.granted_us) / 1_000),
        ];
        for (name, number) in numbers {
            ctx.reply_bytes(name.as_bytes());
            ctx.reply_integer(number as i64);
        }
        ctx.reply_bytes(b"maxhold-left-ms");
        match lease.limit_us {
            u64::MAX => ctx.reply_null(),
            limit_us => ctx.reply_integer(limit_us.saturating_sub(now_us).div_ceil(1_000) as i64),
        };
        ctx.reply_bytes(b"waiters");
        ctx.reply_integer(0);
        ctx.reply_bytes(b"state");
        ctx.reply_bytes(if state == State::Held { b"held" } else { b"delay" })
    }
}

impl<'a> Words<'a> {
    /// Borrows the words of the running command; `None` when there are more than any command takes.
    fn of(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Option<Words<'a>> {
        let count = usize::try_from(argc).ok().filter(|&count| count <= WORDS_MAX)?;
        let mut words = [&[][..]; WORDS_MAX];
        let mut key = Name(std::ptr::null_mut());
        for (position, word) in words.iter_mut().enumerate().take(count) {
            // SAFETY: the server passes `argc` strings, alive until the command returns.
            let name = Name(unsafe { *argv.add(position) });
            if position == 1 {
                key = name;
            }
            *word = name.bytes();
        }
        Some(Words { words, count, key })
    }

    /// The word at a position that the command's arity promises.
    fn at(&self, position: usize) -> &'a [u8] {
        self.words[position]
    }

    fn from(&self, position: usize) -> &[&'a [u8]] {
        &self.words[position.min(self.count)..self.count]
    }
}

fn run(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
    arity: std::ops::RangeInclusive<usize>,
    command: fn(Ctx, &Words) -> Reply,
) -> c_int {
    let ctx = Ctx(ctx);
    match Words::of(argv, argc).filter(|words| arity.contains(&words.count)) {
        Some(words) => command(ctx, &words).unwrap_or_else(|error| error).send(ctx),
        None => ctx.wrong_arity(),
    }
}

macro_rules! command {
    ($name:ident, $arity:expr, $command:path) => {
        callback! {
            pub(crate) fn $name(
                ctx: *mut raw::RedisModuleCtx,
                argv: *mut *mut raw::RedisModuleString,
                argc: c_int,
            ) -> c_int, else Ctx(ctx).reply_error("ERR internal error, see the log of the server");
            { run(ctx, argv, argc, $arity, $command) }
        }
    };
}

command!(on_acquire, 4..=WORDS_MAX, acquire);
command!(on_extend, 4..=WORDS_MAX, extend);
command!(on_release, 3..=WORDS_MAX, release);
command!(on_inspect, 2..=2, inspect);
