//! What happens by time: when the timer goes off, what ends then, and the walks that find locks which arrived unseen.

pub(crate) mod alarm;
pub(crate) mod expiry;
pub(crate) mod scan;
