//! The facts of fenced tables, kept for the session, and when they must be read again.
//!
//! A table is known by its oid, so it keeps its entry when it is renamed or moved, and one that is created again under
//! an old name is another table. Invariants: an entry is used only after its table is locked, which brings in the news
//! of all changes; what the server calls back here only marks entries; nothing of the server is called while the map
//! is borrowed.

use crate::errors::{Refused, RelationName};
use crate::row::key::Fit;
use crate::server::text::{Identifier, joined, text};
use crate::server::{self, Input, MainThread};
use crate::settings;
use crate::table::plans::{self, Plan, Plans};
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// The facts of a table, and the plans of its statements.
pub struct Table {
    /// Its oid.
    pub oid: Oid,
    /// Its schema and name.
    pub name: RelationName,
    /// The type of its rows.
    pub row_type: Oid,
    row_type_hash: u32,
    /// Whether it is partitioned. Others are addressed with ONLY, without the tables that inherit from them.
    pub is_partitioned: bool,
    /// Whether a BEFORE trigger or a rule can make something else of a write, so that its result must be looked at. A
    /// partition can have triggers of its own.
    pub can_change_writes: bool,
    /// Whether it can have the triggers of a protected table; those of a partitioned table may be on partitions alone.
    pub may_be_protected: bool,
    /// Whether its rows have no more fields than it has columns: none was dropped.
    pub has_all_columns: bool,
    /// Its columns, without those that were dropped.
    pub columns: Vec<Column>,
    /// The columns of its primary key, in the key's order.
    pub key: Vec<KeyColumn>,
    /// A name for its row in a statement that none of its columns has.
    pub alias: CString,
    /// The plans of its statements.
    pub plans: Plans,
    is_current: Cell<bool>,
    /// The role that was last seen to have a right to change rows; a change of rights makes a new entry.
    writer: Cell<Oid>,
    used: Cell<u64>,
    /// How many changes of columns the server had told of when it last told of one of this table.
    column_changes: Cell<u64>,
    depends_on: RefCell<Vec<CatalogEntry>>,
}

/// A column of a table.
pub struct Column {
    /// Its number.
    pub number: i16,
    /// Its name.
    pub name: CString,
    /// Its type, which may be a domain.
    pub type_oid: Oid,
    /// Its type, or the one that the domain is over.
    pub base_type: Oid,
    /// The modifier of its type, such as the precision of a numeric.
    pub typmod: i32,
    /// Its collation.
    pub collation: Oid,
    /// Whether it is a generated column.
    pub is_generated: bool,
    /// Whether it is GENERATED ALWAYS AS IDENTITY.
    pub is_identity_always: bool,
    /// Whether it is part of the primary key.
    pub is_key: bool,
    /// Whether no row has a null in it.
    pub is_never_null: bool,
    input: OnceCell<Input>,
}

/// A column of a primary key.
pub struct KeyColumn {
    /// Its place in [`Table::columns`].
    pub column: usize,
    /// The operator family of the index.
    pub operator_family: Oid,
    /// The type that the operator class of the index takes.
    pub operator_type: Oid,
    /// How values of the types seen so far are compared with it.
    pub fits: RefCell<Vec<(Oid, Fit)>>,
    base_input: OnceCell<Input>,
}

/// An entry of a catalog that a statement's text names, as the server's messages about changes name it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CatalogEntry {
    catalog: CatalogId,
    hash: u32,
}

#[cfg(not(feature = "pg19"))]
type CatalogId = i32;
#[cfg(feature = "pg19")]
type CatalogId = pg_sys::SysCacheIdentifier::Type;

const SCHEMAS: CatalogId = pg_sys::SysCacheIdentifier::NAMESPACEOID as CatalogId;
const OPERATORS: CatalogId = pg_sys::SysCacheIdentifier::OPEROID as CatalogId;
const TYPES: CatalogId = pg_sys::SysCacheIdentifier::TYPEOID as CatalogId;
const COLUMNS: CatalogId = pg_sys::SysCacheIdentifier::ATTNUM as CatalogId;

#[derive(Default)]
struct Tables {
    by_oid: RefCell<BTreeMap<u32, Rc<Table>>>,
    /// Counts the calls, to know which table was used last.
    clock: Cell<u64>,
    bytes: Cell<usize>,
    /// Counts the changes of columns, of whatever table.
    column_changes: Cell<u64>,
    /// The columns of tables for which a query that was made for older ones has been refused, as a hash.
    refused: RefCell<BTreeMap<u32, u64>>,
}

/// Only tables that are altered while they are in use come here; a table that is forgotten has a query refused once more.
const MAX_REFUSED: usize = 1_000;

static TABLES: MainThread<Tables> = MainThread(Tables {
    by_oid: RefCell::new(BTreeMap::new()),
    clock: Cell::new(0),
    bytes: Cell::new(0),
    column_changes: Cell::new(0),
    refused: RefCell::new(BTreeMap::new()),
});

/// The row type that was asked for last, and the table that it is of. Forgotten with any change of a table or type.
static LAST_ROW_TYPE: MainThread<Cell<Option<(Oid, Oid)>>> = MainThread(Cell::new(None));

/// The table of a row type, or of a domain over one.
pub fn of_row_type(row_type: Oid) -> Result<Oid, Refused> {
    if let Some((_, table)) = LAST_ROW_TYPE.get().filter(|(last, _)| *last == row_type) {
        return Ok(table);
    }
    if !server::type_exists(row_type) {
        server::forget_analyses();
        return Err(Refused::NoType(row_type));
    }
    let table = server::relation_of_type(server::base_type(row_type))
        .ok_or_else(|| Refused::NotARowType { type_name: server::type_name(row_type) })?;
    LAST_ROW_TYPE.set(Some((row_type, table)));
    Ok(table)
}

/// Asks the server to tell about changes. Called once, when the library is loaded.
pub fn watch_changes() {
    // SAFETY: the callbacks are functions of this library, which is never unloaded; they only mark entries.
    unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), server::NO_ARGUMENT);
        for catalog in [SCHEMAS, OPERATORS, TYPES, COLUMNS] {
            pg_sys::CacheRegisterSyscacheCallback(catalog, Some(catalog_changed), server::NO_ARGUMENT);
        }
    }
}

impl Table {
    /// The table with this oid, locked as an UPDATE locks it, to the end of the transaction. Errors: it is gone, not a
    /// table, or has no primary key that picks one row. Raises the server's error, before it waits for the lock and again
    /// afterwards, where the caller may change no row of it.
    pub fn open(oid: Oid) -> Result<Rc<Table>, Refused> {
        plans::free_dropped();
        let role = server::current_user();
        if !TABLES.current(oid).is_some_and(|table| table.writer.get() == role) && !server::require_some_writing(oid) {
            return Err(Refused::NoRelation(oid));
        }
        let table = Table::locked(oid)?;
        if table.writer.get() != role {
            server::require_some_writing(oid);
            table.writer.set(role);
        }
        Ok(table)
    }

    /// The same for what only the owner may do.
    pub fn open_as_owner(oid: Oid) -> Result<Rc<Table>, Refused> {
        if !server::exists(oid) {
            return Err(Refused::NoRelation(oid));
        }
        server::require_owner(oid, &server::relation_name(oid).name);
        let table = Table::locked(oid)?;
        server::require_owner(oid, &table.name.name);
        Ok(table)
    }

    fn locked(oid: Oid) -> Result<Rc<Table>, Refused> {
        // SAFETY: taking a lock on whatever has this oid; it also brings in the news of changes.
        unsafe { pg_sys::LockRelationOid(oid, pg_sys::RowExclusiveLock as i32) };
        if let Some(table) = TABLES.current(oid) {
            return Ok(table);
        }
        let table = Rc::new(read_facts(oid)?);
        TABLES.put(&table);
        Ok(table)
    }

    /// The fence column of this name. Errors: there is none, or it cannot hold a fence.
    pub fn fence_column(&self, name: &CStr) -> Result<&Column, Refused> {
        let named = || (self.name.clone(), name.to_owned());
        let Some(column) = self.column(name.to_bytes()) else {
            let (table, column) = named();
            return Err(Refused::NoFenceColumn { table, column });
        };
        if !matches!(column.base_type, pg_sys::INT8OID | pg_sys::INT4OID) {
            let (table, column_name) = named();
            let type_name = server::type_name(column.type_oid);
            return Err(Refused::FenceColumnType { table, column: column_name, type_name });
        }
        let problem = match column {
            Column { is_key: true, .. } => "is part of the primary key",
            Column { is_generated: true, .. } => "is a generated column",
            Column { is_identity_always: true, .. } => "is an identity column",
            _ => return Ok(column),
        };
        let (table, column) = named();
        Err(Refused::FenceColumnUse { table, column, problem })
    }

    /// The column of exactly this name.
    pub fn column(&self, name: &[u8]) -> Option<&Column> {
        self.columns.iter().find(|column| column.name.as_bytes() == name)
    }

    /// Whether a description of rows is that of this table's as it is now.
    ///
    /// # Safety
    ///
    /// The descriptor is valid.
    pub unsafe fn has_columns(&self, descriptor: pg_sys::TupleDesc) -> bool {
        // SAFETY: as the caller promises; it has as many entries as it says.
        let described = unsafe { (0..(*descriptor).natts).map(|n| &*server::attribute(descriptor, n)) };
        let described = described.filter(|attribute| !attribute.attisdropped);
        let own = self.columns.iter().map(|column| (column.number, column.type_oid));
        described.map(|attribute| (attribute.attnum, attribute.atttypid)).eq(own)
    }

    /// A column of the primary key.
    pub fn key_column(&self, key: &KeyColumn) -> &Column {
        &self.columns[key.column]
    }

    /// The names of the key's columns as text: `(a, b)`.
    pub fn key_names(&self) -> Vec<u8> {
        text!["(", joined(self.key.iter().map(|key| &self.key_column(key).name), ", "), ")"]
    }

    /// The table in SQL.
    pub fn qualified_name(&self) -> Vec<u8> {
        text![Identifier(&self.name.schema), ".", Identifier(&self.name.name)]
    }

    /// Notes that the text of this table's statements names an operator, and with it the operator's and types' names.
    pub fn depends_on_operator(&self, operator: Oid, types: &[Oid]) {
        self.depends_on(OPERATORS, operator);
        if let Some(schema) = server::operator_schema(operator) {
            self.depends_on(SCHEMAS, schema);
        }
        for &type_oid in types {
            self.depends_on(TYPES, type_oid);
        }
    }

    /// Whether this is asked for the first time since the table has these columns.
    pub fn is_news(&self) -> bool {
        let mut hasher = std::hash::DefaultHasher::new();
        for column in &self.columns {
            (column.number, &column.name, column.type_oid.to_u32(), column.typmod).hash(&mut hasher);
        }
        let columns = hasher.finish();
        let mut refused = TABLES.refused.borrow_mut();
        if refused.len() >= MAX_REFUSED {
            refused.clear();
        }
        refused.insert(self.oid.to_u32(), columns) != Some(columns)
    }

    /// Notes that one of the table's plans is in use, and takes this much more memory than it did. Others are dropped to
    /// make room.
    pub fn used_plan(&self, plan: &Plan, grown_by: isize) {
        plan.used.set(TABLES.clock.get());
        TABLES.grow(self.oid, grown_by);
    }

    fn depends_on(&self, catalog: CatalogId, oid: Oid) {
        let entry = CatalogEntry { catalog, hash: hash_of(catalog, oid) };
        let mut depends_on = self.depends_on.borrow_mut();
        if !depends_on.contains(&entry) {
            depends_on.push(entry);
        }
    }
}

impl Column {
    /// The input function of the column's type, with the checks of a domain.
    pub fn input(&self) -> &Input {
        self.input.get_or_init(|| Input::of(self.type_oid))
    }
}

impl KeyColumn {
    /// How values of a type are compared with it, if one has been seen before.
    pub fn known_fit(&self, given: Oid) -> Option<Fit> {
        self.fits.borrow().iter().find(|(known, _)| *known == given).map(|(_, fit)| *fit)
    }

    /// The input function of the type without a domain's checks: a key that no row can have is no error.
    pub fn base_input(&self, column: &Column) -> &Input {
        self.base_input.get_or_init(|| Input::of(column.base_type))
    }
}

impl Tables {
    fn current(&self, oid: Oid) -> Option<Rc<Table>> {
        let table = self.by_oid.borrow().get(&oid.to_u32()).filter(|table| table.is_current.get()).cloned()?;
        self.touch(&table);
        // The setting can have been lowered.
        self.grow(oid, 0);
        Some(table)
    }

    fn put(&self, table: &Rc<Table>) {
        self.touch(table);
        let old = self.by_oid.borrow_mut().insert(table.oid.to_u32(), table.clone());
        let freed = old.map_or(0, |old| old.bytes() + old.plans.bytes());
        self.grow(table.oid, table.bytes() as isize - freed as isize);
    }

    fn touch(&self, table: &Table) {
        let now = self.clock.get() + 1;
        self.clock.set(now);
        table.used.set(now);
    }

    fn grow(&self, in_use: Oid, by: isize) {
        self.bytes.set(self.bytes.get().saturating_add_signed(by));
        let limit = settings::plan_memory();
        if self.bytes.get() > limit {
            self.make_room(in_use.to_u32(), limit - limit / 4);
        }
    }

    /// Drops what was used least recently, plans and tables, until no more than `wanted` bytes are left: some below the
    /// limit, so that it does not happen with every call. What is in use stays.
    fn make_room(&self, in_use: u32, wanted: usize) {
        let now = self.clock.get();
        let tables: Vec<Rc<Table>> = self.by_oid.borrow().values().cloned().collect();
        let mut bytes: usize = tables.iter().map(|table| table.bytes() + table.plans.bytes()).sum();
        // A table comes after its plans.
        let of_table = |table: &Rc<Table>| {
            let plans = table.plans.uses().into_iter().filter(|&used| used != now || table.oid.to_u32() != in_use);
            let plans = plans.map(|used| (used, false, table.clone()));
            let itself = (table.used.get(), true, table.clone());
            plans.chain((table.oid.to_u32() != in_use).then_some(itself)).collect::<Vec<_>>()
        };
        let count = self.by_oid.borrow().len();
        let mut by_use: Vec<(u64, bool, Rc<Table>)> = tables.iter().flat_map(of_table).collect();
        by_use.sort_by_key(|(used, is_table, _)| (*used, *is_table));
        for (used, is_table, table) in by_use {
            if bytes <= wanted {
                break;
            }
            bytes -= table.plans.drop_used_at(used);
            if is_table {
                self.by_oid.borrow_mut().remove(&table.oid.to_u32());
                bytes -= table.bytes() + table.plans.bytes();
            }
        }
        self.bytes.set(bytes);
        if self.by_oid.borrow().len() < count {
            // Changes of a table that is not known any more are not seen.
            server::forget_analyses();
        }
    }

    /// Whether columns have changed since the server told of such a table last. A query that names the row type of a
    /// table does not depend on its columns for the server. Where the query's columns must fit those of something else,
    /// as with RETURN QUERY, it is refused before it calls a function of this library, so that must not be waited for.
    fn have_new_columns(&self, changed: impl Fn(&Table) -> bool) -> bool {
        let now = self.column_changes.get();
        let tables = self.by_oid.borrow();
        tables
            .values()
            .filter(|table| changed(table))
            .fold(false, |any, table| table.column_changes.replace(now) != now || any)
    }

    fn mark(&self, changed: impl Fn(&Table) -> bool) {
        for table in self.by_oid.borrow().values() {
            if changed(table) {
                table.is_current.set(false);
            }
        }
    }
}

impl Table {
    /// What the facts take, without the plans: nearly all is for the columns.
    fn bytes(&self) -> usize {
        let names: usize = self.columns.iter().map(|column| column.name.count_bytes() + 1).sum();
        size_of::<Table>() + self.columns.len() * size_of::<Column>() + names
    }
}

/// What the server names an entry of a catalog by when it tells of a change.
fn hash_of(catalog: CatalogId, oid: Oid) -> u32 {
    let no_key = Datum::null();
    // SAFETY: it computes a number from the oid.
    unsafe { pg_sys::GetSysCacheHashValue(catalog as _, Datum::from(oid), no_key, no_key, no_key) }
}

#[pg_guard]
unsafe extern "C-unwind" fn relation_changed(_argument: Datum, oid: Oid) {
    LAST_ROW_TYPE.set(None);
    let is_changed = |table: &Table| server::valid(oid).is_none_or(|oid| table.oid == oid);
    if TABLES.have_new_columns(is_changed) {
        server::forget_analyses();
    }
    TABLES.mark(is_changed);
}

#[pg_guard]
unsafe extern "C-unwind" fn catalog_changed(_argument: Datum, catalog: CatalogId, hash: u32) {
    LAST_ROW_TYPE.set(None);
    if catalog == COLUMNS {
        // Which table's, the hash does not say; that comes next, as a change of the table.
        TABLES.column_changes.set(TABLES.column_changes.get() + 1);
        return;
    }
    let changed = CatalogEntry { catalog, hash };
    // A query that names the row type of a table keeps the type's oid, and the server does not note that. Where the table
    // was dropped, its name may stand for another one now.
    let is_row_type = |table: &Rc<Table>| hash == 0 || table.row_type_hash == hash;
    if catalog == TYPES && TABLES.by_oid.borrow().values().any(is_row_type) {
        server::forget_analyses();
    }
    // A hash of 0 stands for all entries of the catalog.
    TABLES.mark(|table| hash == 0 || table.depends_on.borrow().contains(&changed));
}

fn read_facts(oid: Oid) -> Result<Table, Refused> {
    // SAFETY: the relation is locked. A null answer says that it does not exist. It is closed again; its lock stays.
    unsafe {
        let relation = pg_sys::try_relation_open(oid, pg_sys::NoLock as i32);
        if relation.is_null() {
            return Err(Refused::NoRelation(oid));
        }
        let facts = facts_of(&*relation);
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
        let (table, schema) = facts?;
        table.depends_on(SCHEMAS, schema);
        Ok(table)
    }
}

/// The facts of an open relation, and the oid of its schema.
fn facts_of(relation: &pg_sys::RelationData) -> Result<(Table, Oid), Refused> {
    // SAFETY: an open relation has its row of the catalog.
    let form = unsafe { &*relation.rd_rel };
    let name = RelationName { schema: server::schema_name(form.relnamespace), name: server::name(&form.relname) };
    refuse_other_kinds(relation.rd_id, form.relkind as u8, &name)?;
    let mut columns = columns_of(relation.rd_att);
    let key = primary_key(relation, &columns, &name)?;
    for key in &key {
        columns[key.column].is_key = true;
    }
    let mut alias = b"fenced".to_vec();
    while columns.iter().any(|column| column.name.as_bytes() == alias) {
        alias.push(b'_');
    }
    let is_partitioned = form.relkind as u8 == pg_sys::RELKIND_PARTITIONED_TABLE;
    let table = Table {
        oid: relation.rd_id,
        name,
        row_type: form.reltype,
        row_type_hash: hash_of(TYPES, form.reltype),
        is_partitioned,
        can_change_writes: is_partitioned || has_rules_or_triggers(relation),
        may_be_protected: is_partitioned || has_triggers_after_writes(relation),
        has_all_columns: columns.len() == form.relnatts as usize,
        columns,
        key,
        alias: crate::server::text::c_string(alias),
        plans: Plans::default(),
        is_current: Cell::new(true),
        writer: Cell::new(pg_sys::InvalidOid),
        used: Cell::new(0),
        column_changes: Cell::new(TABLES.column_changes.get()),
        depends_on: RefCell::default(),
    };
    Ok((table, form.relnamespace))
}

fn has_rules_or_triggers(relation: &pg_sys::RelationData) -> bool {
    // SAFETY: an open relation's description of its triggers is null or valid.
    let triggers = unsafe { relation.trigdesc.as_ref() };
    !relation.rd_rules.is_null() || triggers.is_some_and(|triggers| triggers.trig_update_before_row)
}

fn has_triggers_after_writes(relation: &pg_sys::RelationData) -> bool {
    // SAFETY: an open relation's description of its triggers is null or valid.
    let triggers = unsafe { relation.trigdesc.as_ref() };
    triggers.is_some_and(|triggers| triggers.trig_update_after_row || triggers.trig_delete_after_row)
}

fn refuse_other_kinds(oid: Oid, kind: u8, name: &RelationName) -> Result<(), Refused> {
    let (kind, hint) = match kind {
        pg_sys::RELKIND_RELATION | pg_sys::RELKIND_PARTITIONED_TABLE => {
            // SAFETY: it looks at the number alone.
            if !unsafe { pg_sys::IsCatalogRelationOid(oid) } {
                return Ok(());
            }
            ("a system catalog", "Use a table of your own.")
        }
        pg_sys::RELKIND_VIEW => ("a view", "Name the table that the view shows."),
        pg_sys::RELKIND_MATVIEW => ("a materialized view", "Name the table that the view shows."),
        pg_sys::RELKIND_FOREIGN_TABLE => ("a foreign table", "Fence the table in the database that holds it."),
        pg_sys::RELKIND_COMPOSITE_TYPE => ("a composite type", "Pass a null of a table's row type."),
        pg_sys::RELKIND_INDEX | pg_sys::RELKIND_PARTITIONED_INDEX => ("an index", "Name its table."),
        pg_sys::RELKIND_SEQUENCE => ("a sequence", "Use a table."),
        _ => ("no table", "Use a table."),
    };
    Err(Refused::NotATable { relation: name.clone(), kind, hint })
}

fn columns_of(descriptor: pg_sys::TupleDesc) -> Vec<Column> {
    const GENERATED_ALWAYS: u8 = b'a';
    // SAFETY: the descriptor of an open relation has as many entries as it says.
    let attributes = unsafe { (0..(*descriptor).natts).map(|n| (n, &*server::attribute(descriptor, n))) };
    attributes
        .filter(|(_, attribute)| !attribute.attisdropped)
        .map(|(n, attribute)| Column {
            number: attribute.attnum,
            name: server::name(&attribute.attname),
            type_oid: attribute.atttypid,
            base_type: server::base_type(attribute.atttypid),
            typmod: attribute.atttypmod,
            collation: attribute.attcollation,
            is_generated: attribute.attgenerated != 0,
            is_identity_always: attribute.attidentity as u8 == GENERATED_ALWAYS,
            is_key: false,
            // SAFETY: the descriptor of an open relation, as above.
            is_never_null: unsafe { server::is_never_null(descriptor, n) },
            input: OnceCell::new(),
        })
        .collect()
}

/// The columns of the primary key, if it picks one row at any time.
fn primary_key(
    relation: &pg_sys::RelationData,
    columns: &[Column],
    name: &RelationName,
) -> Result<Vec<KeyColumn>, Refused> {
    let refused = |problem, hint| Err(Refused::PrimaryKey { table: name.clone(), problem, hint });
    let Some(index_oid) = primary_key_index(relation) else {
        return refused("has no primary key", "Add one with ALTER TABLE ... ADD PRIMARY KEY.");
    };
    // SAFETY: the index belongs to a locked table, so it stays. It has an entry per key column in each array. It is
    // closed again.
    unsafe {
        let index = pg_sys::index_open(index_oid, pg_sys::AccessShareLock as i32);
        let form = &*(*index).rd_index;
        let (is_immediate, is_exclusion, is_valid) = (form.indimmediate, form.indisexclusion, form.indisvalid);
        let key = (0..form.indnkeyatts as usize)
            .map(|n| {
                let number = *form.indkey.values.as_ptr().add(n);
                KeyColumn {
                    column: columns.iter().position(|column| column.number == number).unwrap_or(usize::MAX),
                    operator_family: *(*index).rd_opfamily.add(n),
                    operator_type: *(*index).rd_opcintype.add(n),
                    fits: RefCell::default(),
                    base_input: OnceCell::new(),
                }
            })
            .collect::<Vec<_>>();
        pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
        if !is_immediate {
            return refused(
                "has a deferrable primary key",
                "Make it NOT DEFERRABLE: until the end of a transaction two rows can have one key.",
            );
        }
        if is_exclusion {
            return refused(
                "has a primary key WITHOUT OVERLAPS",
                "Add a plain primary key: this one picks rows by a period.",
            );
        }
        if !is_valid || key.iter().any(|key| key.column >= columns.len()) {
            return refused("has a primary key whose index is not valid", "Rebuild the index with REINDEX.");
        }
        Ok(key)
    }
}

fn primary_key_index(relation: &pg_sys::RelationData) -> Option<Oid> {
    // SAFETY: the relation is open and locked, so its indexes stay. The list is the caller's to free. The row of the
    // catalog is read before it is released.
    unsafe {
        let list = pg_sys::RelationGetIndexList((&raw const *relation).cast_mut());
        if list.is_null() {
            return None;
        }
        let found = (0..(*list).length as usize).map(|n| (*(*list).elements.add(n)).oid_value).find(|&index| {
            let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::INDEXRELID as _, Datum::from(index));
            if tuple.is_null() {
                return false;
            }
            let is_primary = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_index>()).indisprimary;
            pg_sys::ReleaseSysCache(tuple);
            is_primary
        });
        pg_sys::list_free(list);
        found
    }
}
