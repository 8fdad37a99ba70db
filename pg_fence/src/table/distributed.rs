//! Tables that a distributed engine (Citus) spreads over several servers.
//!
//! Claims, writes and guards work on them as on any table, because every function in a statement is immutable. Triggers
//! do not: the engine refuses them. A table is known to be distributed by the engine's own catalog.

use crate::errors::Refused;
use crate::server::catalog;
use crate::server::spi::Connection;
use crate::table::relation::Table;
use pg_forms::text;
use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;

const CATALOG: &CStr = c"pg_dist_partition";

/// Refuses to make triggers on a distributed or reference table.
pub(crate) fn refuse_triggers(table: &Table) -> Result<(), Refused> {
    match is_distributed(table.oid)? {
        true => Err(Refused::Distributed { table: table.name.clone() }),
        false => Ok(()),
    }
}

/// Whether a table is a distributed or a reference table, and not one that the engine has merely noted as local.
pub(crate) fn is_distributed(table: Oid) -> Result<bool, Refused> {
    if catalog::relation_in(pg_sys::PG_CATALOG_NAMESPACE.into(), CATALOG).is_none() {
        return Ok(false);
    }
    let connection = Connection::open()?;
    let found = connection.read_text(text![
        "SELECT 'distributed' FROM pg_catalog.pg_dist_partition AS p WHERE p.logicalrelid OPERATOR(pg_catalog.=) ",
        table.to_u32(),
        "::pg_catalog.regclass AND NOT (p.partmethod OPERATOR(pg_catalog.=) 'n'::pg_catalog.\"char\"",
        " AND p.repmodel OPERATOR(pg_catalog.=) 's'::pg_catalog.\"char\")",
    ])?;
    connection.close()?;
    Ok(found.is_some())
}
