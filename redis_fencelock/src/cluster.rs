//! Whether this server serves a key: in a cluster its slot may have moved, or the cluster may be down.
//!
//! Asked by a call that the cluster treats like any write. The rule when to ask again is `fence::cluster`.
//! Invariant: outside a command nothing is written to a key without having asked.

use std::ffi::{CStr, c_int};

use fence::cluster::Served;
use redis_module::raw;

use crate::counters::Count;
use crate::ffi::{Ctx, INTERNAL_ERROR, Name, callback};
use crate::server::server;

/// Does nothing, as a write: so it is refused where a write of a client would be, and for no other reason. It has not the
/// flag `internal`: servers refuse such commands in a call of a module. A client that sends it does no harm.
pub(crate) const PROBE: &CStr = c"FENCELOCK._PROBE";

callback! {
    /// `FENCELOCK._PROBE key`
    pub(crate) fn on_probe(
        ctx: *mut raw::RedisModuleCtx,
        _argv: *mut *mut raw::RedisModuleString,
        _argc: c_int,
    ) -> c_int, else Ctx(ctx).reply_error(INTERNAL_ERROR);
    { Ctx(ctx).reply_ok() }
}

/// What the server says of a key now.
pub(crate) fn served(ctx: Ctx, name: Name) -> Served {
    let server = server();
    if !server.in_cluster.get() {
        return Served::Here;
    }
    let served = ask(ctx, name);
    server.refusals.borrow_mut().note(name.bytes(), served, server.steady_us());
    served
}

/// Whether another server serves the key now. Takes note of nothing: the slot may be on its way here.
pub(crate) fn is_elsewhere(ctx: Ctx, name: Name) -> bool {
    ask(ctx, name) == Served::Elsewhere
}

fn ask(ctx: Ctx, name: Name) -> Served {
    server().stats.count(Count::SlotProbes);
    ctx.probe(PROBE, name)
}

/// The same, but what was refused lately is not asked again: then the error is the time of the next question.
pub(crate) fn served_or_wait(ctx: Ctx, name: Name, now_us: u64) -> Result<Served, u64> {
    if !server().in_cluster.get() {
        return Ok(Served::Here);
    }
    let until = server().refusals.borrow().until(name.bytes(), now_us);
    until.map_or_else(|| Ok(served(ctx, name)), Err)
}
