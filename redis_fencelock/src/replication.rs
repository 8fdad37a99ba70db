//! What a primary propagates to replicas and the append-only file: the effects of its commands, never the commands.
//!
//! Not the other end, which is `commands::internal`.
//! Invariant: a write is propagated before it is made, and nothing that a replica or an AOF needs is ever skipped.

use std::cell::Cell;
use std::ffi::CStr;

use fence::Fence;
use fence::lock::codec::{self, ENCODED_MAX, Notes, Reading};
use fence::lock::ending::Ending;
use fence::lock::lease::Hold;

use crate::ffi::main_thread::MainThread;
use crate::ffi::{Ctx, NotPropagated, ServerInfo, Str};
use crate::timer::alarm;
use crate::{clock, server};
use fence::lock::codec::Clocks;

/// Carries a hold to replicas and append-only files.
pub(crate) const APPLY: &CStr = c"FENCELOCK._APPLY";
/// Carries the end of a hold.
pub(crate) const END: &CStr = c"FENCELOCK._END";
/// Carries a reading of the clock of leases.
pub(crate) const CLOCK: &CStr = c"FENCELOCK._CLOCK";
/// Carries the last issued fence.
pub(crate) const FLOOR: &CStr = c"FENCELOCK._FLOOR";

/// How often replicas are sent the clock.
const CLOCK_US: u64 = 1_000_000;
/// How often to check whether there is still a replica or an AOF, while there may be one.
const RECIPIENTS_US: u64 = 1_000_000;

static REPLICATION: MainThread<Replication> = MainThread::new(Replication {
    has_recipients: Cell::new(true),
    recipients_due_us: Cell::new(0),
    clock_due_us: Cell::new(0),
    sends_clock: Cell::new(false),
    sends_floor: Cell::new(false),
});

struct Replication {
    /// There may be a replica or an AOF.
    has_recipients: Cell<bool>,
    /// When to check whether that is still so.
    recipients_due_us: Cell<u64>,
    /// When replicas are to be sent the clock.
    clock_due_us: Cell<u64>,
    /// They are to be sent it by the next timer.
    sends_clock: Cell<bool>,
    /// The last issued fence is to be sent into the append-only file.
    sends_floor: Cell<bool>,
}

/// The call in which a write is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A command of a client.
    Command,
    /// A timer, or the stream of a primary.
    Other,
}

/// Propagates a hold that is about to be stored; if this fails, it must not be.
pub(crate) fn propagate_hold(
    ctx: Ctx,
    cause: Cause,
    name: Str,
    hold: &Hold,
    clocks: Clocks,
    notes: Notes,
) -> Result<(), NotPropagated> {
    if !must_propagate(cause) {
        mark_dirty(ctx);
        return Ok(());
    }
    if clock::is_new() && server::is_primary() {
        send_clock(ctx);
    }
    let mut buffer = [0; ENCODED_MAX];
    let stamp = clock::stamp(clocks, server::is_primary());
    ctx.replicate_blob(APPLY, name, codec::encode(hold, stamp, notes, &mut buffer))
}

/// Propagates the end of a hold that is about to be removed; if this fails, it must not be.
pub(crate) fn propagate_end(
    ctx: Ctx,
    cause: Cause,
    name: Str,
    fence: Fence,
    ending: Ending,
) -> Result<(), NotPropagated> {
    if !must_propagate(cause) {
        mark_dirty(ctx);
        return Ok(());
    }
    ctx.replicate_end(END, name, fence.get(), ending.word())
}

/// A write outside a command cannot be counted without being propagated.
fn must_propagate(cause: Cause) -> bool {
    REPLICATION.has_recipients.get() || cause == Cause::Other
}

/// Marks the dataset dirty, so that a save is still due: to no replica and no AOF the command itself is propagated.
fn mark_dirty(ctx: Ctx) {
    ctx.replicate_verbatim();
}

/// Resumes propagating every write.
///
/// A new replica or AOF always starts from a forked snapshot, and the fork event fires before the next command, so
/// propagation resumes in time. A change of the role or of the configuration is taken for one too. A backlog may exist
/// earlier, but it precedes the offset of the snapshot and is never read.
pub(crate) fn resume() {
    REPLICATION.has_recipients.set(true);
}

/// Called by the server's cron: propagating costs as much as a whole command of the server's own, so nothing is
/// propagated while there is no replica, no backlog for one that may come back, and no AOF. A cluster also propagates
/// to move slots.
pub(crate) fn check_recipients() {
    let now_us = clock::steady_us();
    if !REPLICATION.has_recipients.get() || server::in_cluster() || now_us < REPLICATION.recipients_due_us.get() {
        return;
    }
    REPLICATION.recipients_due_us.set(now_us + RECIPIENTS_US);
    let is_zero = |section, field| ServerInfo::of(section).number(field) == Some(0);
    let nobody = server::is_primary()
        && is_zero(c"persistence", c"aof_enabled")
        && is_zero(c"replication", c"connected_slaves")
        && is_zero(c"replication", c"repl_backlog_active");
    REPLICATION.has_recipients.set(!nobody);
}

/// Has the clock sent with the next run of the server's cron.
pub(crate) fn send_clock_soon() {
    REPLICATION.clock_due_us.set(0);
}

/// Called by the server's cron: while a lease and a replica exist, replicas are sent the clock once a second.
pub(crate) fn check_clock(has_leases: bool) {
    let now_us = clock::steady_us();
    if !server::is_primary() || now_us < REPLICATION.clock_due_us.get() || !has_leases {
        return;
    }
    REPLICATION.clock_due_us.set(now_us + CLOCK_US);
    if ServerInfo::of(c"replication").number(c"connected_slaves").is_some_and(|replicas| replicas > 0) {
        REPLICATION.sends_clock.set(true);
        alarm::arm_now();
    }
}

/// Sends the last issued fence into the append-only file: a rewrite keeps it only where a lock exists.
pub(crate) fn send_floor_soon() {
    REPLICATION.sends_floor.set(true);
    alarm::arm_now();
}

/// Sends what was put off until a write may be propagated.
pub(crate) fn send_due(ctx: Ctx) {
    send_floor(|last| ctx.replicate_number(FLOOR, last));
    if REPLICATION.sends_clock.take() {
        send_clock(ctx);
    }
}

/// The same on a replica: its file, too, is all that it may be started from.
pub(crate) fn send_due_to_file(ctx: Ctx) {
    send_floor(|last| ctx.replicate_to_file(FLOOR, last));
}

fn send_floor(send: impl FnOnce(u64) -> Result<(), NotPropagated>) {
    if REPLICATION.sends_floor.take() {
        REPLICATION.sends_floor.set(send(server::last_fence()).is_err());
    }
}

/// Sends the clock to the replicas, which learn from it how late the stream is. What is not propagated has been logged.
fn send_clock(ctx: Ctx) {
    let (own, before) = clock::readings();
    let before = before.unwrap_or(Reading { incarnation: 0, steady_us: 0 });
    let numbers = [own.incarnation, own.steady_us, before.incarnation, before.steady_us];
    if ctx.replicate_to_replicas(CLOCK, numbers).is_ok() {
        clock::set_known();
    }
}
