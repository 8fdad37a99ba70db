//! Whether the library and the extension's SQL in this database fit together.
//!
//! A package brings both, but a database keeps its SQL until ALTER EXTENSION UPDATE, and a session the library that it
//! has loaded. Checked once per session, by the first call; databases without a pg_extension row are not checked.

use crate::errors::Refused;
use crate::server::session::MainThread;
use crate::server::spi::Connection;
use pg_forms::text;
use std::cell::Cell;
use std::ffi::CString;

/// This library's version.
const LIBRARY: &str = env!("CARGO_PKG_VERSION");

/// The versions of the SQL whose functions this library has, all of them with the same meaning.
const SQL: [&str; 1] = ["0.1.0"];

const _: () = assert!(matches!(LIBRARY.as_bytes(), b"0.1.0"), "add the new version to SQL above, and here");

static IS_CHECKED: MainThread<Cell<bool>> = MainThread(Cell::new(false));

/// Refuses to work with SQL that this library does not know.
pub(crate) fn check() -> Result<(), Refused> {
    if IS_CHECKED.get() {
        return Ok(());
    }
    match installed()? {
        Some(sql) if !SQL.iter().any(|known| known.as_bytes() == sql.as_bytes()) => {
            Err(Refused::Version { library: LIBRARY, sql })
        }
        _ => {
            IS_CHECKED.set(true);
            Ok(())
        }
    }
}

fn installed() -> Result<Option<CString>, Refused> {
    let connection = Connection::open()?;
    let sql = text!["SELECT extversion FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) 'pg_fence'"];
    let version = connection.read_text(sql)?;
    connection.close()?;
    Ok(version)
}
