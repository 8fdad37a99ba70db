//! Whether this server serves a key: in a cluster its slot may have moved, or the cluster may be down.
//!
//! Asked by a call that the cluster treats like any write. The rule when to ask again is `fence::cluster`.
//! Invariant: outside a command nothing is written to a key without having asked.

use std::cell::{LazyCell, RefCell};
use std::ffi::CStr;

use fence::cluster::{Refusals, Served};

use crate::counters::{self, Count};
use crate::ffi::main_thread::MainThread;
use crate::ffi::{Called, Ctx, Str, command_callback};
use crate::{clock, server};

/// What was refused lately.
static REFUSALS: MainThread<LazyCell<RefCell<Refusals>>> = MainThread::new(LazyCell::new(RefCell::default));

/// A write that does nothing, so the server refuses it where it would refuse a write of a client. It lacks the flag
/// `internal`, because servers refuse such commands in a call of a module. A client that sends it does no harm.
pub(crate) const PROBE: &CStr = c"FENCELOCK._PROBE";

command_callback!(
    /// `FENCELOCK._PROBE key`
    on_probe,
    |ctx, _strings| ctx.reply_ok()
);

/// What the server says of a key now.
pub(crate) fn served(ctx: Ctx, name: Str) -> Served {
    if !server::in_cluster() {
        return Served::Here;
    }
    let served = ask(ctx, name);
    REFUSALS.borrow_mut().note(name.bytes(), served, clock::steady_us());
    served
}

/// Whether another server serves the key now. The answer is not kept, because the slot may be on its way here.
pub(crate) fn is_elsewhere(ctx: Ctx, name: Str) -> bool {
    ask(ctx, name) == Served::Elsewhere
}

fn ask(ctx: Ctx, name: Str) -> Served {
    counters::count(Count::SlotProbes);
    match ctx.call(PROBE, name) {
        Called::Done => Served::Here,
        Called::NotPermitted => Served::Elsewhere,
        Called::Failed => Served::Down,
    }
}

/// How long to wait until a key is asked for again of which nothing else is known.
pub(crate) const NOT_SERVED_RETRY_US: u64 = 1_000_000;

/// Asks whether a key is served, but not again what was refused lately. The error is when to ask again.
pub(crate) fn await_served(ctx: Ctx, name: Str, now_us: u64) -> Result<(), u64> {
    await_by(ctx, name, now_us, Refusals::until)
}

/// The same for what somebody waits for.
pub(crate) fn await_served_soon(ctx: Ctx, name: Str, now_us: u64) -> Result<(), u64> {
    await_by(ctx, name, now_us, Refusals::until_soon)
}

fn await_by(ctx: Ctx, name: Str, now_us: u64, until: fn(&Refusals, &[u8], u64) -> Option<u64>) -> Result<(), u64> {
    if !server::in_cluster() {
        return Ok(());
    }
    if let Some(until_us) = until(&REFUSALS.borrow(), name.bytes(), now_us) {
        return Err(until_us);
    }
    match served(ctx, name) {
        Served::Here => Ok(()),
        Served::Elsewhere | Served::Down => {
            let until_us = until(&REFUSALS.borrow(), name.bytes(), now_us);
            Err(until_us.unwrap_or(now_us + NOT_SERVED_RETRY_US))
        }
    }
}

/// Until when the whole cluster is taken to be down, if it is.
pub(crate) fn down_until() -> Option<u64> {
    if server::in_cluster() { REFUSALS.borrow().down_until(clock::steady_us()) } else { None }
}
