//! Which leases end when a connection closes: bonds between connections and stored leases.
//!
//! Not the leases: the caller numbers them. Binding, unbinding and closing cost the same however many leases a connection
//! has. The leases of a closed connection are returned one by one.
//! Invariant: a lease is bound to one connection at most. A bond ends when the caller ends it, and not before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The connections, and the leases of each.
#[derive(Default)]
pub struct Bonds {
    bonds: BTreeMap<u32, Bond>,
    /// The first lease of each connection.
    first: BTreeMap<u64, u32>,
    /// Connections that have closed while leases were bound to them.
    closed: VecDeque<u64>,
    /// Leases of closed connections whose end is postponed.
    put_off: BTreeSet<u32>,
}

#[derive(Clone, Copy)]
struct Bond {
    client: u64,
    db: i32,
    prev: Option<u32>,
    next: Option<u32>,
}

impl Bonds {
    /// Binds a lease, granted in database `db`, to a connection and to no other.
    pub fn bind(&mut self, lease: u32, client: u64, db: i32) {
        self.unbind(lease);
        let next = self.first.insert(client, lease);
        if let Some(next) = next.and_then(|next| self.bonds.get_mut(&next)) {
            next.prev = Some(lease);
        }
        self.bonds.insert(lease, Bond { client, db, prev: None, next });
    }

    /// Ends the bond of a lease.
    pub fn unbind(&mut self, lease: u32) {
        if let Some(bond) = self.bonds.remove(&lease) {
            self.put_off.remove(&lease);
            self.unlink(lease, bond);
        }
    }

    /// Notes that a connection has closed; true when leases were bound to it.
    pub fn close(&mut self, client: u64) -> bool {
        let is_bound = self.first.contains_key(&client);
        if is_bound {
            self.closed.push_back(client);
        }
        is_bound
    }

    /// A lease whose connection has closed, and the database in which it was granted. The caller unbinds it or postpones its
    /// end.
    pub fn next_closed(&mut self) -> Option<(u32, i32)> {
        loop {
            let lease = self.first.get(self.closed.front()?);
            if let Some((&lease, bond)) = lease.and_then(|lease| Some((lease, self.bonds.get(lease)?))) {
                return Some((lease, bond.db));
            }
            self.closed.pop_front();
        }
    }

    /// Postpones the end of a lease, behind those of other leases.
    pub fn put_off(&mut self, lease: u32) {
        let Some(bond) = self.bonds.get_mut(&lease) else { return };
        let before = *bond;
        *bond = Bond { prev: None, next: None, ..before };
        self.unlink(lease, before);
        self.put_off.insert(lease);
    }

    /// Whether the end of any lease is postponed.
    pub fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    /// The first lease from number `from` on whose end is postponed, and its database.
    pub fn next_put_off(&self, from: u32) -> Option<(u32, i32)> {
        let &lease = self.put_off.range(from..).next()?;
        self.bonds.get(&lease).map(|bond| (lease, bond.db))
    }

    /// From now on no connection ends a lease that it has now. The bonds go one by one, as the leases are unbound.
    pub fn dissolve(&mut self) {
        self.first.clear();
        self.closed.clear();
        self.put_off.clear();
    }

    /// Closes the gap that a bond leaves in the list of its connection.
    fn unlink(&mut self, lease: u32, bond: Bond) {
        if let Some(next) = bond.next.and_then(|next| self.bonds.get_mut(&next)) {
            next.prev = bond.prev;
        }
        if let Some(prev) = bond.prev.and_then(|prev| self.bonds.get_mut(&prev)) {
            prev.next = bond.next;
        }
        if self.first.get(&bond.client) != Some(&lease) {
            return;
        }
        match bond.next {
            Some(next) => self.first.insert(bond.client, next),
            None => self.first.remove(&bond.client),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unbinds all leases of closed connections and returns them.
    fn ended(bonds: &mut Bonds) -> Vec<u32> {
        let mut ended = Vec::new();
        while let Some((lease, _)) = bonds.next_closed() {
            bonds.unbind(lease);
            ended.push(lease);
        }
        ended.sort_unstable();
        ended
    }

    #[test]
    fn the_leases_of_a_closed_connection_are_returned_and_no_others() {
        let mut bonds = Bonds::default();
        for lease in 0..6 {
            bonds.bind(lease, u64::from(lease % 2), 7);
        }
        bonds.unbind(2);
        assert!(bonds.close(0) && !bonds.close(5));
        assert_eq!(bonds.next_closed().map(|(_, db)| db), Some(7));
        assert_eq!(ended(&mut bonds), [0, 4]);
        assert!(!bonds.close(0) && bonds.close(1));
        assert_eq!(ended(&mut bonds), [1, 3, 5]);
        assert!(bonds.bonds.is_empty() && bonds.first.is_empty() && bonds.closed.is_empty());
    }

    #[test]
    fn a_lease_that_was_bound_anew_does_not_end_with_its_former_connection() {
        let mut bonds = Bonds::default();
        for lease in 0..3 {
            bonds.bind(lease, 1, 0);
        }
        assert!(bonds.close(1));
        bonds.bind(1, 2, 0);
        assert_eq!(ended(&mut bonds), [0, 2]);
        assert!(bonds.close(2));
        assert_eq!(ended(&mut bonds), [1]);
    }

    #[test]
    fn a_postponed_end_delays_no_other_and_is_not_forgotten() {
        let mut bonds = Bonds::default();
        for lease in 0..4 {
            bonds.bind(lease, 1, 0);
        }
        bonds.close(1);
        for _ in 0..4 {
            let (lease, _) = bonds.next_closed().unwrap();
            if lease % 2 == 0 { bonds.put_off(lease) } else { bonds.unbind(lease) }
        }
        assert!(bonds.next_closed().is_none() && bonds.has_put_off());
        assert_eq!(
            (bonds.next_put_off(0), bonds.next_put_off(1), bonds.next_put_off(3)),
            (Some((0, 0)), Some((2, 0)), None)
        );
        bonds.unbind(0);
        bonds.bind(2, 5, 0);
        assert!(!bonds.has_put_off() && bonds.close(5));
        assert_eq!(ended(&mut bonds), [2]);
    }

    #[test]
    fn a_postponed_end_leaves_the_list_of_its_connection() {
        for (former_neighbor, other) in [(1, 3), (3, 1)] {
            let mut bonds = Bonds::default();
            for lease in 0..5 {
                bonds.bind(lease, 1, 0);
            }
            bonds.put_off(2);
            for lease in [former_neighbor, 2, other] {
                bonds.unbind(lease);
            }
            assert!(bonds.close(1));
            assert_eq!(ended(&mut bonds), [0, 4]);
        }
    }

    #[test]
    fn after_a_dissolution_no_connection_ends_a_lease_that_it_had() {
        let mut bonds = Bonds::default();
        for lease in 0..4 {
            bonds.bind(lease, 1, 0);
        }
        bonds.close(1);
        bonds.dissolve();
        assert_eq!(bonds.next_closed(), None);
        bonds.bind(9, 1, 0);
        bonds.unbind(3);
        bonds.bind(2, 1, 0);
        bonds.unbind(0);
        assert!(bonds.close(1));
        assert_eq!(ended(&mut bonds), [2, 9]);
        bonds.unbind(1);
        assert!(bonds.bonds.is_empty() && bonds.first.is_empty());
    }
}
