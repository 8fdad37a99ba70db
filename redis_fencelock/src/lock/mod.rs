//! A lock as the server keeps it: the value of a key, and the index of all leases by their end.
//!
//! Not who waits for it, and not when it ends.

pub(crate) mod arrival;
pub(crate) mod data_type;
mod flushes;
pub(crate) mod index;
pub(crate) mod pool;
pub(crate) mod slot;
pub(crate) mod value;
