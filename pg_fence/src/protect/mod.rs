//! Protected tables: their triggers, what passes them, and how the rest is refused.

pub(crate) mod condition;
pub(crate) mod functions;
pub(crate) mod members;
pub(crate) mod passes;
pub(crate) mod refuse;
pub(crate) mod replicated;
pub(crate) mod triggers;
