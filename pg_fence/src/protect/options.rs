//! The options of `fence_protect`: what is asked for, and what the triggers of a table have already.
//!
//! Null keeps what is there; `plain` is how a table is without the option.

use crate::errors::Refused;
use crate::protect::companion;
use crate::protect::members::{self, Member};
use crate::server::call::{Arguments, Call};
use crate::server::types::Value;
use pgrx::pg_sys::Oid;
use std::ffi::CStr;

/// What is asked for; none keeps what is there.
pub(crate) struct ProtectArguments<'c> {
    pub(crate) table: Oid,
    pub(crate) fence_column: Option<&'c CStr>,
    pub(crate) inserts: Option<Inserts>,
    pub(crate) deletes: Option<Deletes>,
    pub(crate) replicated: Option<Replicated>,
    pub(crate) owner_column: Option<&'c CStr>,
}

/// Which new rows pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inserts {
    /// Those without a fence too.
    Plain,
    /// Those that carry a fence in use.
    Fenced,
}

/// What becomes of a deletion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deletes {
    /// Nothing.
    Plain,
    /// Its key and its fence are kept, and no older fence inserts the key again.
    Remembered,
}

/// What becomes of an update that logical replication applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Replicated {
    /// It is applied, as to any table.
    Plain,
    /// It is not, where it brings an older fence.
    Newest,
}

impl<'c> ProtectArguments<'c> {
    /// Errors: an option has a value that is not one of its own.
    pub(crate) fn of(call: &'c Call) -> Result<ProtectArguments<'c>, Refused> {
        let mut given = call.arguments();
        Ok(ProtectArguments {
            table: given.table("target")?,
            fence_column: given.name(),
            inserts: option(&mut given, "inserts", "fenced", [Inserts::Plain, Inserts::Fenced])?,
            deletes: option(&mut given, "deletes", "remembered", [Deletes::Plain, Deletes::Remembered])?,
            replicated: option(&mut given, "replicated", "newest", [Replicated::Plain, Replicated::Newest])?,
            owner_column: given.name(),
        })
    }
}

/// The option of this name: plain, or its other value.
fn option<T>(
    given: &mut Arguments,
    name: &'static str,
    other: &'static str,
    [plain, set]: [T; 2],
) -> Result<Option<T>, Refused> {
    let Some(value) = given.text().map(Value::text) else { return Ok(None) };
    match value.to_bytes() {
        b"plain" => Ok(Some(plain)),
        given if given == other.as_bytes() => Ok(Some(set)),
        _ => Err(Refused::NoSuchOption { name, other, value }),
    }
}

impl Inserts {
    /// As the triggers of a table have it; those of a partitioned table are on its partitions.
    pub(crate) fn of(members: &[Member]) -> Inserts {
        let is_fenced = |member: &Member| members::made_triggers(member.oid).iter().any(|made| made.asks_new_rows);
        if members.iter().any(is_fenced) { Inserts::Fenced } else { Inserts::Plain }
    }
}

impl Deletes {
    /// As the triggers of a table have it.
    pub(crate) fn of(table: Oid) -> Deletes {
        if companion::named(table).is_some() { Deletes::Remembered } else { Deletes::Plain }
    }
}

impl Replicated {
    /// As the triggers of a table have it.
    pub(crate) fn of(table: Oid) -> Replicated {
        if members::keeping_triggers(table).is_empty() { Replicated::Plain } else { Replicated::Newest }
    }
}
