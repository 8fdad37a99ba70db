//! The commands on locks: parse the arguments, ask the rule, carry it out.
//!
//! No rule here.
//! Invariant: a refused command has changed nothing.

use fence::lock::args;
use fence::lock::awaits::Found;
use fence::lock::codec::Clocks;
use fence::lock::ending::Ending;
use fence::lock::lease::{self, Acquired, Denied, Extended, Hold, Millis, Request, State, Stolen};
use fence::lock::queue::LockName;
use fence::{Brought, Fence};
use redis_module::raw;

use crate::commands::argv::{ANY, Argv, command};
use crate::commands::reply::{CommandResult, Inspected, Reply};
use crate::counters::{self, Count};
use crate::ffi::{Ctx, Str};
use crate::lock::slot::{self, AHEAD_OF_ALL, LockEvent, Slot};
use crate::queue::awaiters::{self, NotAwaited};
use crate::queue::waiters::{self, NotQueued};
use crate::queue::{awaited, handover};
use crate::replication::{Cause, FLOOR};
use crate::{clock, config, server};

command!(on_acquire, 4..=ANY, acquire);
command!(on_steal, 4..=ANY, steal);
command!(on_extend, 4..=ANY, extend);
command!(on_release, 3..=ANY, release);
command!(on_check, 3..=3, check);
command!(on_inspect, 2..=2, inspect);
command!(on_await, 4..=4, await_end);
command!(on_raise, 2..=2, raise);

/// `FENCELOCK.ACQUIRE key owner ttl-ms [WAIT ms] [RETRY] [MAXHOLD ms] [DELAY ms] [EPHEMERAL]`
fn acquire(ctx: Ctx, argv: &Argv) -> CommandResult {
    let args::Acquire { request, wait } = args::acquire(argv.at(2), argv.at(3), argv.from(4), config::max_ttl())?;
    if request.terms.ephemeral && ctx.flags() & raw::REDISMODULE_CTX_FLAGS_LUA != 0 {
        return Err(Reply::Error("ERR EPHEMERAL is refused in a script: its connection is not the caller's".into()));
    }
    let mut slot = open_to_write(ctx, argv.key())?;
    let others_wait = serve_waiters(&mut slot);
    let clocks = clocks_for(&slot, &request);
    let mut issuer = server::issuer();
    match lease::acquire(slot.hold(), others_wait, request, &mut issuer, server::now(clocks)) {
        Ok(Acquired::Granted(lease)) => {
            slot.grant(&Hold { lease, owner: request.owner }, issuer, ctx.client_id(), clocks)?;
            Ok(Reply::Integer(lease.fence.get()))
        }
        Ok(Acquired::Again(lease)) => {
            waiters::confirm(lease.fence);
            if ctx.flags() & raw::REDISMODULE_CTX_FLAGS_LUA == 0 {
                slot.bind_if_ephemeral(ctx.client_id());
            }
            Ok(Reply::Integer(lease.fence.get()))
        }
        Err(Denied::FencesUsedUp) => Err(fences_used_up()),
        Err(_) => busy(ctx, &slot, &request, wait),
    }
}

fn fences_used_up() -> Reply {
    Reply::Error(format!("ERR all fences up to {} are issued", Fence::MAX))
}

/// The coarse clock only lags, so it may refuse but never grant. It lags by far less than this margin, so such a
/// refusal agrees with the exact clock.
const COARSE_MARGIN_US: u64 = 1_000_000;

/// The time of an acquisition, by the cheapest clock that can decide it.
fn clocks_for(slot: &Slot, request: &Request) -> Clocks {
    if let Some(lease) = slot.lease().filter(|_| !request.retry) {
        let coarse_us = clock::coarse_us();
        if lease.is_live(coarse_us + COARSE_MARGIN_US) {
            return Clocks { steady_us: coarse_us, wall_us: 0 };
        }
    }
    clock::clocks()
}

/// Nobody overtakes, not even between the end of a lease and its handover. Returns whether somebody still waits.
fn serve_waiters(slot: &mut Slot) -> bool {
    let lock = slot.lock();
    if waiters::waiting(lock) == 0 {
        return false;
    }
    handover::settle(slot);
    waiters::waiting(lock) > 0
}

fn busy(ctx: Ctx, slot: &Slot, request: &Request, wait: Option<Millis>) -> CommandResult {
    let lock = slot.lock();
    match wait.map(|wait| waiters::enqueue(ctx, lock, request, wait)) {
        Some(Ok(())) => {
            waiters::recheck_when_free(lock, slot.lease(), clock::steady_us());
            return Ok(Reply::Later);
        }
        Some(Err(NotQueued::Full)) => {
            let most = config::max_waiters();
            return Err(Reply::Error(format!(
                "ERR too many waiters for this lock (fencelock.max-waiters-per-lock is {most})"
            )));
        }
        Some(Err(NotQueued::MustNotBlock)) | None => {}
    }
    if request.retry {
        waiters::give_up_turn(lock, request.owner);
    }
    counters::count_for(lock, Count::Busy);
    Ok(Reply::Null)
}

/// `FENCELOCK.STEAL key owner ttl-ms [FENCE fence] [MAXHOLD ms] [DELAY ms]`
fn steal(ctx: Ctx, argv: &Argv) -> CommandResult {
    let takeover = args::steal(argv.at(2), argv.at(3), argv.from(4), config::max_ttl())?;
    let mut slot = open_to_write(ctx, argv.key())?;
    let clocks = clock::clocks();
    let mut issuer = server::issuer();
    let reply = match lease::steal(slot.hold(), takeover, &mut issuer, server::now(clocks)) {
        Ok(Stolen::Granted(lease)) => {
            slot.steal(&Hold { lease, owner: takeover.owner }, issuer, ctx.client_id(), clocks)?;
            Reply::Integer(lease.fence.get())
        }
        Ok(Stolen::Delayed(lease)) => {
            slot.end_in_delay(lease, clocks)?;
            Reply::Null
        }
        Err(Denied::FencesUsedUp) => return Err(fences_used_up()),
        Err(_) => return Ok(Reply::Null),
    };
    waiters::recheck_when_free(slot.lock(), slot.lease(), clocks.steady_us);
    Ok(reply)
}

/// `FENCELOCK.EXTEND key owner ttl-ms [FENCE fence] [GT]`
fn extend(ctx: Ctx, argv: &Argv) -> CommandResult {
    let request = args::extend(argv.at(2), argv.at(3), argv.from(4), config::max_ttl())?;
    let slot = open_to_write(ctx, argv.key())?;
    let clocks = clock::clocks();
    match lease::extend(slot.hold(), request.caller, request.extension, clocks.steady_us) {
        Ok(Extended::Moved(lease)) => {
            slot.set_deadline(lease, clocks)?;
            counters::count(Count::Extensions);
            Ok(Reply::Integer(lease.left(clocks.steady_us).0))
        }
        Ok(Extended::Kept(lease)) => Ok(Reply::Integer(lease.left(clocks.steady_us).0)),
        Err(lost) => {
            counters::count_lost_extension(lost, slot.lock(), request.caller);
            Ok(Reply::Integer(0))
        }
    }
}

/// `FENCELOCK.RELEASE key owner [FENCE fence | QUEUED]`
fn release(ctx: Ctx, argv: &Argv) -> CommandResult {
    let args::Release { caller, queued } = args::release(argv.at(2), argv.from(3))?;
    let mut slot = open_to_write(ctx, argv.key())?;
    let (lock, now_us) = (slot.lock(), clock::steady_us());
    // First, or the lock would be handed to a call that is given up.
    let left_queue = queued && waiters::give_up_all_turns(lock, caller.owner);
    match lease::release(slot.hold(), caller, now_us) {
        Ok(_) => {
            slot.notify(LockEvent::Released);
            handover::pass_on(&mut slot, now_us).inspect_err(|_| slot.forget_events())?;
            counters::count(Count::Releases);
            Ok(Reply::Integer(1))
        }
        // Who gave up never knew whether it held the lock.
        Err(_) if queued => Ok(Reply::Integer(u64::from(left_queue))),
        Err(lost) => {
            counters::count_lost_release(lost, lock, caller);
            Ok(Reply::Integer(0))
        }
    }
}

/// `FENCELOCK.CHECK key fence`
fn check(ctx: Ctx, argv: &Argv) -> CommandResult {
    let fence = args::fence(argv.at(2))?;
    let value = slot::read(ctx, argv.key())?;
    let live = value.is_some_and(|value| value.lease().is_live_hold_of(fence, clock::steady_us()));
    Ok(Reply::Integer(u64::from(live)))
}

/// `FENCELOCK.INSPECT key`
fn inspect(ctx: Ctx, argv: &Argv) -> CommandResult {
    let Some(value) = slot::read(ctx, argv.key())? else { return Ok(Reply::Null) };
    let now_us = clock::steady_us();
    let lease = value.lease();
    let lock = LockName { db: ctx.selected_db(), name: argv.at(1) };
    let waiters = waiters::waiting(lock);
    Ok(match lease.state(now_us) {
        State::Free => Reply::Null,
        state => {
            let owner = value.owner().to_vec();
            Reply::Inspected(Box::new(Inspected { owner, lease, now_us, waiters, state }))
        }
    })
}

/// `FENCELOCK.AWAIT key fence ms`
fn await_end(ctx: Ctx, argv: &Argv) -> CommandResult {
    let args::Await { fence, wait } = args::await_end(argv.at(2), argv.at(3), config::max_ttl())?;
    if server::is_link_down() {
        return Err(Reply::Error(awaiters::LINK_DOWN.into()));
    }
    let (found, lease) = awaited::find(ctx, argv.key(), fence)?;
    let is_ahead = found == Found::Ahead;
    if found == Found::Over {
        return Ok(Reply::Word(Ending::Unknown.word()));
    }
    if is_ahead && server::is_primary() {
        return Err(Reply::Error(awaiters::ahead_of_all(fence)));
    }
    let lock = LockName { db: ctx.selected_db(), name: argv.at(1) };
    match awaiters::enqueue(ctx, lock, fence, is_ahead, wait) {
        Ok(()) => {
            if let Some(lease) = lease {
                awaiters::recheck_at_end(lock, &lease);
            }
            Ok(Reply::Later)
        }
        Err(NotAwaited::MustNotBlock) => Ok(Reply::Null),
        Err(NotAwaited::Full) => {
            let most = config::max_awaiters();
            Err(Reply::Error(format!(
                "ERR too many clients await the end of a hold (fencelock.max-awaiters is {most})"
            )))
        }
    }
}

/// `FENCELOCK.RAISE fence`
fn raise(ctx: Ctx, argv: &Argv) -> CommandResult {
    let fence = args::fence(argv.at(1))?;
    if !server::is_primary() {
        return Err(Reply::read_only());
    }
    if fence.get() > server::last_fence() {
        if !server::accepts(fence, Brought::ByRaise, clock::clocks().wall_us) {
            return Err(Reply::Error(format!(
                "ERR fence {fence} is more than {} ahead of the clock: it would never be caught up",
                Brought::ByRaise.ahead_in_words()
            )));
        }
        ctx.replicate_number(FLOOR, fence.get())?;
        server::observe(fence.get());
    }
    Ok(Reply::Integer(server::last_fence()))
}

/// Opens the lock for a change. A replica grants nothing, even where it lets clients write.
#[inline(always)]
fn open_to_write<'a>(ctx: Ctx<'a>, key: Str<'a>) -> Result<Slot<'a>, Reply> {
    if !server::is_primary() {
        return Err(Reply::read_only());
    }
    let slot = Slot::open(ctx, key, Cause::Command)?;
    if !slot.observe_stored() {
        return Err(Reply::Error(AHEAD_OF_ALL.into()));
    }
    Ok(slot)
}
