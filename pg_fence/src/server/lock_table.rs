//! Who holds which named lock, and which transactions run, as the server's lock table has it at one moment.
//!
//! What `pg_locks` reads. Invariant: all of one reading is of one moment, so a transaction that is named as a holder held that
//! lock then, and had the numbers that are named with it.

use crate::server::locks::{LockMode, NamedLock, Purpose};
use crate::server::session;
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet};

/// A transaction of a session; or a prepared one, which no session has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Transaction {
    /// The process, 0 for a prepared transaction.
    pub(crate) pid: i32,
    /// The server's number of the session, and its count of transactions.
    pub(crate) virtual_id: (i32, u32),
}

impl Transaction {
    pub(crate) fn is_prepared(&self) -> bool {
        self.pid == 0
    }

    /// Whether it is the one that asks.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == session::process_id()
    }
}

/// Somebody who has a named lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) transaction: Transaction,
    /// Whether it was taken to share it; one who only asks has not.
    pub(crate) is_shared: bool,
}

/// A reading of the lock table.
pub(crate) struct LockTable {
    holds: BTreeMap<u64, Vec<Hold>>,
    waiting: BTreeMap<u64, usize>,
    numbers: BTreeMap<Transaction, BTreeSet<u32>>,
}

impl LockTable {
    /// Reads it, for the locks of this database that are for this.
    pub(crate) fn read(purpose: Purpose) -> LockTable {
        let mut table = LockTable { holds: BTreeMap::new(), waiting: BTreeMap::new(), numbers: BTreeMap::new() };
        // SAFETY: the server gives a list of as many entries as it says, the caller's to free.
        unsafe {
            let read = pg_sys::GetLockStatusData();
            let count = usize::try_from((*read).nelements).unwrap_or(0);
            for entry in std::slice::from_raw_parts((*read).locks, count) {
                table.add(purpose, entry);
            }
            pg_sys::pfree((*read).locks.cast());
            pg_sys::pfree(read.cast());
        }
        table
    }

    /// The locks that are held, by the hash of their name.
    pub(crate) fn held(&self) -> impl Iterator<Item = u64> {
        self.holds.keys().copied()
    }

    /// Who has the lock of this hash, without those who only ask.
    pub(crate) fn holds(&self, hash: u64) -> &[Hold] {
        self.holds.get(&hash).map_or(&[], Vec::as_slice)
    }

    /// How many wait for it.
    pub(crate) fn waiting(&self, hash: u64) -> usize {
        self.waiting.get(&hash).copied().unwrap_or(0)
    }

    /// Whether a transaction has this number.
    pub(crate) fn has_number(&self, transaction: &Transaction, number: u32) -> bool {
        self.numbers.get(transaction).is_some_and(|numbers| numbers.contains(&number))
    }

    /// The number of a transaction, if it has one: its lowest, for those of subtransactions are larger.
    pub(crate) fn number(&self, transaction: &Transaction) -> Option<u32> {
        self.numbers.get(transaction).and_then(BTreeSet::first).copied()
    }

    fn add(&mut self, purpose: Purpose, entry: &pg_sys::LockInstanceData) {
        const NO_TRANSACTION: u32 = 0;
        let (tag, transaction) = (&entry.locktag, transaction_of(entry));
        let has = |mode: pg_sys::LOCKMODE| entry.holdMask & (1 << mode) != 0;
        // One that has ended, and is about to give its locks back.
        if transaction.virtual_id.1 == NO_TRANSACTION {
            return;
        }
        if tag.locktag_type == pg_sys::LockTagType::LOCKTAG_TRANSACTION as u8 {
            if has(LockMode::Alone.number()) {
                self.numbers.entry(transaction).or_default().insert(tag.locktag_field1);
            }
        } else if let Some(hash) = NamedLock::hash_of(tag, purpose, session::database()) {
            let (is_shared, is_alone) = (has(LockMode::Shared.number()), has(LockMode::Alone.number()));
            if is_shared || is_alone {
                self.holds.entry(hash).or_default().push(Hold { transaction, is_shared });
            }
            *self.waiting.entry(hash).or_default() += usize::from(entry.waitLockMode != pg_sys::NoLock as i32);
        }
    }
}

fn transaction_of(entry: &pg_sys::LockInstanceData) -> Transaction {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    let virtual_id = (entry.backend, entry.lxid);
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    let virtual_id = (entry.vxid.procNumber, entry.vxid.localTransactionId);
    Transaction { pid: entry.pid, virtual_id }
}
