//! Acquiring a lock, at once or after a wait.
//!
//! Invariant: who is granted the lock was the head of its queue, and nobody else can have changed the row since it was read.

use crate::errors::Refused;
use crate::lease::arguments::Acquire;
use crate::lease::fences;
use crate::lease::names::{Names, give_back};
use crate::lease::patience::{self, Patience};
use crate::lease::row::Row;
use crate::lease::store::Store;
use crate::server::boot::{self, Moment};
use crate::server::call::{Call, Reply};
use crate::server::heap::Version;
use crate::server::locks::RelationLock;
use crate::server::session;
use crate::server::sleep;
use crate::settings;
use crate::stats::Subject;
use crate::stats::memory::Counter;
use fence::lock::lease::{self, Acquired, Denied, Lease, State};
use fence::{Fence, Issuer};
use pgrx::pg_sys::Datum;
use std::ffi::CStr;

/// `fencelock_acquire(lock text, owner text, ttl_ms bigint, wait_ms bigint, retry boolean, maxhold_ms bigint, delay_ms
/// bigint)`: the fence; null where the lock is busy, or the wait expired.
pub(crate) fn fencelock_acquire(call: &Call) -> Result<Reply, Refused> {
    refuse_here("fencelock_acquire()", c"fencelock_acquire()")?;
    let asked = Acquire::read(call)?;
    Ok(Reply::from(acquire(&asked, false)?))
}

/// `fencelock_wait(lock text, owner text, ttl_ms bigint, wait_ms bigint, INOUT fence bigint)`: the same as a procedure, which
/// holds back no vacuum while it waits.
pub(crate) fn fencelock_wait(call: &Call) -> Result<Reply, Refused> {
    refuse_here("fencelock_wait()", c"fencelock_wait()")?;
    let asked = Acquire::read_waiting(call)?;
    let keeps_no_snapshot = call.may_commit();
    if keeps_no_snapshot {
        sleep::give_up_snapshots();
    }
    let fence = acquire(&asked, keeps_no_snapshot)?;
    Ok(call.record(&[fence.map(|fence| Datum::from(fence.get() as i64))]))
}

/// Refuses a call where it would have another effect than the caller expects: in a read-only transaction, and in a
/// transaction block.
pub(crate) fn refuse_here(function: &'static str, name: &CStr) -> Result<(), Refused> {
    session::refuse_when_read_only(name);
    if session::is_in_clients_block() && !settings::leases_in_transaction() {
        return Err(Refused::LeaseInBlock { function });
    }
    Ok(())
}

/// Acquires the lock, and counts.
fn acquire(asked: &Acquire, keeps_no_snapshot: bool) -> Result<Option<Fence>, Refused> {
    let subject = Subject::Lock(asked.lock.bytes());
    let answer = queue_and_acquire(asked, keeps_no_snapshot);
    match &answer {
        Ok(Some(Acquired::Granted(_))) => subject.count(Counter::Grants),
        Ok(Some(Acquired::Again(_))) => {}
        Ok(None) | Err(Refused::ManyWaiters { .. }) => subject.count(Counter::Busy),
        Err(_) => {}
    }
    Ok(answer?.map(|(Acquired::Granted(lease) | Acquired::Again(lease))| lease.fence))
}

fn queue_and_acquire(asked: &Acquire, keeps_no_snapshot: bool) -> Result<Option<Acquired>, Refused> {
    let names = Names::of(asked.lock.bytes());
    if asked.request().retry
        && let Some(lease) = granted_before(asked)?
    {
        return Ok(Some(Acquired::Again(lease)));
    }
    // What this transaction itself has changed nobody else can change: it would wait for itself.
    let wait = asked.wait.filter(|_| !names.row.is_mine());
    let max = settings::max_waiters();
    let patience = wait.filter(|_| max > 0).map(|wait| Patience::of(asked.lock, wait, keeps_no_snapshot));
    if !join(&names, patience.as_ref(), max)? {
        // An earlier call of this acquisition may have been ahead in the queue.
        let before = if asked.request().retry { granted_before(asked)? } else { None };
        return Ok(before.map(Acquired::Again));
    }
    let acquired = as_head(asked, &names, patience.as_ref())?;
    give_back(&names.queue);
    if acquired.is_none() && wait.is_some() && max == 0 {
        return Err(Refused::ManyWaiters { max });
    }
    Ok(acquired)
}

/// The lease that an earlier call of this acquisition was granted, as far as it is committed.
fn granted_before(asked: &Acquire) -> Result<Option<Lease>, Refused> {
    let moment = boot::moment();
    let store = Store::open(RelationLock::Reads)?;
    let row = store.find_committed(asked.lock, &moment);
    store.close_unchanged();
    let hold = row.as_ref().and_then(Row::hold);
    match lease::acquire(hold, true, asked.request(), &mut Issuer::default(), moment.now) {
        Ok(Acquired::Again(lease)) => Ok(Some(lease)),
        Ok(Acquired::Granted(_)) | Err(_) => Ok(None),
    }
}

/// Becomes the head of the lock's queue. Answers whether, before the time has passed.
fn join(names: &Names, patience: Option<&Patience>, max: usize) -> Result<bool, Refused> {
    if patience::take(&names.queue, None) {
        return Ok(true);
    }
    let Some(patience) = patience else { return Ok(false) };
    if names.waiting() >= max {
        return Err(Refused::ManyWaiters { max });
    }
    Ok(patience.take(&names.queue))
}

/// Takes the lock when it is free.
fn as_head(asked: &Acquire, names: &Names, patience: Option<&Patience>) -> Result<Option<Acquired>, Refused> {
    loop {
        sleep::reset();
        if !patience::take(&names.row, patience) {
            return Ok(None);
        }
        let store = Store::open(RelationLock::Writes)?;
        let moment = boot::moment();
        let found = store.find(asked.lock, &moment);
        let has_waited = patience.is_some_and(Patience::has_waited);
        let due_us = match decide(asked, &store, found.as_ref(), &moment, has_waited)? {
            Decision::Granted(lease) => {
                store.write(found.as_ref(), asked.lock, Some(asked.owner), &lease, &moment);
                return Ok(Some(Acquired::Granted(lease)));
            }
            Decision::Again(lease) => {
                give_back(&names.row);
                return Ok(Some(Acquired::Again(lease)));
            }
            Decision::Busy { due_us } => due_us,
            Decision::ClientGone => u64::MAX,
        };
        // A REINDEX that waited for a sleeper would keep the holder from its release.
        store.close_unchanged();
        give_back(&names.row);
        match patience.filter(|patience| due_us < u64::MAX && !patience.is_over()) {
            Some(patience) => patience.sleep_until(due_us)?,
            None => return Ok(None),
        }
    }
}

enum Decision {
    Granted(Lease),
    Again(Lease),
    /// Until this time, as far as is known.
    Busy {
        due_us: u64,
    },
    /// The lock is free, but nobody would hold it.
    ClientGone,
}

fn decide(
    asked: &Acquire,
    store: &Store,
    found: Option<&Version<Row>>,
    moment: &Moment,
    has_waited: bool,
) -> Result<Decision, Refused> {
    // The head of the queue has nobody before it.
    const OTHERS_WAIT: bool = false;
    let hold = found.and_then(|version| version.row.hold());
    let decide = |issuer: &mut Issuer| lease::acquire(hold, OTHERS_WAIT, asked.request(), issuer, moment.now);
    let now_us = moment.now.steady_us;
    let is_free = hold.is_none_or(|hold| hold.lease.state(now_us) == State::Free);
    if is_free && has_waited && sleep::is_client_gone() {
        return Ok(Decision::ClientGone);
    }
    let answer = if is_free {
        fences::with_issuer(store, found.map(|version| version.row.fence()), moment.now.wall_us, decide)?
    } else {
        decide(&mut Issuer::default())
    };
    match answer {
        Ok(Acquired::Granted(lease)) => Ok(Decision::Granted(lease)),
        Ok(Acquired::Again(lease)) => Ok(Decision::Again(lease)),
        Err(Denied::FencesUsedUp) => Err(Refused::FencesUsedUp),
        Err(Denied::Held | Denied::Delayed | Denied::Queued | Denied::NotThatHold) => {
            Ok(Decision::Busy { due_us: hold.map_or(now_us, |hold| hold.lease.due_us(now_us)) })
        }
    }
}
