//! A lock's row in the table: which column holds what.
//!
//! Times are stored on the steady clock of the boot in which they were written, and given on that of now. A row without an
//! owner is that of a free lock; it keeps the last fence. Invariant: whatever is stored, a row is read without an error.

use crate::server::boot::Moment;
use crate::server::heap::Fields;
use crate::server::text::Bytes;
use fence::Fence;
use fence::lock::lease::{Hold, Lease};
use fence::lock::stored::{self, Boot};

pub(crate) const COLUMNS: usize = 9;
pub(crate) const NAME: usize = 0;
const OWNER: usize = 1;
const FENCE: usize = 2;
const GRANTED: usize = 3;
const DEADLINE: usize = 4;
const LIMIT: usize = 5;
const DELAY: usize = 6;
const EPOCH: usize = 7;
const OFFSET: usize = 8;

/// How a lease without a longest hold is stored.
const NO_LIMIT: i64 = i64::MAX;

/// A row as it is now.
pub(crate) struct Row {
    owner: Option<Box<[u8]>>,
    lease: Lease,
}

impl Row {
    /// The row of this name; none for a row of another.
    pub(crate) fn read(fields: &Fields<COLUMNS>, name: &[u8], moment: &Moment) -> Option<Row> {
        let is_named = fields.text(NAME).is_some_and(|stored| stored.bytes() == name);
        is_named.then(|| Row::of(fields, moment))
    }

    /// A row, whatever its name.
    pub(crate) fn of(fields: &Fields<COLUMNS>, moment: &Moment) -> Row {
        let unsigned = |column| u64::try_from(fields.number(column)).unwrap_or(0);
        let limit = fields.number(LIMIT);
        let lease = Lease {
            // What is not a fence is one that no server has issued: it is further ahead than any accepts.
            fence: Fence::new(unsigned(FENCE)).unwrap_or(LARGEST),
            granted_us: unsigned(GRANTED),
            deadline_us: unsigned(DEADLINE),
            limit_us: if limit == NO_LIMIT { u64::MAX } else { unsigned(LIMIT) },
            delay_us: unsigned(DELAY),
            ephemeral: false,
        };
        let written = Boot { epoch: fields.number(EPOCH) as u64, offset_us: fields.number(OFFSET) };
        let lease = stored::place(lease, written, moment.boot, moment.now.steady_us);
        Row { owner: fields.text(OWNER).map(|owner| owner.bytes().into()), lease }
    }

    /// Who has the lock, or had it until his lease expired.
    pub(crate) fn hold(&self) -> Option<Hold<'_>> {
        self.owner.as_deref().map(|owner| Hold { lease: self.lease, owner })
    }

    /// The last fence of the lock.
    pub(crate) fn fence(&self) -> Fence {
        self.lease.fence
    }

    pub(crate) fn lease(&self) -> Lease {
        self.lease
    }
}

const LARGEST: Fence = match Fence::new(Fence::MAX) {
    Some(fence) => fence,
    None => panic!("the largest fence is one"),
};

/// A lease as a row of this name. Without an owner the lock is free.
pub(crate) fn fields(name: Bytes, owner: Option<Bytes>, lease: &Lease, moment: &Moment) -> Fields<COLUMNS> {
    let mut fields = Fields::default();
    fields.set_text(NAME, name);
    if let Some(owner) = owner {
        fields.set_text(OWNER, owner);
    }
    let signed = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
    fields.set_number(FENCE, lease.fence.get() as i64);
    fields.set_number(GRANTED, signed(lease.granted_us));
    fields.set_number(DEADLINE, signed(lease.deadline_us));
    fields.set_number(LIMIT, if lease.limit_us == u64::MAX { NO_LIMIT } else { signed(lease.limit_us) });
    fields.set_number(DELAY, signed(lease.delay_us));
    fields.set_number(EPOCH, moment.boot.epoch as i64);
    fields.set_number(OFFSET, moment.boot.offset_us);
    fields
}
