//! The table of the deletions of a protected table: made, found, brought up to date, emptied by age and dropped.
//!
//! It lies in the schema of the protected table, belongs to its owner and is dropped with it. The conditions of the triggers
//! name it, and a constraint of its own names the protected table, so a dump carries both. Anybody who may make triggers can
//! name any table in one; only the owner can give a table a constraint. Invariant: nothing is read from, written to or done to
//! a table that does not say so itself that it holds the deletions of this one, or that does not belong to its owner.

use crate::errors::{DeletionsProblem, Refused};
use crate::protect::members::{self, Member, MemberKind};
use crate::protect::remembering::Named;
use crate::server::catalog;
use crate::server::declared;
use crate::server::dependency;
use crate::server::locks::{self, RelationLock};
use crate::server::nodes::Tree;
use crate::server::relation::OpenRelation;
use crate::server::rights::AsOwner;
use crate::server::spi::Connection;
use crate::server::types::Value;
use crate::table::facts;
use crate::table::relation::Table;
use pg_forms::{Identifier, c_string, joined, text};
use pgrx::pg_sys::{self, Oid};
use std::ffi::{CStr, CString};

/// What its name ends in.
const WORD: &CStr = c"deletions";
/// The constraint that says whose deletions they are. It is true of every row.
const MARK: &CStr = c"fence_protect_deletions";
const COMMENT: &str =
    "Keys of rows that were deleted, each with the fence of the deletion. Written by fence_protect()''s triggers.";

/// The table of the deletions, and the columns of the key in the protected one.
pub(crate) struct Deletions {
    pub(crate) table: Oid,
    pub(crate) key: Vec<CString>,
}

/// The table of the deletions that the triggers of a table name, perhaps one that is none.
pub(crate) fn of(table: Oid) -> Option<Oid> {
    named(table).map(|named| named.deletions)
}

/// What the triggers of a table name that remember its deletions; of a partitioned table those on deletions, which its
/// partitions follow. One that names a table of the deletions goes before others, which anybody with the right may have made.
pub(crate) fn named(table: Oid) -> Option<Named> {
    let mut all: Vec<Named> =
        members::remembering_triggers(table).into_iter().filter_map(|trigger| trigger.named).collect();
    let first = all.iter().position(|named| check(named.deletions, table).is_ok()).unwrap_or(0);
    (!all.is_empty()).then(|| all.swap_remove(first))
}

/// Whether a table holds the deletions of this one, or of a partitioned table above it, and belongs to the owner of that.
pub(crate) fn check(deletions: Oid, table: Oid) -> Result<(), DeletionsProblem> {
    let owner = catalog::owner_of(deletions);
    let mut above = [table].into_iter().chain(catalog::partition_ancestors(table));
    if !above.clone().any(|above| catalog::owner_of(above) == owner) {
        return Err(DeletionsProblem::Owner(catalog::relation_name(deletions)));
    }
    let said = said_of(deletions);
    match above.find(|&above| said == Some(above)) {
        Some(of) if catalog::owner_of(of) == owner => Ok(()),
        Some(_) => Err(DeletionsProblem::Owner(catalog::relation_name(deletions))),
        None => Err(DeletionsProblem::OfAnother(catalog::relation_name(deletions))),
    }
}

/// The table whose deletions a table says that it holds.
fn said_of(deletions: Oid) -> Option<Oid> {
    let schema = catalog::internals()?;
    let relation = OpenRelation::description(deletions)?;
    let mut marks = relation.checks().filter(|check| check.name == MARK);
    marks.find_map(|mark| {
        let tree = Tree::read(mark.condition);
        let (function, arguments) = tree.root().call()?;
        let is_mark = catalog::is_function(function, schema, c"has_key");
        is_mark.then(|| arguments.first()?.relation_constant()).flatten()
    })
}

/// Whether these columns are the primary key of a table, in its order.
pub(crate) fn is_key(table: &Table, columns: &[i16]) -> bool {
    table.key.iter().map(|key| table.key_column(key).number).eq(columns.iter().copied())
}

/// Whether a table is as `make` makes it for a key of these types, which are no domains.
pub(crate) fn fits(deletions: Oid, key_types: &[Oid]) -> bool {
    key_types_of(deletions).is_some_and(|types| types == key_types)
}

/// The types of the key, of a table as `make` makes it: the columns of its primary key, then the fence and the time.
fn key_types_of(deletions: Oid) -> Option<Vec<Oid>> {
    let relation = OpenRelation::open(deletions, RelationLock::Reads)?;
    let mut types: Vec<Oid> = relation.columns().map(|column| column.form.atttypid).collect();
    let key_types: Vec<Oid> = types.drain(..types.len().checked_sub(2)?).collect();
    let numbers = 1..=i16::try_from(key_types.len()).ok()?;
    let is_made = relation.kind() == pg_sys::RELKIND_RELATION
        && types == [pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID]
        && relation.primary_key()?.columns.iter().map(|column| column.number).eq(numbers);
    is_made.then_some(key_types)
}

/// The table of the deletions of this table, made where there is none yet, and brought up to date: its name, schema, owner
/// and durability follow those of its table.
///
/// Errors: its table has no primary key, or one of other types than before.
pub(crate) fn make(connection: &Connection, table: Oid) -> Result<Deletions, Refused> {
    let table = &facts::read(table)?;
    let deletions = match find(connection, table)? {
        Some(deletions) => {
            follow(connection, table, deletions)?;
            deletions
        }
        None => create(connection, table)?,
    };
    dependency::drop_with(deletions, table.oid);
    let key = table.key.iter().map(|key| table.key_column(key).name.clone()).collect();
    Ok(Deletions { table: deletions, key })
}

/// Drops the table of the deletions of a table, if there is one and no trigger names it any more.
pub(crate) fn drop(connection: &Connection, table: Oid, was: Option<Oid>) -> Result<(), Refused> {
    let tied = tied(connection, table)?;
    let is_its = |&found: &Oid| {
        (tied == Some(found) || said_of(found) == Some(table)) && catalog::owner_of(found) == catalog::owner_of(table)
    };
    let Some(deletions) = [was, tied].into_iter().flatten().find(is_its) else { return Ok(()) };
    if key_types_of(deletions).is_none() || !is_free_for(connection, deletions, table)? {
        return Ok(());
    }
    connection.run_direct(text!["DROP TABLE ", declared::relation(deletions)], &[]).map(|_| ())
}

/// Forgets the deletions of a table, and of those that inherit from it, that are at least so old. Answers how many.
pub(crate) fn forget(table: Oid, older_than: Value) -> Result<i64, Refused> {
    let roots = members::all(table, RelationLock::None);
    let roots = roots.iter().filter(|member| is_root(member, table));
    let all: Vec<(Oid, Oid)> = roots.filter_map(|root| of(root.oid).map(|deletions| (root.oid, deletions))).collect();
    if all.is_empty() {
        let table = catalog::relation_name(table);
        return Err(Refused::Deletions { table, problem: DeletionsProblem::NotRemembered });
    }
    let connection = Connection::open()?;
    let mut forgotten = 0;
    for (root, deletions) in all {
        check(deletions, root)
            .map_err(|problem| Refused::Deletions { table: catalog::relation_name(root), problem })?;
        // The owner of a partition is not that of all deletions.
        if catalog::owner_of(deletions) != catalog::owner_of(root) {
            return Err(of_another_owner(root, deletions));
        }
        // What the owner has made of the table, such as a trigger, runs with no more than the owner's rights.
        let _owner = AsOwner::past_policies(deletions);
        let Some(time) = column_of_time(deletions) else { continue };
        let name = declared::relation(deletions);
        // What is locked is being deleted anew. A wait for it could be one for each other.
        let sql = text![
            "DELETE FROM ONLY ",
            &name[..],
            " WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT ctid FROM ONLY ",
            &name[..],
            " WHERE ",
            Identifier(&time),
            " OPERATOR(pg_catalog.<=) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) $1) FOR UPDATE SKIP LOCKED))"
        ];
        forgotten += connection.run_direct(sql, &[older_than])?;
    }
    connection.close()?;
    Ok(i64::try_from(forgotten).unwrap_or(i64::MAX))
}

/// Whether a member has a table of its own for its deletions: the table that is named, or one that inherits from it.
pub(crate) fn is_root(member: &Member, target: Oid) -> bool {
    member.oid == target || member.kind == MemberKind::Inherits
}

/// One that the triggers name or that goes with the table, unless it has another form or goes with another table.
fn find(connection: &Connection, table: &Table) -> Result<Option<Oid>, Refused> {
    let types = key_types(table);
    let tied = tied(connection, table.oid)?;
    let named = named(table.oid);
    // Where no trigger says which columns are meant, their names do.
    let is_of_key = |found| match named.as_ref().filter(|named| named.deletions == found) {
        Some(named) => is_key(table, &named.key),
        None => names_key(found, table),
    };
    for found in [tied, named.as_ref().map(|named| named.deletions)].into_iter().flatten() {
        // Whoever may make triggers can name any table in one. What goes with this one was made here.
        let is_its = tied == Some(found) || said_of(found) == Some(table.oid);
        if !is_its || !is_free_for(connection, found, table.oid)? {
            continue;
        }
        if tied != Some(found) && catalog::owner_of(found) != catalog::owner_of(table.oid) {
            return Err(of_another_owner(table.oid, found));
        }
        if !fits(found, &types) || !is_of_key(found) {
            let (name, problem) = (table.name.clone(), DeletionsProblem::Columns(catalog::relation_name(found)));
            return Err(Refused::Deletions { table: name, problem });
        }
        return Ok(Some(found));
    }
    Ok(None)
}

/// A table that is dropped with this one and has the form of one for deletions.
fn tied(connection: &Connection, table: Oid) -> Result<Option<Oid>, Refused> {
    let sql = text![
        "SELECT d.objid FROM pg_catalog.pg_depend AS d JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) d.objid",
        " WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass",
        " AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid OPERATOR(pg_catalog.=) '",
        table.to_u32(),
        "'::pg_catalog.oid AND d.refobjsubid OPERATOR(pg_catalog.=) 0 AND d.deptype OPERATOR(pg_catalog.=) 'a'::pg_catalog.\"char\"",
        " AND c.relkind OPERATOR(pg_catalog.=) 'r'::pg_catalog.\"char\" AND NOT c.relispartition",
    ];
    Ok(connection.read_text_now(sql)?.and_then(|oid| oid.to_str().ok()?.parse::<u32>().ok()).map(Oid::from))
}

/// Whether a table goes with this one or, as after a restore, with none.
fn is_free_for(connection: &Connection, deletions: Oid, table: Oid) -> Result<bool, Refused> {
    let sql = text![
        "SELECT 'another' FROM pg_catalog.pg_depend AS d",
        " WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid OPERATOR(pg_catalog.=) '",
        deletions.to_u32(),
        "'::pg_catalog.oid AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass",
        " AND d.deptype OPERATOR(pg_catalog.=) 'a'::pg_catalog.\"char\" AND d.refobjid OPERATOR(pg_catalog.<>) '",
        table.to_u32(),
        "'::pg_catalog.oid",
    ];
    Ok(connection.read_text_now(sql)?.is_none())
}

/// The types of a table's key, which are no domains.
pub(crate) fn key_types(table: &Table) -> Vec<Oid> {
    table.key.iter().map(|key| table.key_column(key).base_type).collect()
}

fn names_key(deletions: Oid, table: &Table) -> bool {
    let relation = OpenRelation::open(deletions, RelationLock::Reads);
    let names = relation.map_or_else(Vec::new, |open| {
        open.columns().map(|column| catalog::name(&column.form.attname)).take(table.key.len()).collect()
    });
    table.key.iter().map(|key| &table.key_column(key).name).eq(&names)
}

fn create(connection: &Connection, table: &Table) -> Result<Oid, Refused> {
    let schema = catalog::schema_of(table.oid);
    let name = catalog::derived_name(&table.name.name, WORD, Some(schema));
    let qualified = text![Identifier(&table.name.schema), ".", Identifier(&name)];
    let keys = || table.key.iter().map(|key| table.key_column(key));
    let columns = keys().map(|column| {
        let declared = declared::unlimited_type(column.base_type);
        text![Identifier(&column.name), " ", declared, declared::collate(column.collation), " NOT NULL"]
    });
    let free = |word: &str| {
        let mut name = word.as_bytes().to_vec();
        while keys().any(|column| column.name.as_bytes() == name) {
            name.push(b'_');
        }
        c_string(name)
    };
    let (fence, time) = (free("fence"), free("deleted_at"));
    let fence_name = fence.clone();
    let fence = text![Identifier(&fence), " pg_catalog.int8 NOT NULL"];
    let time = text![Identifier(&time), " pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()"];
    let key = text!["PRIMARY KEY (", joined(keys().map(|column| text![Identifier(&column.name)]), ", "), ")"];
    let names = [fence_name].into_iter().chain(keys().map(|column| column.name.clone()));
    let parts = joined(columns.chain([fence, time, key, mark(table.oid, names)]), ", ");
    let durability = if catalog::persistence(table.oid) == pg_sys::RELPERSISTENCE_UNLOGGED { "UNLOGGED " } else { "" };
    run(connection, text!["CREATE ", durability, "TABLE ", &qualified[..], " (", parts, ") USING heap"])?;
    let deletions = catalog::relation_in(schema, &name).ok_or(Refused::NoRelation(table.oid))?;
    follow_owner(connection, table, deletions)?;
    // Default privileges may have granted some.
    for grantee in grantees(connection, deletions)? {
        run(connection, text!["REVOKE ALL ON TABLE ", &qualified[..], " FROM ", grantee, " CASCADE"])?;
    }
    run(connection, text!["COMMENT ON TABLE ", qualified, " IS '", COMMENT, "'"])?;
    Ok(deletions)
}

/// The constraint that says whose deletions they are, on the columns of the fence and the key.
fn mark(table: Oid, columns: impl Iterator<Item = CString>) -> Vec<u8> {
    let columns = joined(columns.map(|name| text![Identifier(&name)]), ", ");
    text![
        "CONSTRAINT ",
        Identifier(MARK),
        " CHECK (",
        Identifier(catalog::INTERNALS),
        ".has_key('",
        table.to_u32(),
        "'::pg_catalog.regclass, ",
        columns,
        "))"
    ]
}

/// A table that lost the constraint, as with the extension, gets it again.
fn follow_mark(connection: &Connection, table: Oid, deletions: Oid) -> Result<(), Refused> {
    if said_of(deletions) == Some(table) {
        return Ok(());
    }
    let mut columns: Vec<CString> = OpenRelation::open(deletions, RelationLock::Reads)
        .map_or_else(Vec::new, |open| open.columns().map(|column| catalog::name(&column.form.attname)).collect());
    columns.pop();
    columns.rotate_right(1);
    let (name, mark) = (Identifier(MARK), mark(table, columns.into_iter()));
    let alter =
        text!["ALTER TABLE ", declared::relation(deletions), " DROP CONSTRAINT IF EXISTS ", name, ", ADD ", mark];
    run(connection, alter)
}

fn follow(connection: &Connection, table: &Table, deletions: Oid) -> Result<(), Refused> {
    locks::lock_relation(deletions, RelationLock::Triggers);
    follow_owner(connection, table, deletions)?;
    follow_mark(connection, table.oid, deletions)?;
    let schema = catalog::schema_of(table.oid);
    let first = catalog::derived_name(&table.name.name, WORD, None);
    let is_derived = catalog::relation_name(deletions).name.as_bytes().starts_with(first.as_bytes());
    if !is_derived || catalog::schema_of(deletions) != schema {
        let name = catalog::derived_name(&table.name.name, WORD, Some(schema));
        if catalog::schema_of(deletions) != schema {
            let aside =
                text!["ALTER TABLE ", declared::relation(deletions), " SET SCHEMA ", Identifier(&table.name.schema)];
            run(connection, aside)?;
        }
        if !is_derived {
            run(connection, text!["ALTER TABLE ", declared::relation(deletions), " RENAME TO ", Identifier(&name)])?;
        }
    }
    let wanted = catalog::persistence(table.oid);
    if catalog::persistence(deletions) != wanted {
        let set = if wanted == pg_sys::RELPERSISTENCE_UNLOGGED { " SET UNLOGGED" } else { " SET LOGGED" };
        run(connection, text!["ALTER TABLE ", declared::relation(deletions), set])?;
    }
    Ok(())
}

fn of_another_owner(table: Oid, deletions: Oid) -> Refused {
    let problem = DeletionsProblem::Owner(catalog::relation_name(deletions));
    Refused::Deletions { table: catalog::relation_name(table), problem }
}

fn follow_owner(connection: &Connection, table: &Table, deletions: Oid) -> Result<(), Refused> {
    match catalog::owner_of(table.oid) {
        Some(owner) if catalog::owner_of(deletions) != Some(owner) => {
            let alter = text!["ALTER TABLE ", declared::relation(deletions), " OWNER TO ", declared::role(owner)];
            run(connection, alter)
        }
        _ => Ok(()),
    }
}

/// Who else than its owner has a right on a table, as SQL names them.
fn grantees(connection: &Connection, table: Oid) -> Result<Vec<Vec<u8>>, Refused> {
    let sql = text![
        "SELECT pg_catalog.string_agg(DISTINCT CASE WHEN a.grantee OPERATOR(pg_catalog.=) '0'::pg_catalog.oid THEN 'PUBLIC'",
        " ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)::pg_catalog.text) END, ', ')",
        " FROM pg_catalog.pg_class AS c CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) AS a",
        " WHERE c.oid OPERATOR(pg_catalog.=) '",
        table.to_u32(),
        "'::pg_catalog.oid AND a.grantee OPERATOR(pg_catalog.<>) c.relowner",
    ];
    Ok(connection.read_text_now(sql)?.map(CString::into_bytes).into_iter().collect())
}

fn column_of_time(deletions: Oid) -> Option<CString> {
    let relation = OpenRelation::open(deletions, RelationLock::Writes)?;
    let time =
        relation.columns().find(|column| column.form.atttypid == pg_sys::TIMESTAMPTZOID && column.form.atthasdef)?;
    Some(catalog::name(&time.form.attname))
}

fn run(connection: &Connection, sql: Vec<u8>) -> Result<(), Refused> {
    connection.run_direct(sql, &[]).map(|_| ())
}
