//! One lock in the keyspace: what is stored under a key, and the writes that grant, extend and remove it.
//!
//! Not the rule: `fence::lease` decides, this carries out. Each write goes to the value, the index, the watchers and the
//! replicas, here and nowhere else.
//! Invariant: what is refused writes nothing and signals nothing.

use fence::codec::{self, Clocks, ENCODED_MAX, Record, Route};
use fence::lease::{Hold, Lease};

use crate::ffi::{Content, Ctx, Key, Name};
use crate::reaper;
use crate::server::{Arrival, server};
use crate::value::{APPLY, Value};

/// The key holds another type.
pub(crate) struct WrongType;

/// An open key that holds a lock or nothing.
pub(crate) struct Slot {
    ctx: Ctx,
    name: Name,
    key: Key,
    value: Option<Value>,
}

impl Slot {
    pub fn open(ctx: Ctx, name: Name) -> Result<Slot, WrongType> {
        let key = ctx.open(name);
        match key.content() {
            Content::Other => Err(WrongType),
            Content::Nothing => Ok(Slot { ctx, name, key, value: None }),
            Content::Lock(value) => Ok(Slot { ctx, name, key, value: Some(value) }),
        }
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

    pub fn holds(&self, value: Value) -> bool {
        self.value == Some(value)
    }

    /// Stores a new hold.
    pub fn grant(&self, hold: &Hold, clocks: Clocks) {
        self.store(server().add(hold, self.arrival()));
        self.clear_expire();
        self.written(hold, clocks);
    }

    /// Stores an extended lease of the hold that is there.
    pub fn extend(&self, lease: Lease, clocks: Clocks) {
        let Some(value) = self.value else { return };
        value.set_deadline(lease.deadline_us);
        server().index.borrow_mut().reschedule(value);
        reaper::arm(lease.free_us());
        self.clear_expire();
        self.written(&value.hold(), clocks);
    }

    /// Removes the hold that is there.
    pub fn remove(&self) {
        let Some(value) = self.value else { return };
        server().index.borrow_mut().remove(value);
        self.key.delete();
        self.ctx.signal_modified(self.name);
        self.ctx.replicate_del(self.name);
    }

    /// Stores what the primary or the append-only file sends, whatever was there.
    pub fn apply(ctx: Ctx, name: Name, record: &Record, route: Route) {
        let key = ctx.open(name);
        let value = match key.content() {
            Content::Lock(value) => Some(value),
            Content::Nothing | Content::Other => None,
        };
        let slot = Slot { ctx, name, key, value };
        slot.store(server().apply(record, route, slot.arrival()));
        slot.clear_expire();
        ctx.signal_modified(name);
    }

    /// Files the lock under the name that its key has now.
    pub fn refile(&self) {
        if let Some(hold) = self.hold() {
            self.store(server().add(&hold, self.arrival()));
        }
    }

    fn arrival(&self) -> Arrival<'static> {
        Arrival { db: self.ctx.selected_db(), key: self.name.bytes() }
    }

    /// Takes a time to live away that somebody has set on the lock that was there.
    fn clear_expire(&self) {
        if self.value.is_some() {
            self.key.clear_expire();
        }
    }

    /// Puts a value under the key, in place of the lock that is there.
    fn store(&self, value: Value) {
        let Some(old) = self.value else { return self.key.set(value) };
        self.key.replace(value);
        server().index.borrow_mut().remove(old);
        old.leave_keyspace();
    }

    fn written(&self, hold: &Hold, clocks: Clocks) {
        self.ctx.signal_modified(self.name);
        let mut buffer = [0; ENCODED_MAX];
        self.ctx.replicate_blob(APPLY, self.name, codec::encode(hold, clocks, &mut buffer));
    }
}
