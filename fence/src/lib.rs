//! The protocol of leases and fences, as pure functions.
//!
//! No I/O, no clock, no randomness, no globals: time arrives as an argument, bytes stay bytes. The Redis module and the
//! PostgreSQL extension call these functions and add no rule of their own, so the tests and models of this crate hold
//! for both.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod deletion;
mod fence;
pub mod life;
pub mod lock;
pub mod plain;
pub mod resource;
mod slab;
pub mod wheel;

pub use fence::{Brought, Fence, FenceLimits, FenceRefused, Issuer, SKIPPED, may_be_swapped};
