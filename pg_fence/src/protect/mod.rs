//! Protected tables: their triggers, what passes them, how the rest is refused, and which deletions are remembered.

pub(crate) mod companion;
pub(crate) mod condition;
pub(crate) mod deletions;
pub(crate) mod functions;
pub(crate) mod members;
pub(crate) mod options;
pub(crate) mod passes;
pub(crate) mod refuse;
pub(crate) mod remembering;
pub(crate) mod replicated;
pub(crate) mod triggers;
