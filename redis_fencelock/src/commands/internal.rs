//! The internal commands: a replica, and a server that reads its append-only file, store what a primary has propagated.
//!
//! Nothing is decided here, least of all by a clock.
//! Invariant: a user cannot run them.
//!
//! A file with a command that its reader does not know is not loaded, so there are no others in a version to come: it
//! adds arguments behind those of today, which are ignored, and fields and flags to the record.

use fence::lock::args;
use fence::lock::codec::{self, Reading, Route};
use fence::lock::ending::Ending;
use redis_module::raw;

use crate::commands::argv::{ANY, Argv, command};
use crate::commands::reply::{CommandResult, Reply};
use crate::ffi::{Ctx, Str, warn};
use crate::lock::slot;
use crate::queue::awaiters;
use crate::{clock, server};

command!(on_apply, 3..=ANY, apply);
command!(on_end, 4..=ANY, end);
command!(on_clock, 3..=ANY, follow_clock);
command!(on_floor, 2..=ANY, raise_floor);

/// `FENCELOCK._APPLY key record`: stores a hold.
fn apply(ctx: Ctx, argv: &Argv) -> CommandResult {
    let route = route(ctx)?;
    let record = codec::decode(argv.at(2)).map_err(|corrupt| {
        let line = format!("a replicated lock cannot be read: {corrupt:?}; is the primary's module newer?");
        warn(&line);
        Reply::Error(format!("ERR {line}"))
    })?;
    slot::apply(ctx, argv.key(), &record, route);
    Ok(Reply::Ok)
}

/// `FENCELOCK._END key fence reason`: removes the hold with that fence. Another hold, or another type, stays.
fn end(ctx: Ctx, argv: &Argv) -> CommandResult {
    route(ctx)?;
    slot::apply_end(ctx, argv.key(), args::fence(argv.at(2))?, Ending::named(argv.at(3)));
    ctx.replicate_verbatim();
    Ok(Reply::Ok)
}

/// `FENCELOCK._CLOCK incarnation microseconds [incarnation microseconds]`: what the primary reads on its clock of
/// leases, and what the clock reads of the primary that it followed. It is not in files: those are read later.
fn follow_clock(ctx: Ctx, argv: &Argv) -> CommandResult {
    let route = route(ctx)?;
    let own = argv.first::<2>().and_then(reading);
    let own = own.ok_or_else(|| Reply::Error("ERR a reading of a clock must be two integers".into()))?;
    // An incarnation of 0 stands for none.
    let before = argv.first::<4>().and_then(|[_, _, incarnation, steady_us]| reading([incarnation, steady_us]));
    let before = before.filter(|before| before.incarnation != 0);
    // A primary that takes a slot over is sent the readings of another.
    if route == Route::Stream && !server::is_primary() {
        clock::receive(own, before);
    }
    Ok(Reply::Ok)
}

/// `FENCELOCK._FLOOR fence`: no fence at or below this one is issued from now on.
fn raise_floor(ctx: Ctx, argv: &Argv) -> CommandResult {
    route(ctx)?;
    server::observe(args::fence(argv.at(1))?.get());
    awaiters::end_passed();
    ctx.replicate_verbatim();
    Ok(Reply::Ok)
}

fn reading([incarnation, steady_us]: [Str; 2]) -> Option<Reading> {
    let number = |string: Str| args::canonical(string.bytes());
    Some(Reading { incarnation: number(incarnation)?, steady_us: number(steady_us)? })
}

/// How the running command came here; an error when an ordinary client sent it.
fn route(ctx: Ctx) -> Result<Route, Reply> {
    let flags = ctx.flags();
    if flags & raw::REDISMODULE_CTX_FLAGS_LOADING != 0 {
        return Ok(Route::File);
    }
    let internal = "ERR this command is internal: it is run by replication and by loading alone";
    let is_replicated = flags & raw::REDISMODULE_CTX_FLAGS_REPLICATED != 0;
    is_replicated.then_some(Route::Stream).ok_or_else(|| Reply::Error(internal.into()))
}
