//! One lock in the keyspace: what is stored under a key, and the writes that grant, extend and remove it.
//!
//! Not the rule: `fence::lock::lease` decides, this carries out. Each write goes to the value, the index, the watchers and the
//! replicas, here and nowhere else.
//! Invariant: what is refused writes nothing and signals nothing.

use std::ffi::CStr;

use fence::Fence;
use fence::lock::codec::{self, Clocks, ENCODED_MAX, Notes, Record, Route};
use fence::lock::ending::Ending;
use fence::lock::lease::{Hold, Lease, State};
use fence::lock::queue::LockName;
use redis_module::raw;

use crate::counters::Count;
use crate::ffi::{Content, Ctx, Key, Name, NotPropagated};
use crate::lock::value::Value;
use crate::queue::handover;
use crate::replication::{self, APPLY, END};
use crate::server::{Arrival, server};
use crate::timer::reaper;

/// The key holds another type.
pub(crate) struct WrongType;

/// What a client is told then.
pub(crate) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// What a client is told of a lock whose fence no server can have let in.
pub(crate) const AHEAD_OF_ALL: &str = "ERR the stored fence of this lock is more than a day ahead of the clock: it was restored on a replica; DEL the key";

/// An open key that holds a lock or nothing.
pub(crate) struct Slot {
    ctx: Ctx,
    name: Name,
    lock: LockName<'static>,
    key: Key,
    value: Option<Value>,
    told: Told,
    /// The context is that of a command.
    in_command: bool,
}

/// Events to be told once the key is closed: another module may answer one by changing the key.
#[derive(Default)]
struct Told {
    events: [Option<Event>; 3],
    count: u8,
}

/// What happened to a lock.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    Granted,
    Released,
    RanOut,
}

impl Event {
    fn name(self) -> &'static CStr {
        match self {
            Event::Granted => c"fencelock.granted",
            Event::Released => c"fencelock.released",
            Event::RanOut => c"fencelock.ranout",
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.key.close();
        for event in self.told.events.iter().flatten() {
            self.ctx.notify(event.name(), self.name);
        }
    }
}

impl Slot {
    pub fn open(ctx: Ctx, name: Name) -> Result<Slot, WrongType> {
        Slot::open_as(ctx, name, false)
    }

    /// The same in the context of a command.
    pub fn open_in_command(ctx: Ctx, name: Name) -> Result<Slot, WrongType> {
        Slot::open_as(ctx, name, true)
    }

    #[inline(always)]
    fn open_as(ctx: Ctx, name: Name, in_command: bool) -> Result<Slot, WrongType> {
        let key = ctx.open(name);
        let value = match key.content() {
            Content::Other => return Err(WrongType),
            Content::Nothing => None,
            Content::Lock(value) => Some(value),
        };
        Ok(Slot::around(ctx, name, key, value, in_command))
    }

    fn around(ctx: Ctx, name: Name, key: Key, value: Option<Value>, in_command: bool) -> Slot {
        let lock = LockName { db: ctx.selected_db(), name: name.bytes() };
        Slot { ctx, name, lock, key, value, told: Told::default(), in_command }
    }

    /// The lock under a key, for reading.
    pub fn look(ctx: Ctx, name: Name) -> Result<Option<Value>, WrongType> {
        match ctx.open_for_reading(name).map(|key| key.content()) {
            Some(Content::Other) => Err(WrongType),
            Some(Content::Lock(value)) => Ok(Some(value)),
            Some(Content::Nothing) | None => Ok(None),
        }
    }

    pub fn lease(&self) -> Option<Lease> {
        self.value.map(|value| value.lease())
    }

    pub fn hold(&self) -> Option<Hold<'_>> {
        self.value.as_ref().map(Value::hold)
    }

    /// Takes note of the fence that is there, before it is changed. False when no server can have let it in.
    #[inline(always)]
    pub fn observe_stored(&self) -> bool {
        let Some(value) = self.value else { return true };
        let (server, fence) = (server(), value.fence());
        if fence.get() <= server.issuer().last() {
            return true;
        }
        let mut issuer = server.issuer();
        let accepted = issuer.observe_stored(fence, server.now(server.clocks()).wall_us);
        server.set_issuer(issuer);
        accepted
    }

    pub fn holds(&self, value: Value) -> bool {
        self.value == Some(value)
    }

    /// Stores a new hold.
    pub fn grant(&mut self, hold: &Hold, clocks: Clocks) -> Result<(), NotPropagated> {
        let ended = self.lease().map(|lease| lease.ending(clocks.steady_us));
        self.propagate(hold, clocks, Notes { ended, ..Notes::default() })?;
        self.note_end(clocks.steady_us);
        let had_value = self.value.is_some();
        self.store(server().add(hold, self.arrival()));
        if had_value {
            self.key.clear_expire();
        }
        self.ctx.signal_modified(self.name);
        server().stats.count_for(self.lock(), Count::Grants);
        self.tell(Event::Granted);
        Ok(())
    }

    /// Has the lease that is there end with a connection, if it was asked for.
    pub fn bind_if_ephemeral(&self, client: u64) {
        if let Some(value) = self.value.filter(Value::is_ephemeral) {
            server().index.borrow_mut().bind(value, client, self.lock.db);
        }
    }

    /// Stores the hold that is there with another deadline.
    pub fn set_deadline(&self, lease: Lease, clocks: Clocks) -> Result<(), NotPropagated> {
        let Some(value) = self.value else { return Ok(()) };
        self.propagate(&Hold { lease, owner: value.owner() }, clocks, Notes::default())?;
        server().index.borrow_mut().set_deadline(value, lease.deadline_us);
        reaper::arm(lease.deadline_us);
        handover::look_again(self, self.lock(), clocks.steady_us);
        self.key.clear_expire();
        self.ctx.signal_modified(self.name);
        Ok(())
    }

    /// Removes the hold that is there.
    pub fn remove(&mut self, now_us: u64) -> Result<(), NotPropagated> {
        let Some(value) = self.value else { return Ok(()) };
        let lease = value.lease();
        if self.must_tell() {
            let word = lease.ending(now_us).word();
            self.ctx.replicate_end(END, self.name, lease.fence.get(), word)?;
        }
        self.note_end(now_us);
        // The next grant is above it.
        self.observe_stored();
        self.value = None;
        server().index.borrow_mut().remove(value);
        self.key.delete();
        self.ctx.signal_modified(self.name);
        Ok(())
    }

    /// Stores what the primary or the append-only file sends, whatever was there.
    ///
    /// The append-only file of a replica gets the replica's own record, by its own wall clock: that is the clock by which it
    /// will be read. Replicas of a replica get the primary's stream as it is. A primary, to which a slot moves, sends its own
    /// record too: its replicas follow its clock, and not that of the other primary.
    pub fn apply(ctx: Ctx, name: Name, record: &Record, route: Route) {
        let key = ctx.open(name);
        let value = match key.content() {
            Content::Lock(value) => Some(value),
            Content::Nothing | Content::Other => None,
        };
        let mut slot = Slot::around(ctx, name, key, value, false);
        slot.store(server().apply(record, route, slot.arrival()));
        if value.is_some() && !record.notes.keeps_expire {
            slot.key.clear_expire();
        }
        ctx.signal_modified(name);
        let keeps_file = || ctx.flags() & raw::REDISMODULE_CTX_FLAGS_AOF != 0;
        let sends_own = route == Route::Stream && (server().is_primary.get() || keeps_file());
        // What is not propagated has been logged.
        if !sends_own || slot.propagate_hold(server().exact_clocks(), record.notes).is_err() {
            ctx.replicate_verbatim();
        }
    }

    /// Removes the hold that has ended as the primary or the append-only file says; a later one stays.
    pub fn end(ctx: Ctx, name: Name, fence: Fence, _reason: Ending) {
        let key = ctx.open(name);
        let Content::Lock(value) = key.content() else { return };
        if value.lease().fence == fence {
            server().index.borrow_mut().remove(value);
            key.delete();
            ctx.signal_modified(name);
        }
    }

    /// Files the lock under the name that its key has now.
    pub fn refile_if_moved(&mut self) {
        if let Some(value) = self.value.filter(|&value| !server().index.borrow().knows(value, self.lock())) {
            let refiled = server().add(&value.hold(), self.arrival());
            if value.has_run_out() {
                refiled.note_run_out();
            }
            self.store(refiled);
        }
    }

    /// Has an event told once the key is closed.
    pub fn tell(&mut self, event: Event) {
        if let Some(place) = self.told.events.get_mut(usize::from(self.told.count)) {
            *place = Some(event);
            self.told.count += 1;
        }
    }

    /// What was to be told has not happened.
    pub fn tell_nothing(&mut self) {
        self.told = Told::default();
    }

    /// The first time after a lease has run out: counts and tells it.
    pub fn note_run_out(&mut self, now_us: u64) {
        let Some(value) = self.value.filter(|value| !value.lease().is_live(now_us)) else { return };
        if !value.note_run_out() {
            return;
        }
        let lease = value.lease();
        let stats = &server().stats;
        stats.count_for(self.lock(), Count::RanOut);
        server().lost_holds.borrow_mut().note(self.lock(), value.owner(), lease.fence);
        if lease.is_at_limit() {
            stats.count(Count::MaxholdEnds);
        }
        if lease.state(now_us) == State::Delay {
            // The entry stays, but to those who read it the hold is gone.
            self.ctx.signal_modified(self.name);
            // A replica that is not told keeps a cached answer for longer: the log says so.
            let _ = self.send_again(server().clocks());
        }
        self.tell(Event::RanOut);
    }

    /// The lock that this is.
    pub fn lock(&self) -> LockName<'static> {
        self.lock
    }

    /// What is to be told of a hold before it is replaced or removed.
    fn note_end(&mut self, now_us: u64) {
        let Some(value) = self.value else { return };
        let lease = value.lease();
        self.note_run_out(now_us);
        server().stats.held(self.lock(), lease.held_us(now_us));
    }

    fn arrival(&self) -> Arrival<'static> {
        Arrival { db: self.lock.db, key: self.lock.name }
    }

    /// Sends the hold that is there to the replicas once more, with the time that is left now. Nothing else changes.
    pub fn send_again(&self, clocks: Clocks) -> Result<(), NotPropagated> {
        self.propagate_hold(clocks, Notes { keeps_expire: true, ..Notes::default() })
    }

    fn propagate_hold(&self, clocks: Clocks, notes: Notes) -> Result<(), NotPropagated> {
        self.hold().map_or(Ok(()), |hold| self.propagate(&hold, clocks, notes))
    }

    /// Puts a value under the key, in place of the lock that is there.
    fn store(&mut self, value: Value) {
        let Some(old) = self.value.replace(value) else { return self.key.set(value) };
        self.key.replace(value);
        server().index.borrow_mut().remove(old);
        old.leave_keyspace();
    }

    /// Whether the caller is to tell what it wrote. If not, this has counted it for the next snapshot.
    fn must_tell(&self) -> bool {
        let is_heard = server().is_heard.get() || !self.in_command;
        if !is_heard {
            self.ctx.replicate_verbatim();
        }
        is_heard
    }

    /// Comes before the write itself, which is not made if this fails.
    fn propagate(&self, hold: &Hold, clocks: Clocks, notes: Notes) -> Result<(), NotPropagated> {
        if !self.must_tell() {
            return Ok(());
        }
        if server().clock_is_new.get() && server().is_primary.get() {
            replication::send_clock(self.ctx);
        }
        let mut buffer = [0; ENCODED_MAX];
        self.ctx.replicate_blob(APPLY, self.name, codec::encode(hold, server().stamp(clocks), notes, &mut buffer))
    }
}
