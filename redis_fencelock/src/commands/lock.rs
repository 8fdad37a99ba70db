//! The commands on locks: read the arguments, ask the rule, carry it out, answer.
//!
//! No rule here, and no reply before the work is done, so that a panic can still be answered by an error.
//! Invariant: a refused command has changed nothing.

use std::cell::OnceCell;
use std::ffi::c_int;
use std::ops::RangeInclusive;

use fence::lock::args::{self, BadArgument};
use fence::lock::codec::Clocks;
use fence::lock::lease::{self, Acquired, Caller, Denied, Hold, Lease, Lost, Millis, Request, State};
use fence::lock::queue::LockName;
use fence::{Brought, Fence};
use redis_module::raw;

use crate::commands::{info, resource};
use crate::counters::{Count, NAME_FIELDS, NameStats};
use crate::ffi::{Ctx, INTERNAL_ERROR, Key, Name, NotPropagated, callback};
use crate::lock::slot::{AHEAD_OF_ALL, Event, Slot, WRONG_TYPE, WrongType};
use crate::queue::handover;
use crate::queue::waiters::{self, NotQueued};
use crate::replication::FLOOR;
use crate::server::server;

/// What a command replies.
pub(crate) enum Answer {
    Integer(u64),
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

pub(crate) type Reply = Result<Answer, Answer>;

/// What INSPECT tells of a lock.
pub(crate) struct Inspected {
    owner: Vec<u8>,
    lease: Lease,
    now_us: u64,
    waiters: usize,
    state: State,
}

impl From<BadArgument<'_>> for Answer {
    fn from(bad: BadArgument) -> Answer {
        Answer::Error(format!("ERR {bad}"))
    }
}

impl From<NotPropagated> for Answer {
    fn from(_: NotPropagated) -> Answer {
        Answer::Error("ERR the write cannot be propagated, so nothing was changed: see the log of the server".into())
    }
}

impl From<WrongType> for Answer {
    fn from(_: WrongType) -> Answer {
        Answer::Error(WRONG_TYPE.into())
    }
}

/// `FENCELOCK.ACQUIRE key owner ttl-ms [WAIT ms] [RETRY] [MAXHOLD ms] [DELAY ms] [EPHEMERAL]`
fn acquire(ctx: Ctx, words: &Words) -> Reply {
    let args::Acquire { request, wait } =
        args::acquire(words.at(2), words.at(3), words.from(4), server().max_ttl.get())?;
    if request.terms.ephemeral && ctx.flags() & raw::REDISMODULE_CTX_FLAGS_LUA != 0 {
        return Err(Answer::Error("ERR EPHEMERAL is refused in a script: its connection is not the caller's".into()));
    }
    let mut slot = open_to_write(ctx, words.key)?;
    let others_wait = serve_those_who_wait(&mut slot);
    let clocks = clocks_for(&slot, &request);
    let mut issuer = server().issuer();
    match lease::acquire(slot.hold(), others_wait, request, &mut issuer, server().now(clocks)) {
        Ok(Acquired::Granted(lease)) => {
            slot.grant(&Hold { lease, owner: request.owner }, clocks)?;
            server().set_issuer(issuer);
            slot.bind_if_ephemeral(ctx.client_id());
            Ok(Answer::Integer(lease.fence.get()))
        }
        Ok(Acquired::Again(lease)) => {
            waiters::confirm(lease.fence);
            if ctx.flags() & raw::REDISMODULE_CTX_FLAGS_LUA == 0 {
                slot.bind_if_ephemeral(ctx.client_id());
            }
            Ok(Answer::Integer(lease.fence.get()))
        }
        Err(Denied::FencesUsedUp) => Err(Answer::Error(format!("ERR all fences up to {} are issued", Fence::MAX))),
        Err(Denied::Held | Denied::Delayed | Denied::Queued) => busy(ctx, &slot, words.key, &request, wait),
    }
}

/// The rough clock is never ahead, so nothing is granted by it. It refuses a lock with more than this left of its lease;
/// it is late by far less, and if not, the refusal is as late.
const ROUGH_MARGIN_US: u64 = 1_000_000;

/// The time of an acquisition, by the cheapest clock that can tell its outcome.
fn clocks_for(slot: &Slot, request: &Request) -> Clocks {
    if let Some(lease) = slot.lease().filter(|_| !request.retry) {
        let rough_us = server().rough_us();
        if lease.is_live(rough_us + ROUGH_MARGIN_US) {
            return Clocks { steady_us: rough_us, wall_us: 0 };
        }
    }
    server().clocks()
}

/// Nobody overtakes, not even between the end of a lease and its hand-over. Tells whether somebody still waits.
fn serve_those_who_wait(slot: &mut Slot) -> bool {
    let lock = slot.lock();
    let waiting = || !server().queues.borrow().is_empty() && server().queues.borrow().waiting(lock) > 0;
    if waiting() {
        handover::settle(slot, lock);
    }
    waiting()
}

fn busy(ctx: Ctx, slot: &Slot, key: Name, request: &Request, wait: Option<Millis>) -> Reply {
    let lock = slot.lock();
    match wait.map(|wait| waiters::enqueue(ctx, key, request, wait)) {
        Some(Ok(())) => {
            handover::look_again(slot, lock, server().steady_us());
            return Ok(Answer::Later);
        }
        Some(Err(NotQueued::Full)) => {
            let most = server().max_waiters.get();
            return Err(Answer::Error(format!(
                "ERR {most} clients wait for this lock, the most that fencelock.max-waiters-per-lock allows"
            )));
        }
        Some(Err(NotQueued::MustNotBlock)) | None => {}
    }
    if request.retry {
        waiters::give_up_place(lock, request.owner);
    }
    server().stats.count_for(lock, Count::Busy);
    Ok(Answer::Null)
}

/// `FENCELOCK.EXTEND key owner ttl-ms [FENCE fence]`
fn extend(ctx: Ctx, words: &Words) -> Reply {
    let request = args::extend(words.at(2), words.at(3), words.from(4), server().max_ttl.get())?;
    let slot = open_to_write(ctx, words.key)?;
    let clocks = server().clocks();
    match lease::extend(slot.hold(), request.caller, request.ttl, clocks.steady_us) {
        Ok(lease) => {
            slot.set_deadline(lease, clocks)?;
            server().stats.count(Count::Extensions);
            Ok(Answer::Integer(lease.left(clocks.steady_us).0))
        }
        Err(lost) => {
            count_lost(lost, slot.lock(), request.caller, Count::LateExtensions, Count::UnknownExtensions);
            Ok(Answer::Integer(0))
        }
    }
}

/// `FENCELOCK.RELEASE key owner [FENCE fence | QUEUED]`
fn release(ctx: Ctx, words: &Words) -> Reply {
    let args::Release { caller, queued } = args::release(words.at(2), words.from(3))?;
    let mut slot = open_to_write(ctx, words.key)?;
    let (lock, now_us) = (slot.lock(), server().steady_us());
    // First, or the lock would be handed to a call that is given up.
    let left_queue = queued && waiters::give_up_all_places(lock, caller.owner);
    match lease::release(slot.hold(), caller, now_us) {
        Ok(_) => {
            slot.tell(Event::Released);
            handover::pass_on(&mut slot, lock, now_us).inspect_err(|_| slot.tell_nothing())?;
            server().stats.count(Count::Releases);
            Ok(Answer::Integer(1))
        }
        // Who gave up never knew whether it held the lock.
        Err(_) if queued => Ok(Answer::Integer(u64::from(left_queue))),
        Err(lost) => {
            count_lost(lost, lock, caller, Count::LateReleases, Count::UnknownReleases);
            Ok(Answer::Integer(0))
        }
    }
}

/// Counts a call of somebody who does not hold the lock.
fn count_lost(lost: Lost, lock: LockName, caller: Caller, late: Count, unknown: Count) {
    let is_late = server().lost_holds.borrow().is_late(lost, lock, caller.owner, caller.fence);
    server().stats.count_for(lock, if is_late { late } else { unknown });
}

/// `FENCELOCK.CHECK key fence`
fn check(ctx: Ctx, words: &Words) -> Reply {
    let fence = args::fence(words.at(2))?;
    let value = Slot::look(ctx, words.key)?;
    let live = value.is_some_and(|value| value.lease().is_live_hold_of(fence, server().steady_us()));
    Ok(Answer::Integer(u64::from(live)))
}

/// `FENCELOCK.INSPECT key`
fn inspect(ctx: Ctx, words: &Words) -> Reply {
    let Some(value) = Slot::look(ctx, words.key)? else { return Ok(Answer::Null) };
    let now_us = server().steady_us();
    let lease = value.lease();
    let lock = LockName { db: ctx.selected_db(), name: words.at(1) };
    let waiters = server().queues.borrow().waiting(lock);
    Ok(match lease.state(now_us) {
        State::Free => Answer::Null,
        state => {
            let owner = value.owner().to_vec();
            Answer::Inspected(Box::new(Inspected { owner, lease, now_us, waiters, state }))
        }
    })
}

/// `FENCELOCK.RAISE fence`
fn raise(ctx: Ctx, words: &Words) -> Reply {
    let fence = args::fence(words.at(1))?;
    if !server().is_primary.get() {
        return Err(Answer::read_only());
    }
    if fence.get() > server().issuer().last() {
        if !server().issuer().accepts(fence, Brought::ByRaise, server().clocks().wall_us) {
            return Err(Answer::Error(format!(
                "ERR fence {fence} is more than an hour ahead of the clock: it would never be caught up"
            )));
        }
        ctx.replicate_number(FLOOR, fence.get())?;
        server().observe(fence.get());
    }
    Ok(Answer::Integer(server().issuer().last()))
}

/// Opens the lock for a change. A replica grants nothing, even where it lets clients write.
#[inline(always)]
fn open_to_write(ctx: Ctx, key: Name) -> Result<Slot, Answer> {
    if !server().is_primary.get() {
        return Err(Answer::read_only());
    }
    let slot = Slot::open_in_command(ctx, key)?;
    if !slot.observe_stored() {
        return Err(Answer::Error(AHEAD_OF_ALL.into()));
    }
    Ok(slot)
}

impl Answer {
    pub fn read_only() -> Answer {
        Answer::Error("READONLY only the primary grants leases and fences".into())
    }

    fn send(self, ctx: Ctx) -> c_int {
        match self {
            Answer::Integer(number) => ctx.reply_integer(number as i64),
            Answer::Null => ctx.reply_null(),
            Answer::Error(line) => ctx.reply_error(&line),
            Answer::Inspected(inspected) => inspected.send(ctx),
            Answer::Fields(key) => key.reply_fields(ctx),
            Answer::Later => raw::REDISMODULE_OK as c_int,
            Answer::Numbers(numbers) => {
                ctx.reply_map(numbers.len());
                numbers.iter().fold(0, |_, (name, number)| {
                    ctx.reply_bytes(name.as_bytes());
                    ctx.reply_integer(*number as i64)
                })
            }
            Answer::Busiest(names) => {
                ctx.reply_array(names.len());
                names.iter().fold(raw::REDISMODULE_OK as c_int, |_, (waiters, stats)| {
                    ctx.reply_map(2 + NAME_FIELDS.len());
                    ctx.reply_bytes(b"key");
                    ctx.reply_bytes(&stats.name);
                    ctx.reply_bytes(b"db");
                    ctx.reply_integer(i64::from(stats.db));
                    NAME_FIELDS.iter().zip(stats.fields(*waiters)).fold(0, |_, (name, number)| {
                        ctx.reply_bytes(name.as_bytes());
                        ctx.reply_integer(number as i64)
                    })
                })
            }
            Answer::Lines(lines) => {
                ctx.reply_array(lines.len());
                lines.iter().fold(0, |_, line| ctx.reply_bytes(line.as_bytes()))
            }
        }
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

/// The words of a command, with the key at 1.
pub(crate) struct Words<'a> {
    names: &'a [Name],
    /// All words, once somebody has asked for more than one of them.
    few: OnceCell<[&'a [u8]; FEW]>,
    many: OnceCell<Vec<&'a [u8]>>,
    pub key: Name,
}

/// Words that are kept without an allocation: all of every command but a long WRITE.
const FEW: usize = 16;

impl<'a> Words<'a> {
    fn of(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Words<'a> {
        // SAFETY: the server passes `argc` strings, alive until the command returns; a Name is such a pointer.
        let names: &[Name] = unsafe { std::slice::from_raw_parts(argv.cast(), argc as usize) };
        Words { names, few: OnceCell::new(), many: OnceCell::new(), key: *names.get(1).unwrap_or(&names[0]) }
    }

    /// The word at a position that the command's arity promises.
    pub fn at(&self, position: usize) -> &'a [u8] {
        self.names[position].bytes()
    }

    pub fn from(&self, position: usize) -> &[&'a [u8]] {
        if self.names.len() <= position { &[] } else { &self.all()[position..] }
    }

    pub fn names_from(&self, position: usize) -> &'a [Name] {
        self.names.get(position..).unwrap_or_default()
    }

    fn all(&self) -> &[&'a [u8]] {
        let words = || self.names.iter().map(|name| name.bytes());
        if self.names.len() > FEW {
            return self.many.get_or_init(|| words().collect());
        }
        let few = self.few.get_or_init(|| {
            let mut few: [&[u8]; FEW] = [&[]; FEW];
            few.iter_mut().zip(words()).for_each(|(place, word)| *place = word);
            few
        });
        &few[..self.names.len()]
    }
}

fn run(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
    arity: RangeInclusive<usize>,
    command: fn(Ctx, &Words) -> Reply,
) -> c_int {
    let ctx = Ctx(ctx);
    if !arity.contains(&(argc as usize)) {
        return ctx.wrong_arity();
    }
    command(ctx, &Words::of(argv, argc)).unwrap_or_else(|error| error).send(ctx)
}

macro_rules! command {
    ($name:ident, $arity:expr, $command:path) => {
        callback! {
            pub(crate) fn $name(
                ctx: *mut raw::RedisModuleCtx,
                argv: *mut *mut raw::RedisModuleString,
                argc: c_int,
            ) -> c_int, else Ctx(ctx).reply_error(INTERNAL_ERROR);
            { run(ctx, argv, argc, $arity, $command) }
        }
    };
}

const ANY: usize = usize::MAX;

command!(on_acquire, 4..=ANY, acquire);
command!(on_extend, 4..=ANY, extend);
command!(on_release, 3..=ANY, release);
command!(on_check, 3..=3, check);
command!(on_inspect, 2..=2, inspect);
command!(on_claim, 3..=3, resource::claim);
command!(on_write, 5..=ANY, resource::write);
command!(on_stats, 1..=2, info::stats);
command!(on_top, 2..=ANY, info::top);
command!(on_raise, 2..=2, raise);
command!(on_help, 1..=1, info::help);
