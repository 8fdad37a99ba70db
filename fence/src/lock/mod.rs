//! The lock: who holds it and until when, who waits for it, and how holds are stored and replicated.
//!
//! Not the fence, which is `crate::fence`, and not the resource that compares it.

pub mod args;
pub mod awaits;
pub mod bonds;
pub mod codec;
pub mod ending;
pub mod follow;
pub mod lease;
pub mod lost;
pub mod queue;
pub mod stored;
