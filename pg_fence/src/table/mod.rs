//! A table as the catalogs describe it, and the prepared statements that run against it.

pub(crate) mod answer;
pub(crate) mod batch;
pub(crate) mod by_index;
pub(crate) mod distributed;
pub(crate) mod executor;
pub(crate) mod facts;
pub(crate) mod fit;
pub(crate) mod owner;
pub(crate) mod plan;
pub(crate) mod plans;
pub(crate) mod relation;
pub(crate) mod running;
pub(crate) mod statement;
pub(crate) mod tables;
pub(crate) mod verb;
