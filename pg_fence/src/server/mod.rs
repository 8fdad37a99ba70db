//! Calls into the server, each made safe to use.
//!
//! Not the statements (`table`). Every function must run in the backend's one thread, inside a transaction; so does
//! everything that calls it.

pub mod call;
pub mod catalog;
pub mod json;
pub mod log;
pub mod operators;
pub mod query;
pub mod raw;
pub mod rights;
pub mod session;
pub mod text;
pub mod types;
