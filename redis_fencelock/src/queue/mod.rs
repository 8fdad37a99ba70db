//! Clients that wait for a lock, await its end or are bound to one, and how a waiter is granted.
//!
//! Not the order of the queue, which is `fence::lock::queue`.

pub(crate) mod awaited;
pub(crate) mod awaiters;
pub(crate) mod clients;
pub(crate) mod ephemeral;
pub(crate) mod handover;
pub(crate) mod waiters;
