//! A lock as the server keeps it: the value of a key, and the index of all leases by their end.
//!
//! Not who waits for it, and not when it ends.

pub mod index;
pub mod pool;
pub mod slot;
pub mod value;
