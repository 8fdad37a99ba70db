//! Leases that end when a connection closes.
//!
//! Only who is bound to what: the reaper ends the leases. Nothing of this survives the process; the lease itself does.
//! Invariant: a fence is bound to at most one connection.

use std::collections::BTreeMap;

use fence::Fence;
use fence::lock::queue::LockName;

#[derive(Default)]
pub(crate) struct Bindings {
    by_client: BTreeMap<u64, BTreeMap<Fence, Bound>>,
    clients: BTreeMap<Fence, u64>,
    /// Leases whose connection has closed.
    pub closed: Vec<Bound>,
}

/// A lease and where it was granted.
pub(crate) struct Bound {
    pub fence: Fence,
    pub db: i32,
    pub name: Box<[u8]>,
}

impl Bindings {
    /// Binds a lease to a connection, and to no other.
    pub fn bind(&mut self, fence: Fence, client: u64, lock: LockName) {
        self.unbind(fence);
        let bound = Bound { fence, db: lock.db, name: lock.name.into() };
        self.by_client.entry(client).or_default().insert(fence, bound);
        self.clients.insert(fence, client);
    }

    /// Forgets a lease that has ended.
    pub fn unbind(&mut self, fence: Fence) {
        let Some(client) = self.clients.remove(&fence) else { return };
        let Some(leases) = self.by_client.get_mut(&client) else { return };
        leases.remove(&fence);
        if leases.is_empty() {
            self.by_client.remove(&client);
        }
    }

    /// Forgets the leases of a database, or all, after a flush.
    pub fn forget(&mut self, db: Option<i32>) {
        let flushed = |bound: &Bound| db.is_none_or(|db| db == bound.db);
        let fences: Vec<Fence> = self
            .by_client
            .values()
            .flat_map(|leases| leases.values())
            .filter(|b| flushed(b))
            .map(|b| b.fence)
            .collect();
        for fence in fences {
            self.unbind(fence);
        }
    }

    /// Notes that a connection has closed; true when leases were bound to it.
    pub fn close(&mut self, client: u64) -> bool {
        let Some(leases) = self.by_client.remove(&client) else { return false };
        for bound in leases.into_values() {
            self.clients.remove(&bound.fence);
            self.closed.push(bound);
        }
        true
    }
}
