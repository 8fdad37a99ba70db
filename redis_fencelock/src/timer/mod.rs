//! What happens by time: the end of leases, and the walk over the keyspace that finds leases which arrived unseen.

pub mod reaper;
pub mod scan;
