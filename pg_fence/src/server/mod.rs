//! Calls into the server, each made safe to use.
//!
//! Not the statements (`table`). Every function must run in the backend's one thread, inside a transaction; so does
//! everything that calls it.

pub(crate) mod boot;
pub(crate) mod call;
pub(crate) mod callbacks;
pub(crate) mod catalog;
pub(crate) mod context;
pub(crate) mod declared;
pub(crate) mod dependency;
pub(crate) mod elements;
pub(crate) mod heap;
pub(crate) mod json;
pub(crate) mod lock_table;
pub(crate) mod locks;
pub(crate) mod log;
pub(crate) mod nodes;
pub(crate) mod operators;
pub(crate) mod planned;
pub(crate) mod processes;
pub(crate) mod query;
pub(crate) mod raw;
pub(crate) mod relation;
pub(crate) mod rights;
pub(crate) mod rows;
pub(crate) mod segment;
pub(crate) mod sequence;
pub(crate) mod session;
pub(crate) mod sleep;
pub(crate) mod spi;
pub(crate) mod stored;
pub(crate) mod subtransaction;
pub(crate) mod text;
pub(crate) mod trigger;
pub(crate) mod types;
pub(crate) mod versions;
pub(crate) mod waiting;
