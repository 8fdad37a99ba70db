//! One lock in the keyspace: what is stored under a key, and the writes that grant, extend and end it.
//!
//! Not the rule: `fence::lock::lease` decides, this carries out. No other file writes a hold: each write goes to the
//! value, the index, the watchers and the replicas. Invariant: what is refused writes nothing and signals nothing.

use std::ffi::CStr;

use fence::lock::codec::{Clocks, Notes, Record, Route};
use fence::lock::ending::Ending;
use fence::lock::lease::{Hold, Lease, State};
use fence::lock::queue::LockName;
use fence::{Fence, Issuer};
use redis_module::raw;

use crate::counters::{self, Count};
use crate::ffi::{Ctx, Key, NotPropagated, Str};
use crate::lock::arrival;
use crate::lock::index::{self, index};
use crate::lock::value::{Stored, Value};
use crate::queue::{awaiters, waiters};
use crate::replication::{self, Cause};
use crate::timer::alarm;
use crate::{clock, server};

/// The key holds another type.
pub(crate) struct WrongType;

/// The error reply then.
pub(crate) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The error reply for a lock whose fence no server can have accepted.
pub(crate) const AHEAD_OF_ALL: &str = "ERR the stored fence of this lock is too far ahead of the clock: it was restored on a replica or into a slot on its way; DEL the key";

/// An open key that holds a lock or nothing.
pub(crate) struct Slot<'a> {
    ctx: Ctx<'a>,
    name: Str<'a>,
    lock: LockName<'a>,
    key: Key,
    value: Option<Value>,
    pending: PendingEvents,
    cause: Cause,
}

/// Events to be published once the key is closed: another module may answer one by changing the key.
#[derive(Default)]
struct PendingEvents {
    events: [Option<LockEvent>; 3],
    count: u8,
}

/// What happened to a lock.
#[derive(Clone, Copy)]
pub(crate) enum LockEvent {
    Granted,
    Released,
    RanOut,
    Stolen,
}

impl LockEvent {
    fn name(self) -> &'static CStr {
        match self {
            LockEvent::Granted => c"fencelock.granted",
            LockEvent::Released => c"fencelock.released",
            LockEvent::RanOut => c"fencelock.ranout",
            LockEvent::Stolen => c"fencelock.stolen",
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.key.close();
        if self.pending.count > 0 {
            for event in self.pending.events.iter().flatten() {
                self.ctx.notify(event.name(), self.name);
            }
        }
    }
}

/// The lock under a key, for reading.
pub(crate) fn read(ctx: Ctx, name: Str) -> Result<Option<Value>, WrongType> {
    match ctx.open_for_reading(name).map(|key| Value::in_key(&key)) {
        Some(Stored::Other) => Err(WrongType),
        Some(Stored::Lock(value)) => Ok(Some(value)),
        Some(Stored::Nothing) | None => Ok(None),
    }
}

/// Stores a hold that the primary or the append-only file sends, over anything that is there.
///
/// The append-only file of a replica gets the replica's own record, by its own wall clock: that is the clock by which
/// it will be read. Replicas of a replica get the primary's stream as it is. A primary, to which a slot moves, sends
/// its own record too: its replicas follow its clock, and not that of the other primary.
pub(crate) fn apply(ctx: Ctx, name: Str, record: &Record, route: Route) {
    let key = ctx.open(name);
    let value = match Value::in_key(&key) {
        Stored::Lock(value) => Some(value),
        Stored::Nothing | Stored::Other => None,
    };
    let replaces_lock = value.is_some();
    let mut slot = Slot::around(ctx, name, key, value, Cause::Other);
    slot.report_replaced(record);
    slot.store(arrival::apply(record, route, slot.lock));
    awaiters::arrive(slot.lock, record.fence());
    awaiters::end_passed();
    if replaces_lock && !record.notes.keeps_expire {
        slot.key.clear_expire();
    }
    ctx.signal_modified(name);
    let keeps_file = || ctx.flags() & raw::REDISMODULE_CTX_FLAGS_AOF != 0;
    let sends_own = route == Route::Stream && (server::is_primary() || keeps_file());
    // What is not propagated has been logged.
    if !sends_own || slot.propagate_noted(clock::exact_clocks(), record.notes).is_err() {
        ctx.replicate_verbatim();
    }
}

/// Removes a hold that has ended, as the primary or the append-only file says. A later hold stays, as does another
/// type.
pub(crate) fn apply_end(ctx: Ctx, name: Str, fence: Fence, ending: Ending) {
    let Ok(mut slot) = Slot::open(ctx, name, Cause::Other) else { return };
    if slot.value.as_ref().is_some_and(|value| value.fence() == fence) {
        awaiters::end(slot.lock, fence, ending);
        slot.delete();
    }
}

impl<'a> Slot<'a> {
    #[inline(always)]
    pub(crate) fn open(ctx: Ctx<'a>, name: Str<'a>, cause: Cause) -> Result<Slot<'a>, WrongType> {
        let key = ctx.open(name);
        let value = match Value::in_key(&key) {
            Stored::Other => return Err(WrongType),
            Stored::Nothing => None,
            Stored::Lock(value) => Some(value),
        };
        Ok(Slot::around(ctx, name, key, value, cause))
    }

    fn around(ctx: Ctx<'a>, name: Str<'a>, key: Key, value: Option<Value>, cause: Cause) -> Slot<'a> {
        let lock = LockName { db: ctx.selected_db(), name: name.bytes() };
        Slot { ctx, name, lock, key, value, pending: PendingEvents::default(), cause }
    }

    /// The database and the name of the lock.
    pub(crate) fn lock(&self) -> LockName<'a> {
        self.lock
    }

    pub(crate) fn lease(&self) -> Option<Lease> {
        self.value.as_ref().map(Value::lease)
    }

    pub(crate) fn hold(&self) -> Option<Hold<'_>> {
        self.value.as_ref().map(Value::hold)
    }

    pub(crate) fn holds(&self, value: &Value) -> bool {
        self.value.as_ref() == Some(value)
    }

    /// Raises the issuer to the stored fence, before that is replaced. False when no server can have accepted the
    /// fence.
    #[inline(always)]
    pub(crate) fn observe_stored(&self) -> bool {
        self.value.as_ref().is_none_or(|value| server::observe_stored(value.fence()))
    }

    /// Grants the lock to `hold`, whose fence `issuer` has just issued, for the connection `client`.
    pub(crate) fn grant(
        &mut self,
        hold: &Hold,
        issuer: Issuer,
        client: u64,
        clocks: Clocks,
    ) -> Result<(), NotPropagated> {
        let ended = self.lease().map(|lease| lease.ending(clocks.steady_us));
        self.store_grant(hold, issuer, client, clocks, ended)
    }

    /// Grants the lock to `hold` in place of the one that is there.
    pub(crate) fn steal(
        &mut self,
        hold: &Hold,
        issuer: Issuer,
        client: u64,
        clocks: Clocks,
    ) -> Result<(), NotPropagated> {
        let ended = self.lease().map(|lease| lease.ending_by_steal(clocks.steady_us));
        let victim = self.value.as_ref().filter(|_| ended == Some(Ending::Stolen));
        let victim = victim.map(|value| (value.owner().to_vec(), value.fence()));
        self.store_grant(hold, issuer, client, clocks, ended)?;
        if let Some((owner, fence)) = victim {
            counters::count_stolen(self.lock, &owner, fence);
        }
        Ok(())
    }

    /// The one place where a primary stores a hold.
    fn store_grant(
        &mut self,
        hold: &Hold,
        issuer: Issuer,
        client: u64,
        clocks: Clocks,
        ended: Option<Ending>,
    ) -> Result<(), NotPropagated> {
        self.propagate(hold, clocks, Notes { ended, ..Notes::default() })?;
        server::set_issuer(issuer);
        self.note_end(clocks.steady_us);
        if let (Some(before), Some(ending)) = (&self.value, ended) {
            awaiters::end(self.lock, before.fence(), ending);
        }
        if ended == Some(Ending::Stolen) {
            self.notify(LockEvent::Stolen);
        }
        let had_value = self.value.is_some();
        self.store(arrival::add(hold, self.lock));
        if had_value {
            self.key.clear_expire();
        }
        self.bind_if_ephemeral(client);
        self.ctx.signal_modified(self.name);
        counters::count_for(self.lock, Count::Grants);
        self.notify(LockEvent::Granted);
        Ok(())
    }

    /// Binds an ephemeral lease to a connection.
    pub(crate) fn bind_if_ephemeral(&self, client: u64) {
        if let Some(value) = self.value.as_ref().filter(|value| value.is_ephemeral()) {
            index().borrow_mut().bind(value, client, self.lock.db);
        }
    }

    /// Stores the lease of a hold that somebody took the lock from: it has ended, and its delay has begun.
    pub(crate) fn end_in_delay(&mut self, lease: Lease, clocks: Clocks) -> Result<(), NotPropagated> {
        self.store_deadline(lease, clocks, Notes { ended: Some(Ending::Stolen), ..Notes::default() })?;
        let Some(value) = &self.value else { return Ok(()) };
        // It did not expire.
        value.mark_expired();
        index().borrow_mut().unbind(value);
        counters::count_stolen(self.lock, value.owner(), lease.fence);
        awaiters::end(self.lock, lease.fence, Ending::Stolen);
        self.notify(LockEvent::Stolen);
        Ok(())
    }

    /// Changes the deadline of the stored hold.
    pub(crate) fn set_deadline(&self, lease: Lease, clocks: Clocks) -> Result<(), NotPropagated> {
        self.store_deadline(lease, clocks, Notes::default())
    }

    fn store_deadline(&self, lease: Lease, clocks: Clocks, notes: Notes) -> Result<(), NotPropagated> {
        let Some(value) = &self.value else { return Ok(()) };
        self.propagate_stored(&Hold { lease, owner: value.owner() }, clocks, notes)?;
        index().borrow_mut().set_deadline(value, lease.deadline_us);
        alarm::arm(lease.deadline_us);
        waiters::recheck_when_free(self.lock, Some(lease), clocks.steady_us);
        awaiters::recheck_at_end(self.lock, &lease);
        self.key.clear_expire();
        self.ctx.signal_modified(self.name);
        Ok(())
    }

    /// Ends the stored hold: the one place where a primary removes one.
    pub(crate) fn end(&mut self, now_us: u64) -> Result<(), NotPropagated> {
        let Some(lease) = self.lease() else { return Ok(()) };
        let ending = lease.ending(now_us);
        replication::propagate_end(self.ctx, self.cause, self.name, lease.fence, ending)?;
        self.note_end(now_us);
        awaiters::end(self.lock, lease.fence, ending);
        // The next grant is above it.
        self.observe_stored();
        self.delete();
        Ok(())
    }

    /// Files the lock under the name that its key has now.
    pub(crate) fn refile_if_moved(&mut self) {
        if let Some(value) = self.value.as_ref().filter(|value| !index().borrow().knows(value, self.lock)) {
            let refiled = arrival::add(&value.hold(), self.lock);
            if value.is_marked_expired() {
                refiled.mark_expired();
            }
            if value.is_marked_over() {
                refiled.mark_over();
            }
            self.store(refiled);
        }
    }

    /// Publishes an event once the key is closed.
    pub(crate) fn notify(&mut self, event: LockEvent) {
        if let Some(cell) = self.pending.events.get_mut(usize::from(self.pending.count)) {
            *cell = Some(event);
            self.pending.count += 1;
        }
    }

    /// Drops the pending events: the write was refused.
    pub(crate) fn forget_events(&mut self) {
        self.pending = PendingEvents::default();
    }

    /// Counts and publishes, once, that the lease has expired.
    pub(crate) fn note_expired(&mut self, now_us: u64) {
        let Some(value) = self.value.as_ref().filter(|value| !value.lease().is_live(now_us)) else { return };
        if !value.mark_expired() {
            return;
        }
        let lease = value.lease();
        awaiters::end(self.lock, lease.fence, lease.ending(now_us));
        if value.is_marked_over() && lease.delay_us != 0 {
            // Its end was counted and published by the server that wrote it so.
            return counters::note_lost(self.lock, value.owner(), lease.fence);
        }
        counters::count_expired(self.lock, value.owner(), lease.fence);
        if lease.is_at_limit() {
            counters::count(Count::MaxholdEnds);
        }
        if lease.state(now_us) == State::Delay {
            // The key stays during the delay, but readers see no hold any more.
            self.ctx.signal_modified(self.name);
            // If this fails, which is logged, a replica that is read keeps a cached answer for longer.
            let notes = Notes { ended: Some(lease.ending(now_us)), keeps_expire: true, ..Notes::default() };
            let _ = self.propagate_noted(clock::clocks(), notes);
        }
        self.notify(LockEvent::RanOut);
    }

    /// Propagates the stored hold once more, with the time that is left now.
    pub(crate) fn propagate_again(&self, clocks: Clocks) -> Result<(), NotPropagated> {
        self.propagate_noted(clocks, Notes { keeps_expire: true, ..Notes::default() })
    }

    fn propagate_noted(&self, clocks: Clocks, notes: Notes) -> Result<(), NotPropagated> {
        self.hold().map_or(Ok(()), |hold| self.propagate_stored(&hold, clocks, notes))
    }

    /// Propagates a hold that is not new.
    fn propagate_stored(&self, hold: &Hold, clocks: Clocks, notes: Notes) -> Result<(), NotPropagated> {
        self.propagate(hold, clocks, Notes { unjudged: server::is_unjudged(hold.lease.fence), ..notes })
    }

    fn propagate(&self, hold: &Hold, clocks: Clocks, notes: Notes) -> Result<(), NotPropagated> {
        replication::propagate_hold(self.ctx, self.cause, self.name, hold, clocks, notes)
    }

    /// Reports the end of the hold that a record ends or replaces.
    fn report_replaced(&self, record: &Record) {
        let Some(before) = self.value.as_ref().filter(|before| awaiters::awaits(before.fence())) else { return };
        if before.fence() != record.fence() {
            awaiters::end(self.lock, before.fence(), record.notes.ended.unwrap_or(Ending::Unknown));
        } else if record.has_ended() {
            let now_us = clock::steady_us();
            let by_time = record.lease_written_at(now_us).ending(now_us);
            awaiters::end(self.lock, before.fence(), record.notes.ended.unwrap_or(by_time));
        }
    }

    /// Counts the end of the hold that is about to be replaced or removed.
    fn note_end(&mut self, now_us: u64) {
        let Some(lease) = self.lease() else { return };
        self.note_expired(now_us);
        counters::held(self.lock, lease.held_us(now_us));
    }

    /// Stores a value under the key, over the lock that is there.
    fn store(&mut self, value: Value) {
        let old = self.value.take();
        let new = self.value.insert(value);
        let Some(old) = old else { return new.store(&self.key) };
        new.store_over_lock(&self.key);
        index().borrow_mut().remove(&old);
        index::free(old);
    }

    /// Deletes the key with the lock that is there.
    fn delete(&mut self) {
        if let Some(value) = self.value.take() {
            index().borrow_mut().remove(&value);
        }
        self.key.delete();
        self.ctx.signal_modified(self.name);
    }
}
