//! A prepared statement of a table, what sets it apart from others, and its memory.
//!
//! Not how it is made and run (`plans`).

use crate::server::spi::Prepared;
use crate::table::verb::{Answer, Source, Verb};
use pgrx::pg_sys::Oid;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What a statement does, what it answers, the number of its fence column, that of the column of its owner, with whether an
/// owner is a parameter, and where its values are.
pub(crate) type Head = (Verb, Answer, i16, Option<(i16, bool)>, Source);

/// The plans of a table's statements.
#[derive(Default)]
pub(crate) struct Plans(pub(crate) RefCell<Vec<Rc<Plan>>>);

/// A prepared statement.
pub(crate) struct Plan {
    pub(crate) prepared: Prepared,
    /// The types of its parameters.
    pub(crate) types: Vec<Oid>,
    /// The types of its key's values.
    pub(crate) key_types: Vec<Oid>,
    /// What sets its statement apart from others on the table, with those types and the columns of the patch.
    pub(crate) head: Head,
    pub(crate) columns: Vec<i16>,
    /// When it was used last, by the clock of `tables`.
    pub(crate) used: Cell<u64>,
    /// What the server has planned with the bytes below: it plans anew when something changes.
    pub(crate) generation: Cell<i32>,
    pub(crate) bytes: Cell<usize>,
}

/// What a kept plan takes beside its source: the server's entry for it and ours.
const KEPT_BYTES: usize = 2_048;

impl Plans {
    /// The memory that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.0.borrow().iter().map(|plan| plan.bytes.get()).sum()
    }

    /// When each was used last.
    pub(crate) fn uses(&self) -> Vec<u64> {
        self.0.borrow().iter().map(|plan| plan.used.get()).collect()
    }

    /// Drops those that were used last at this time. One that runs stays until it is done. Answers what they took.
    pub(crate) fn drop_used_at(&self, used: u64) -> usize {
        let mut plans = self.0.borrow_mut();
        let dropped = plans.iter().filter(|plan| plan.used.get() == used).map(|plan| plan.bytes.get()).sum();
        plans.retain(|plan| plan.used.get() != used);
        dropped
    }
}

impl Plan {
    /// How much more memory it takes than when this was asked last.
    pub(crate) fn grown_by(&self) -> isize {
        let generation = self.prepared.generation();
        if generation == self.generation.get() && self.bytes.get() != 0 {
            return 0;
        }
        self.generation.set(generation);
        let bytes = KEPT_BYTES + self.prepared.bytes();
        let before = self.bytes.replace(bytes);
        bytes as isize - before as isize
    }

    /// Whether it is the plan of the statement that is made of these: the types of its key's values and the columns of
    /// its patch.
    pub(crate) fn is_of(
        &self,
        head: Head,
        types: impl Iterator<Item = Oid>,
        columns: impl ExactSizeIterator<Item = i16>,
    ) -> bool {
        self.head == head
            && self.columns.len() == columns.len()
            && self.columns.iter().zip(columns).all(|(&known, number)| known == number)
            && self.key_types.iter().zip(types).all(|(&known, value_type)| known == value_type)
    }
}
