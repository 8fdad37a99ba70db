//! The commands: arguments in, replies out, and what the server says of them.
//!
//! Not the rules, which are in the crate `fence`, and not how a lock is stored.

pub mod docs;
pub mod info;
pub mod lock;
pub mod resource;
