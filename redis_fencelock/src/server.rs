//! What this server is: its role, and the fences that it has issued.
//!
//! Invariant: no fence is issued at or below one that this server has issued, loaded or been sent.

use std::cell::{Cell, LazyCell};

use fence::lock::codec::Clocks;
use fence::lock::lease::Now;
use fence::{Brought, Fence, Issuer};
use redis_module::raw;

use crate::ffi::Ctx;
use crate::ffi::main_thread::MainThread;
use crate::{clock, config};

static SERVER: MainThread<LazyCell<Server>> = MainThread::new(LazyCell::new(Server::default));

#[derive(Default)]
struct Server {
    is_primary: Cell<bool>,
    in_cluster: Cell<bool>,
    issuer: Cell<Issuer>,
}

/// Takes the role from the flags of the context in which the module is loaded.
pub(crate) fn begin(flags: u32) {
    SERVER.is_primary.set(flags & raw::REDISMODULE_CTX_FLAGS_MASTER != 0);
    SERVER.in_cluster.set(flags & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0);
    clock::become_issuer(Ctx::random());
}

pub(crate) fn is_primary() -> bool {
    SERVER.is_primary.get()
}

pub(crate) fn in_cluster() -> bool {
    SERVER.in_cluster.get()
}

/// Whether this server is a replica whose stream has stopped.
pub(crate) fn is_link_down() -> bool {
    Ctx::none().flags() & raw::REDISMODULE_CTX_FLAGS_REPLICA_IS_STALE != 0
}

/// Whether a snapshot or an append-only file is being loaded.
pub(crate) fn is_loading() -> bool {
    let loading = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
    Ctx::none().flags() & loading != 0
}

/// Changes the role. A new primary issues fences above all that its predecessor may have issued.
pub(crate) fn set_role(is_primary: bool) {
    let was_primary = SERVER.is_primary.replace(is_primary);
    if is_primary && !was_primary {
        clock::become_issuer(Ctx::random());
        skip_lost_fences();
    }
}

/// A wall clock that steps ahead by more than this, in microseconds, may have been put right after a pause.
const STEP_US: i64 = 100_000;

/// Called by the server's cron: follows the clocks of the machine.
///
/// While its host pauses a machine, the clock of leases stands still, and readings that replicas have from before
/// promise too much. The wall clock is put right afterwards, which shows it. Under another number replicas judge the
/// clock anew.
pub(crate) fn follow_clock() {
    if clock::follow_system() > STEP_US && is_primary() {
        clock::become_issuer(Ctx::random());
    }
}

/// The moment of a grant.
pub(crate) fn now(clocks: Clocks) -> Now {
    Now { steady_us: clocks.steady_us, wall_us: if config::fence_clock() { clocks.wall_us } else { 0 } }
}

/// The last issued fence; 0 before the first.
pub(crate) fn last_fence() -> u64 {
    SERVER.issuer.get().last()
}

/// A copy from which a fence may be issued; what is granted by it is stored with `set_issuer`.
pub(crate) fn issuer() -> Issuer {
    SERVER.issuer.get()
}

pub(crate) fn set_issuer(issuer: Issuer) {
    SERVER.issuer.set(issuer);
}

/// Whether a fence that is brought here is near enough to the clock.
pub(crate) fn accepts(fence: Fence, brought: Brought, wall_us: u64) -> bool {
    SERVER.issuer.get().accepts(fence, brought, wall_us)
}

/// The largest fence that may be brought here.
pub(crate) fn largest_accepted(brought: Brought, wall_us: u64) -> u64 {
    SERVER.issuer.get().largest_accepted(brought, wall_us)
}

/// Whether a stored fence was neither issued nor accepted here.
pub(crate) fn is_unjudged(fence: Fence) -> bool {
    fence.get() > last_fence()
}

/// Takes note of a fence that was issued elsewhere or earlier.
pub(crate) fn observe(last: u64) {
    change_issuer(|issuer| issuer.observe(last));
}

/// Takes note of the fence of a stored lock; false when no server can have accepted it.
pub(crate) fn observe_stored(fence: Fence) -> bool {
    fence.get() <= last_fence() || {
        let wall_us = now(clock::clocks()).wall_us;
        change_issuer(|issuer| issuer.observe_stored(fence, wall_us))
    }
}

/// After a load and a promotion: grants may have been lost that this server does not know of. The clock has passed
/// them; a count has not.
pub(crate) fn skip_lost_fences() {
    if !config::fence_clock() && is_primary() {
        change_issuer(Issuer::skip);
    }
}

fn change_issuer<R>(change: impl FnOnce(&mut Issuer) -> R) -> R {
    let mut issuer = SERVER.issuer.get();
    let result = change(&mut issuer);
    SERVER.issuer.set(issuer);
    result
}
