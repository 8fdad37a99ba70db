//! What operators do with locks and fences. Written to the log.

use crate::errors::Refused;
use crate::lease::acquire::refuse_here;
use crate::lease::arguments;
use crate::lease::fences;
use crate::lease::holder::OpenLock;
use crate::lease::row::Row;
use crate::lease::store::Store;
use crate::server::boot;
use crate::server::call::{Call, Reply};
use crate::server::locks::RelationLock;
use crate::server::log;
use crate::server::session;
use fence::lock::lease::State;
use fence::{Brought, Issuer};
use pg_forms::text;

/// `fencelock_raise(fence bigint)`: no fence at or below this one is issued from now on. Answers the last one. No rollback
/// takes it back.
pub(crate) fn fencelock_raise(call: &Call) -> Result<Reply, Refused> {
    session::refuse_when_read_only(c"fencelock_raise()");
    let fence = arguments::fence(&mut call.arguments(), "fence")?;
    let wall_us = session::now_us();
    let store = Store::open(RelationLock::Writes)?;
    let raised = fences::with_issuer(&store, None, wall_us, |issuer: &mut Issuer| {
        if !issuer.accepts(fence, Brought::ByRaise, wall_us) {
            return Err(Refused::RaiseAhead { fence, max: issuer.largest_accepted(Brought::ByRaise, wall_us) });
        }
        issuer.observe(fence.get());
        Ok(issuer.last())
    })?;
    let last = raised?;
    log::log_line(text!["pg_fence: fences are raised to ", last]);
    Ok(Reply::from(last as i64))
}

/// `fencelock_free(lock text)`: ends the lease of whoever has the lock, and the delay after one. Answers whether there was
/// one.
pub(crate) fn fencelock_free(call: &Call) -> Result<Reply, Refused> {
    refuse_here("fencelock_free()", c"fencelock_free()")?;
    let name = arguments::lock(&mut call.arguments())?;
    let lock = OpenLock::of(name)?;
    let lease = lock.found.as_ref().map(|version| version.row.lease());
    let now = lock.moment.now;
    let is_held = lock.found.as_ref().and_then(|version| version.row.hold()).is_some()
        && lease.is_some_and(|lease| lease.state(now.steady_us) != State::Free);
    match lease {
        // One that nobody can have admitted must not stay.
        Some(lease) if !Issuer::default().observe_stored(lease.fence, now.wall_us) => lock.remove(),
        Some(lease) if is_held => lock.free(lease),
        _ => {
            lock.leave();
            return Ok(Reply::from(false));
        }
    }
    log::log_line(text!["pg_fence: lock \"", name.bytes(), "\" is freed"]);
    Ok(Reply::from(is_held))
}

/// The locks on the names are kept to the end of the transaction, and all sessions share the room for them.
const MAX_FORGOTTEN: i64 = 1_000;

/// `fencelock_forget(older_than bigint)`: removes what is stored of free locks whose last fence is below this one, and answers
/// how many they were. Leaves one that another transaction is changing, and what is more than a call removes.
pub(crate) fn fencelock_forget(call: &Call) -> Result<Reply, Refused> {
    refuse_here("fencelock_forget()", c"fencelock_forget()")?;
    let older_than = arguments::fence(&mut call.arguments(), "older_than")?;
    let moment = boot::moment();
    let is_forgettable = |row: &Row| {
        let is_free = row.hold().is_none_or(|hold| hold.lease.state(moment.now.steady_us) == State::Free);
        is_free && row.fence() < older_than
    };
    let store = Store::open(RelationLock::Writes)?;
    let mut removed = 0_i64;
    for (name, row) in store.all_committed(&moment) {
        if is_forgettable(&row) && store.remove_if(&name, &moment, is_forgettable) {
            removed += 1;
            if removed == MAX_FORGOTTEN {
                break;
            }
        }
    }
    Ok(Reply::from(removed))
}
