//! Protected tables: their triggers, what passes them, and how the rest is refused.

pub mod condition;
pub mod functions;
pub mod members;
pub mod passes;
pub mod refuse;
pub mod triggers;
