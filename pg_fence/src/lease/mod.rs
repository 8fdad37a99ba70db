//! Leases inside PostgreSQL: the lock server of those who run no other.
//!
//! Every decision is made by the crate `fence`, as in the Redis module. Here is where a lease is stored, and what a database
//! makes of it: a grant is undone with its transaction, and a release frees the lock at COMMIT. Invariant: the row of a lock is
//! written only under the lock on its name, which is held to the end of the transaction.

pub(crate) mod acquire;
mod arguments;
mod fences;
pub(crate) mod holder;
mod names;
pub(crate) mod operators;
mod patience;
mod row;
mod store;
pub(crate) mod wake;
pub(crate) mod watch;

pub(crate) use store::watch_changes;
