//! What the module says of itself: STATS, TOP, HELP and the section of INFO.
//!
//! Reads only.

use std::ffi::{CStr, c_int};

use crate::commands::argv::{ANY, Argv, command};
use crate::commands::reply::{CommandResult, Reply};
use crate::counters::{self, COUNTS, Counter, HOW_BUSY, NAME_FIELDS};
use crate::ffi::{Ctx, InfoSection, callback};
use crate::lock::index::index;
use crate::queue::{awaiters, waiters};
use crate::server;
use fence::lock::args;
use fence::lock::queue::LockName;

command!(on_stats, 1..=2, stats);
command!(on_top, 2..=ANY, top);
command!(on_help, 1..=1, help);

/// The version as INFO has it.
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no NUL inside"),
};

/// Gauges beside the counters, in the order of `gauges`.
const GAUGES: [Counter; 5] = [
    Counter { in_stats: "live-leases", in_info: c"live_leases", by_name: false },
    Counter { in_stats: "waiters", in_info: c"waiters", by_name: false },
    Counter { in_stats: "awaiters", in_info: c"awaiters", by_name: false },
    Counter { in_stats: "last-fence", in_info: c"last_fence", by_name: false },
    Counter { in_stats: "index-bytes", in_info: c"index_bytes", by_name: false },
];

fn gauges() -> [u64; 5] {
    let index = index().borrow();
    let clients = [waiters::len(), awaiters::len()].map(|clients| clients as u64);
    [index.len() as u64, clients[0], clients[1], server::last_fence(), index.allocated() as u64]
}

/// Every counter and every gauge with its value.
fn values() -> impl Iterator<Item = (&'static Counter, u64)> {
    let counted = COUNTS.iter().enumerate().map(|(at, counter)| (counter, counters::get(at)));
    counted.chain(GAUGES.iter().zip(gauges()))
}

/// `FENCELOCK.STATS [key]`
fn stats(ctx: Ctx, argv: &Argv) -> CommandResult {
    if argv.from(1).is_empty() {
        return Ok(Reply::Numbers(values().map(|(counter, value)| (counter.in_stats, value)).collect()));
    }
    let lock = LockName { db: ctx.selected_db(), name: argv.at(1) };
    let Some(stats) = counters::of_name(lock) else { return Ok(Reply::Null) };
    let fields = stats.fields(waiters::waiting(lock));
    Ok(Reply::Numbers(NAME_FIELDS.into_iter().zip(fields).collect()))
}

/// `FENCELOCK.TOP n [BY counter]`
fn top(_ctx: Ctx, argv: &Argv) -> CommandResult {
    let args::Top { most, by } = args::top(argv.at(1), argv.from(2), &NAME_FIELDS)?;
    let busiest = counters::top(most, by.unwrap_or(HOW_BUSY), waiters::waiting);
    Ok(Reply::Busiest(busiest.into_iter().map(|stats| (waiters::waiting(stats.lock()), stats)).collect()))
}

const HELP: &[&str] = &[
    "FENCELOCK.ACQUIRE key owner ttl-ms [WAIT ms] [RETRY] [MAXHOLD ms] [DELAY ms] [EPHEMERAL]",
    "    Grant the lock for ttl-ms milliseconds; WAIT, MAXHOLD and DELAY are milliseconds too. Replies the fence, or null",
    "    when it is busy or the wait timed out.",
    "FENCELOCK.STEAL key owner ttl-ms [FENCE fence] [MAXHOLD ms] [DELAY ms]",
    "    Take the lock over for ttl-ms milliseconds, ahead of its queue; FENCE: from that hold alone. Replies the fence, or",
    "    null: another hold, or a DELAY that runs first.",
    "FENCELOCK.EXTEND key owner ttl-ms [FENCE fence] [GT]",
    "    Set the lease to ttl-ms milliseconds from now; GT: only if that is longer. Replies the milliseconds left, or 0: the",
    "    lease is no longer yours.",
    "FENCELOCK.RELEASE key owner [FENCE fence | QUEUED]",
    "    End the lease. Replies 1, or 0: it is not yours. QUEUED: end the owner's waits too, after a call was given up.",
    "FENCELOCK.CHECK key fence",
    "    Replies 1 if that fence is the live hold of the lock now, else 0. A hint, not a guard.",
    "FENCELOCK.INSPECT key",
    "    Replies owner, fence, ttl-ms, held-ms, maxhold-left-ms, waiters and state, or null when it is free.",
    "FENCELOCK.AWAIT key fence ms",
    "    Wait for the end of that hold, ms milliseconds at most. Replies why it ended, or null: it has not.",
    "FENCELOCK.CLAIM resource fence",
    "    Stamp the fence on a hash before you read it. Replies all fields, or null: you are stale.",
    "FENCELOCK.WRITE resource fence field value [field value ...]",
    "    Set fields while the stamp is yours. Replies 1, or 0: you are stale.",
    "FENCELOCK.STATS [key]",
    "    Replies the counters of the server, or of one busy lock.",
    "FENCELOCK.TOP n [BY counter]",
    "    Replies the n busiest locks and their counters: those with the most contended calls, or the most of a counter.",
    "FENCELOCK.RAISE fence",
    "    Issue no fence at or below this one from now on. Replies the last issued.",
    "FENCELOCK.HELP",
    "    Replies these lines.",
];

/// `FENCELOCK.HELP`
fn help(_ctx: Ctx, _argv: &Argv) -> CommandResult {
    Ok(Reply::Lines(HELP))
}

pub(crate) fn register(ctx: Ctx) -> bool {
    ctx.register_info(on_info)
}

callback! {
    fn on_info(section: InfoSection, for_crash_report: c_int) -> (), else ();
    {
        // A crash may have come in the middle of our own work.
        if for_crash_report != 0 {
            return;
        }
        section.begin();
        section.add_text(c"version", VERSION);
        values().for_each(|(counter, value)| section.add_number(counter.in_info, value));
    }
}
