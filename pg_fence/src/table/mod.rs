//! A table as the catalogs describe it, and the prepared statements that run against it.

pub mod direct;
pub mod distributed;
pub mod executor;
pub mod facts;
pub mod fit;
pub mod plan;
pub mod plans;
pub mod relation;
pub mod statement;
pub mod stored;
pub mod tables;
pub mod verb;
