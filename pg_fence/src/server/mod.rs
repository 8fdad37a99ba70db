//! Calls into the server, each made safe to use: types, values, operators, clocks.
//!
//! Not the statements (`plans`), the facts of tables (`relation`) or JSON (`json`). Every function must run in the
//! backend's one thread, inside a transaction; so does everything that calls it. Invariant: a [`Value`] is never null
//! and its datum is of its type.

pub mod call;
pub mod json;
pub mod query;
pub mod text;

use crate::errors::RelationName;
use crate::server::text::c_string;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cmp::Ordering;
use std::ffi::{CStr, CString, c_char};
use std::ops::Deref;

/// State of the backend. A backend has one thread, which alone runs the functions of an extension.
pub struct MainThread<T>(pub T);

// SAFETY: see above; no other thread of the process ever calls into this library.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> Deref for MainThread<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Functions of the server that raise no error, without the guard that `pg_sys` puts around each.
mod raw {
    use pgrx::pg_sys::*;
    use std::ffi::c_int;

    unsafe extern "C-unwind" {
        pub fn GetCurrentTimestamp() -> TimestampTz;
        pub fn RecoveryInProgress() -> bool;
        pub fn get_fn_expr_argtype(function: *mut FmgrInfo, argument: c_int) -> Oid;
    }
}

/// A value that is not null, with its type. It lives as long as the memory context it was made in: that of the call.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    /// The value.
    pub datum: Datum,
    /// Its type.
    pub type_oid: Oid,
}

impl Value {
    /// The value in its text form, by the type's output function.
    pub fn text(self) -> CString {
        if self.type_oid == pg_sys::UNKNOWNOID {
            // SAFETY: a value of type unknown is a C string.
            return owned(unsafe { CStr::from_ptr(self.datum.cast_mut_ptr()) });
        }
        let mut function = pg_sys::InvalidOid;
        let mut is_varlena = false;
        // SAFETY: the datum is a value of this type, so its type's output function may read it.
        unsafe {
            pg_sys::getTypeOutputInfo(self.type_oid, &mut function, &mut is_varlena);
            owned(CStr::from_ptr(pg_sys::OidOutputFunctionCall(function, self.datum)))
        }
    }

    /// The value in its text form for an error text, cut where it gets long.
    pub fn short_text(self) -> Vec<u8> {
        const MAX_BYTES: i32 = 200;
        let mut text = self.text().into_bytes();
        let length = i32::try_from(text.len()).unwrap_or(i32::MAX);
        if length > MAX_BYTES {
            // SAFETY: the text has at least as many bytes as are looked at; the answer is where a character ends.
            let end = unsafe { pg_sys::pg_mbcliplen(text.as_ptr().cast(), length, MAX_BYTES) };
            text.truncate(usize::try_from(end).unwrap_or(0));
            text.extend_from_slice(b"...");
        }
        text
    }

    /// The fields of a row value with their types; a null one is `None`. Columns that were dropped from the row's type
    /// are left out. `None` when the value is no row.
    pub fn fields(self) -> Option<Vec<Option<Value>>> {
        // SAFETY: the type is checked before the datum is read as a row; the tuple and its descriptor stay valid to
        // the end of the call, and the descriptor is released.
        unsafe {
            if !pg_sys::type_is_rowtype(self.type_oid) {
                return None;
            }
            let header = pg_sys::htup::datum_get_heap_tuple_header(self.datum);
            let datum_fields = (*header).t_choice.t_datum;
            let descriptor = pg_sys::lookup_rowtype_tupdesc(datum_fields.datum_typeid, datum_fields.datum_typmod);
            let mut tuple = pg_sys::HeapTupleData {
                t_len: pgrx::varsize_any(header.cast()) as u32,
                t_data: header,
                ..Default::default()
            };
            let fields = (0..(*descriptor).natts)
                .filter(|&n| !(*attribute(descriptor, n)).attisdropped)
                .map(|n| {
                    let mut is_null = false;
                    let datum = pg_sys::htup::heap_getattr(&mut tuple, n + 1, descriptor, &mut is_null);
                    (!is_null).then(|| Value { datum, type_oid: (*attribute(descriptor, n)).atttypid })
                })
                .collect();
            release_descriptor(descriptor);
            Some(fields)
        }
    }

    /// The elements of an array value, flat; a null one is `None`. `None` when the value is no array.
    pub fn elements(self) -> Option<Vec<Option<Value>>> {
        let element_type = element_type(base_type(self.type_oid))?;
        let (mut length, mut by_value, mut align) = (0, false, 0);
        let (mut datums, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: the datum is an array of this element type; the server fills two arrays of `count` entries, which
        // live in the memory context of the call.
        unsafe {
            pg_sys::get_typlenbyvalalign(element_type, &mut length, &mut by_value, &mut align);
            let array = pg_sys::pg_detoast_datum(self.datum.cast_mut_ptr()).cast();
            pg_sys::deconstruct_array(
                array,
                element_type,
                i32::from(length),
                by_value,
                align,
                &mut datums,
                &mut nulls,
                &mut count,
            );
            let count = usize::try_from(count).unwrap_or(0);
            Some(
                (0..count)
                    .map(|n| (!*nulls.add(n)).then(|| Value { datum: *datums.add(n), type_oid: element_type }))
                    .collect(),
            )
        }
    }
}

/// The comparison function of a B-tree operator family for values of one type, ready to be called.
pub struct Comparison(pg_sys::FmgrInfo);

impl Comparison {
    /// The family's function for values of a type; for a type that the operator class takes as it is, the function of
    /// the class.
    pub fn of(family: Oid, class_type: Oid, type_oid: Oid) -> Comparison {
        const ORDER: i16 = pg_sys::BTORDER_PROC as i16;
        let mut info = pg_sys::FmgrInfo::default();
        // SAFETY: it reads the catalog; every operator class has this function. What the function keeps for itself lives
        // in the memory context of the call.
        unsafe {
            let own = valid(pg_sys::get_opfamily_proc(family, type_oid, type_oid, ORDER));
            let function = own.unwrap_or_else(|| pg_sys::get_opfamily_proc(family, class_type, class_type, ORDER));
            pg_sys::fmgr_info(function, &mut info);
        }
        Comparison(info)
    }

    /// Orders two values of that type.
    pub fn compare(&self, one: Value, other: Value, collation: Oid) -> Ordering {
        let info = (&raw const self.0).cast_mut();
        // SAFETY: both are values of the type that the function takes.
        let sign = unsafe { pg_sys::FunctionCall2Coll(info, collation, one.datum, other.datum).value() as i32 };
        sign.cmp(&0)
    }
}

/// The input function of a type, ready to be called.
pub struct Input {
    function: pg_sys::FmgrInfo,
    parameter: Oid,
}

impl Input {
    /// Looks the input function up.
    pub fn of(type_oid: Oid) -> Input {
        let mut function_oid = pg_sys::InvalidOid;
        let mut input = Input { function: pg_sys::FmgrInfo::default(), parameter: pg_sys::InvalidOid };
        // SAFETY: what the look-up allocates must live as long as the entry of the cache, so it is told to use the
        // memory context that lives as long as the backend.
        unsafe {
            pg_sys::getTypeInputInfo(type_oid, &mut function_oid, &mut input.parameter);
            pg_sys::fmgr_info_cxt(function_oid, &mut input.function, pg_sys::CacheMemoryContext);
        }
        input
    }

    /// Reads a value from its text form. A null text gives null, or the error of a domain that forbids it.
    pub fn read(&self, text: Option<&CStr>, typmod: i32) -> Option<Datum> {
        let text = text.map_or(std::ptr::null_mut(), |text| text.as_ptr().cast_mut());
        // SAFETY: the function gets a copy of its look-up, as it may keep state in it for one call only: it can be
        // called again from inside, by a check of a domain. The text is not changed by input functions.
        let datum = unsafe {
            let mut function = pg_sys::FmgrInfo::default();
            pg_sys::fmgr_info_copy(&mut function, (&raw const self.function).cast_mut(), pg_sys::CurrentMemoryContext);
            pg_sys::InputFunctionCall(&mut function, text, self.parameter, typmod)
        };
        (!text.is_null()).then_some(datum)
    }
}

/// The type of an argument in the expression that makes a call; none where there is no such expression.
///
/// # Safety
///
/// The function is that of a call under way.
pub unsafe fn argument_type(function: *mut pg_sys::FmgrInfo, argument: usize) -> Oid {
    // SAFETY: as the caller promises.
    unsafe { raw::get_fn_expr_argtype(function, i32::try_from(argument).unwrap_or(i32::MAX)) }
}

/// The name of a type as error texts give it.
pub fn type_name(type_oid: Oid) -> CString {
    // SAFETY: the function gives a name to any oid.
    owned(unsafe { CStr::from_ptr(pg_sys::format_type_be(type_oid)) })
}

/// Whether there is such a type: another session can have dropped it since the query was made.
pub fn type_exists(type_oid: Oid) -> bool {
    let none = Datum::from(0);
    // SAFETY: it reads the catalog alone.
    unsafe {
        pg_sys::SearchSysCacheExists(pg_sys::SysCacheIdentifier::TYPEOID as _, Datum::from(type_oid), none, none, none)
    }
}

/// The type that a domain is over, or the type itself.
pub fn base_type(type_oid: Oid) -> Oid {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::getBaseType(type_oid) }
}

/// The element type of an array type.
pub fn element_type(type_oid: Oid) -> Option<Oid> {
    // SAFETY: it reads the catalog alone.
    valid(unsafe { pg_sys::get_element_type(type_oid) })
}

/// The relation of a composite type, which every table's row type has.
pub fn relation_of_type(type_oid: Oid) -> Option<Oid> {
    // SAFETY: it reads the catalog alone.
    valid(unsafe { pg_sys::get_typ_typrelid(type_oid) })
}

/// The category of a type, as in `pg_type.typcategory`.
pub fn type_category(type_oid: Oid) -> u8 {
    let (mut category, mut is_preferred) = (0 as c_char, false);
    // SAFETY: it reads the catalog alone and fills both.
    unsafe { pg_sys::get_type_category_preferred(type_oid, &mut category, &mut is_preferred) };
    category as u8
}

/// Whether a value of the first type is one of the second as it is, without a conversion.
pub fn is_binary_coercible(from: Oid, to: Oid) -> bool {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::IsBinaryCoercible(from, to) }
}

/// Whether a type stands for a kind of types.
pub fn is_polymorphic(type_oid: Oid) -> bool {
    [
        pg_sys::ANYELEMENTOID,
        pg_sys::ANYARRAYOID,
        pg_sys::ANYNONARRAYOID,
        pg_sys::ANYENUMOID,
        pg_sys::ANYRANGEOID,
        pg_sys::ANYMULTIRANGEOID,
        pg_sys::RECORDOID,
    ]
    .contains(&type_oid)
}

/// The character between the elements of an array of this type in text form.
pub fn array_delimiter(element_type: Oid) -> u8 {
    let (mut length, mut by_value, mut align, mut delimiter) = (0, false, 0, 0 as c_char);
    let (mut parameter, mut function) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
    // SAFETY: it reads the catalog alone and fills all six.
    unsafe {
        pg_sys::get_type_io_data(
            element_type,
            pg_sys::IOFuncSelector::IOFunc_input,
            &mut length,
            &mut by_value,
            &mut align,
            &mut delimiter,
            &mut parameter,
            &mut function,
        );
    }
    delimiter as u8
}

/// The fields of a composite type, by name and type, in order.
pub fn composite_fields(type_oid: Oid) -> Vec<(CString, Oid)> {
    // SAFETY: the caller has seen that the type is composite; the descriptor is released.
    unsafe {
        let descriptor = pg_sys::lookup_rowtype_tupdesc(type_oid, -1);
        let fields = (0..(*descriptor).natts)
            .map(|n| attribute(descriptor, n))
            .filter(|&field| !(*field).attisdropped)
            .map(|field| (name(&(*field).attname), (*field).atttypid))
            .collect();
        release_descriptor(descriptor);
        fields
    }
}

/// The equality operator between two types in a B-tree operator family.
pub fn equality_operator(family: Oid, left: Oid, right: Oid) -> Option<Oid> {
    // SAFETY: it reads the catalog alone.
    valid(unsafe { pg_sys::get_opfamily_member(family, left, right, pg_sys::BTEqualStrategyNumber as i16) })
}

/// Whether an operator's function is immutable.
pub fn is_immutable(operator: Oid) -> bool {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::op_volatile(operator) as u8 == pg_sys::PROVOLATILE_IMMUTABLE }
}

/// Whether the operator says that two values are equal.
pub fn are_equal(operator: Oid, left: Value, right: Value, collation: Oid) -> bool {
    // SAFETY: the operator takes values of these types and answers a boolean.
    unsafe {
        pg_sys::OidFunctionCall2Coll(pg_sys::get_opcode(operator), collation, left.datum, right.datum).value() != 0
    }
}

/// The function that casts values of one type to another, where a cast takes one.
pub fn cast_function(from: Oid, to: Oid) -> Option<Oid> {
    let mut function = pg_sys::InvalidOid;
    let explicit = pg_sys::CoercionContext::COERCION_EXPLICIT;
    // SAFETY: it reads the catalog and fills the oid.
    unsafe { pg_sys::find_coercion_pathway(to, from, explicit, &mut function) };
    valid(function)
}

/// Casts a value by such a function.
pub fn cast(value: Value, function: Oid, type_oid: Oid) -> Value {
    const NO_MODIFIER: i32 = -1;
    const IS_EXPLICIT: bool = true;
    let (modifier, explicit) = (Datum::from(NO_MODIFIER), Datum::from(IS_EXPLICIT));
    // SAFETY: a cast's function takes the value, and then perhaps a modifier and whether the cast is explicit.
    let datum = unsafe { pg_sys::OidFunctionCall3Coll(function, pg_sys::InvalidOid, value.datum, modifier, explicit) };
    Value { datum, type_oid }
}

/// `left operator right` in SQL that means exactly this operator, whatever the search path.
pub fn operator_clause(left: Vec<u8>, left_type: Oid, operator: Oid, right: Vec<u8>, right_type: Oid) -> Vec<u8> {
    let (left, right) = (c_string(left), c_string(right));
    // SAFETY: both texts end with a NUL, and the buffer is the server's own, copied before it goes.
    unsafe {
        let buffer = pg_sys::makeStringInfo();
        pg_sys::generate_operator_clause(buffer, left.as_ptr(), left_type, operator, right.as_ptr(), right_type);
        let clause = CStr::from_ptr((*buffer).data).to_bytes().to_vec();
        pg_sys::pfree((*buffer).data.cast());
        pg_sys::pfree(buffer.cast());
        clause
    }
}

/// The schema of an operator.
pub fn operator_schema(operator: Oid) -> Option<Oid> {
    // SAFETY: the tuple is checked, read and released; an operator's tuple has this layout.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::OPEROID as _, Datum::from(operator));
        if tuple.is_null() {
            return None;
        }
        let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_operator>();
        let schema = (*form).oprnamespace;
        pg_sys::ReleaseSysCache(tuple);
        Some(schema)
    }
}

/// The clock as microseconds since 1970.
pub fn now_us() -> u64 {
    const US_PER_DAY: i64 = 24 * 60 * 60 * 1_000_000;
    let days = i64::from(pg_sys::POSTGRES_EPOCH_JDATE) - i64::from(pg_sys::UNIX_EPOCH_JDATE);
    // SAFETY: it reads the clock.
    let since_2000 = unsafe { raw::GetCurrentTimestamp() };
    u64::try_from(since_2000.saturating_add(days * US_PER_DAY)).unwrap_or(0)
}

/// Refuses what writes while the server is a standby, before a lock is taken that a standby does not give.
pub fn refuse_on_standby(function: &CStr) {
    // SAFETY: it raises an error or does nothing.
    unsafe {
        if raw::RecoveryInProgress() {
            pg_sys::PreventCommandDuringRecovery(function.as_ptr());
        }
    }
}

/// The oid of the database.
pub fn database() -> u32 {
    // SAFETY: reading a number of the backend.
    unsafe { pg_sys::MyDatabaseId.to_u32() }
}

/// A hash of bytes, the same in all processes of the server.
pub fn hash(bytes: &[u8]) -> u64 {
    const SEED: u64 = 0;
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    // SAFETY: the hash reads as many bytes as there are.
    unsafe { pg_sys::hash_bytes_extended(bytes.as_ptr(), length, SEED) }
}

/// The text up to a number of bytes, cut between two characters.
pub fn cut(text: &CStr, max_bytes: usize) -> Vec<u8> {
    let bytes = text.to_bytes();
    let (length, max) = (i32::try_from(bytes.len()).unwrap_or(i32::MAX), i32::try_from(max_bytes).unwrap_or(i32::MAX));
    // SAFETY: the text has as many bytes as are looked at.
    let end = unsafe { pg_sys::pg_mbcliplen(text.as_ptr(), length, max) };
    bytes[..usize::try_from(end).unwrap_or(0).min(bytes.len())].to_vec()
}

/// The clock, in the server's own time.
pub fn now() -> i64 {
    // SAFETY: it reads the clock.
    unsafe { raw::GetCurrentTimestamp() }
}

/// A value of type text.
pub fn text_datum(bytes: &[u8]) -> Datum {
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    // SAFETY: as many bytes are copied as there are.
    Datum::from(unsafe { pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), length) })
}

/// The number of the running subtransaction.
pub fn subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: reading a number of the backend.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// Whether the transaction goes on after the statement that the client has sent: a transaction block, or one of several
/// statements in one message. DO and CALL go on by themselves, and what is no client's statement ends its transaction
/// itself. A function that the client calls does not, but within a savepoint of its own the server does not tell it.
pub fn is_in_transaction_block() -> bool {
    // SAFETY: reading variables of the backend; the portal that runs stays while it does.
    unsafe {
        if pg_sys::IsTransactionBlock() {
            return true;
        }
        match clients_portal().as_ref() {
            Some(portal) => {
                matches!(portal.commandTag, pg_sys::CommandTag::CMDTAG_DO | pg_sys::CommandTag::CMDTAG_CALL)
            }
            None => pg_sys::MyBackendType == pg_sys::BackendType::B_BG_WORKER,
        }
    }
}

/// The portal that runs the client's statement. While a cursor of a function or of DO runs, that is the active one, and
/// the client's is the one without a name: no cursor can have none.
fn clients_portal() -> pg_sys::Portal {
    // SAFETY: the look-up reads a table of the backend; a portal stays while it runs.
    unsafe {
        let unnamed = pg_sys::GetPortalByName(c"".as_ptr());
        let runs = unnamed.as_ref().is_some_and(|portal| portal.status == pg_sys::PortalStatus::PORTAL_ACTIVE);
        if runs { unnamed } else { pg_sys::ActivePortal }
    }
}

/// The schema and the name of a relation; empty when it is gone.
pub fn relation_name(relation: Oid) -> RelationName {
    // SAFETY: it reads the catalog; a null answer is not read.
    unsafe {
        let found = pg_sys::get_rel_name(relation);
        let name = if found.is_null() { CString::default() } else { owned(CStr::from_ptr(found)) };
        RelationName { schema: schema_name(pg_sys::get_rel_namespace(relation)), name }
    }
}

/// Whether a column is declared NOT NULL.
pub fn is_not_null(relation: Oid, column: i16) -> bool {
    // SAFETY: the tuple is checked, read and released; a column's tuple has this layout.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::ATTNUM as _;
        let tuple = pg_sys::SearchSysCache2(cache, Datum::from(relation), Datum::from(column));
        if tuple.is_null() {
            return false;
        }
        let is_not_null = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_attribute>()).attnotnull;
        pg_sys::ReleaseSysCache(tuple);
        is_not_null
    }
}

/// Whether an oid is that of the function of this name in this schema.
pub fn is_function(function: Oid, schema: Oid, name: &CStr) -> bool {
    // SAFETY: it reads the catalog; a null answer is not read.
    unsafe {
        let found = pg_sys::get_func_name(function);
        !found.is_null() && CStr::from_ptr(found) == name && pg_sys::get_func_namespace(function) == schema
    }
}

/// The name of a column; empty when it is gone.
pub fn column_name(relation: Oid, column: i16) -> CString {
    const MISSING_IS_OK: bool = true;
    // SAFETY: it reads the catalog; a null answer is not read.
    unsafe {
        let name = pg_sys::get_attname(relation, column, MISSING_IS_OK);
        if name.is_null() { CString::default() } else { owned(CStr::from_ptr(name)) }
    }
}

/// The number of the column of this name; 0 where there is none.
pub fn column_number(relation: Oid, name: &CStr) -> i16 {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::get_attnum(relation, name.as_ptr()) }
}

/// Whether a role may read a column, and no policy hides rows of the table from it.
pub fn reads_all_rows(relation: Oid, column: i16, role: Oid) -> bool {
    const WITHOUT_ERROR: bool = true;
    // SAFETY: it reads the catalog alone; the column is looked up where its number stands for one.
    unsafe {
        let select = pg_sys::ACL_SELECT as pg_sys::AclMode;
        let reads = may_read_table(relation, role)
            || (column > 0
                && pg_sys::pg_attribute_aclcheck(relation, column, role, select) == pg_sys::AclResult::ACLCHECK_OK);
        reads
            && pg_sys::check_enable_rls(relation, role, WITHOUT_ERROR)
                != pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32
    }
}

/// Raises the server's error unless the caller may change some row of a relation, that is, unless it may wait for the lock
/// of a writer. Which columns it may read and write is for the statement to say. Answers whether there is such a relation.
pub fn require_some_writing(relation: Oid) -> bool {
    // SAFETY: it reads the catalog, and raises an error or does nothing.
    unsafe {
        if !exists(relation) {
            return false;
        }
        let (role, any) = (current_user(), pg_sys::AclMaskHow::ACLMASK_ANY);
        let (update, delete) = (pg_sys::ACL_UPDATE as pg_sys::AclMode, pg_sys::ACL_DELETE as pg_sys::AclMode);
        if pg_sys::pg_class_aclmask(relation, role, update | delete, any) == 0
            && pg_sys::pg_attribute_aclcheck_all(relation, role, update, any) != pg_sys::AclResult::ACLCHECK_OK
        {
            deny(relation);
        }
        true
    }
}

/// Raises the server's error unless the caller may read a table and update one of its columns.
pub fn require_claiming(relation: Oid, column: i16) {
    // SAFETY: it reads the catalog, and raises an error or does nothing.
    unsafe {
        let (role, all) = (current_user(), pg_sys::AclMaskHow::ACLMASK_ALL);
        let (select, update) = (pg_sys::ACL_SELECT as pg_sys::AclMode, pg_sys::ACL_UPDATE as pg_sys::AclMode);
        let is_ok = |result| result == pg_sys::AclResult::ACLCHECK_OK;
        let reads =
            may_read_table(relation, role) || is_ok(pg_sys::pg_attribute_aclcheck_all(relation, role, select, all));
        let writes = is_ok(pg_sys::pg_class_aclcheck(relation, role, update))
            || is_ok(pg_sys::pg_attribute_aclcheck(relation, column, role, update));
        if !reads || !writes {
            deny(relation);
        }
    }
}

/// Raises the server's error unless the caller may make triggers on a table.
pub fn require_trigger_right(relation: Oid) {
    // SAFETY: it reads the catalog, and raises an error or does nothing.
    unsafe {
        let trigger = pg_sys::ACL_TRIGGER as pg_sys::AclMode;
        if pg_sys::pg_class_aclcheck(relation, current_user(), trigger) != pg_sys::AclResult::ACLCHECK_OK {
            deny(relation);
        }
    }
}

/// Whether there is a relation with this oid.
pub fn exists(relation: Oid) -> bool {
    let none = Datum::null();
    // SAFETY: it reads the catalog alone.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::RELOID as _;
        pg_sys::SearchSysCacheExists(cache, Datum::from(relation), none, none, none)
    }
}

fn deny(relation: Oid) {
    let name = relation_name(relation).name;
    // SAFETY: it raises the server's error for want of a right.
    unsafe {
        let kind = pg_sys::get_relkind_objtype(pg_sys::get_rel_relkind(relation));
        pg_sys::aclcheck_error(pg_sys::AclResult::ACLCHECK_NO_PRIV, kind, name.as_ptr());
    }
}

/// The role that the client is, or has chosen with SET ROLE, whoever's rights count now.
pub fn client_user() -> Oid {
    // SAFETY: reading a number of the backend.
    unsafe { pg_sys::GetOuterUserId() }
}

/// Refuses what writes in a transaction that is read-only.
pub fn refuse_when_read_only(function: &CStr) {
    // SAFETY: it raises an error or does nothing.
    unsafe {
        if pg_sys::XactReadOnly {
            pg_sys::PreventCommandIfReadOnly(function.as_ptr());
        }
    }
}

/// Whether all statements of the transaction read by one snapshot: REPEATABLE READ or SERIALIZABLE.
pub fn reads_one_snapshot() -> bool {
    // SAFETY: reading a number of the backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// The role whose rights count now.
pub fn current_user() -> Oid {
    // SAFETY: reading a number of the backend.
    unsafe { pg_sys::GetUserId() }
}

/// Whether a role may read the whole table.
pub fn may_read_table(table: Oid, role: Oid) -> bool {
    // SAFETY: it reads the catalog alone.
    unsafe {
        pg_sys::pg_class_aclcheck(table, role, pg_sys::ACL_SELECT as pg_sys::AclMode) == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// The schema of what the extension keeps and calls itself. Its script makes it, and it cannot be moved.
pub const INTERNALS: &CStr = c"fence_internals";

/// The oid of [`INTERNALS`]; none where the extension is not created.
pub fn internals() -> Option<Oid> {
    const MISSING_IS_OK: bool = true;
    // SAFETY: it reads the catalog alone.
    valid(unsafe { pg_sys::get_namespace_oid(INTERNALS.as_ptr(), MISSING_IS_OK) })
}

/// Whether an operator that answers a boolean says yes to two values of its types.
pub fn compares(operator: Oid, collation: Oid, left: Datum, right: Datum) -> bool {
    // SAFETY: as the caller promises of the values; the operator is one of an index, which has a function.
    unsafe { pg_sys::OidFunctionCall2Coll(pg_sys::get_opcode(operator), collation, left, right).value() != 0 }
}

/// Has a function called with the memory context as its argument when that is freed or emptied.
pub fn call_when_freed(context: pg_sys::MemoryContext, function: unsafe extern "C-unwind" fn(*mut std::ffi::c_void)) {
    // SAFETY: the entry lives in the context itself, as the server asks, and is filled before it is passed.
    unsafe {
        let size = size_of::<pg_sys::MemoryContextCallback>();
        let entry = pg_sys::MemoryContextAlloc(context, size).cast::<pg_sys::MemoryContextCallback>();
        entry.write(pg_sys::MemoryContextCallback {
            func: Some(function),
            arg: context.cast(),
            next: std::ptr::null_mut(),
        });
        pg_sys::MemoryContextRegisterResetCallback(context, entry);
    }
}

/// The relation of this name in a schema.
pub fn relation_in(schema: Oid, name: &CStr) -> Option<Oid> {
    // SAFETY: it reads the catalog alone.
    valid(unsafe { pg_sys::get_relname_relid(name.as_ptr(), schema) })
}

/// The rights of a relation's owner instead of the caller's, as long as this lives. What is run meanwhile must be
/// statements of this library on tables of this library alone.
pub struct AsOwner {
    user: Oid,
    context: i32,
}

impl AsOwner {
    /// Takes the rights of this relation's owner.
    pub fn of(relation: Oid) -> AsOwner {
        let mut caller = AsOwner { user: pg_sys::InvalidOid, context: 0 };
        // SAFETY: what was in force is kept to be restored; the server also restores it where a transaction or a
        // subtransaction aborts.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut caller.user, &mut caller.context);
            let owner = owner_of(relation).unwrap_or(caller.user);
            let context = caller.context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32;
            pg_sys::SetUserIdAndSecContext(owner, context);
        }
        caller
    }
}

impl Drop for AsOwner {
    fn drop(&mut self) {
        // SAFETY: both were in force before.
        unsafe { pg_sys::SetUserIdAndSecContext(self.user, self.context) };
    }
}

fn owner_of(relation: Oid) -> Option<Oid> {
    // SAFETY: the tuple is checked, read and released; a relation's tuple has this layout.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as _, Datum::from(relation));
        if tuple.is_null() {
            return None;
        }
        let owner = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>()).relowner;
        pg_sys::ReleaseSysCache(tuple);
        Some(owner)
    }
}

/// Raises the server's error when the stack is nearly used up by recursion.
pub fn check_stack_depth() {
    // SAFETY: it raises an error or does nothing.
    unsafe { pg_sys::check_stack_depth() };
}

/// Keeps settings of this prefix from being made up.
pub fn reserve_setting_prefix(prefix: &CStr) {
    // SAFETY: the prefix ends with a NUL and is copied.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}

/// Raises the server's error unless the caller owns the table.
pub fn require_owner(table: Oid, table_name: &CStr) {
    // SAFETY: it reads the catalog, and raises an error or does nothing.
    unsafe {
        #[cfg(feature = "pg15")]
        let owns = pg_sys::pg_class_ownercheck(table, pg_sys::GetUserId());
        #[cfg(not(feature = "pg15"))]
        let owns = pg_sys::object_ownercheck(pg_sys::RelationRelationId, table, pg_sys::GetUserId());
        if !owns {
            pg_sys::aclcheck_error(
                pg_sys::AclResult::ACLCHECK_NOT_OWNER,
                pg_sys::ObjectType::OBJECT_TABLE,
                table_name.as_ptr(),
            );
        }
    }
}

/// An entry of a tuple descriptor.
///
/// # Safety
///
/// The descriptor is valid and has more than `n` entries.
pub unsafe fn attribute(descriptor: pg_sys::TupleDesc, n: i32) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: as the caller promises; the entries lie behind one another, from version 18 on after the compact ones.
    unsafe {
        #[cfg(any(feature = "pg18", feature = "pg19"))]
        let first = {
            let count = usize::try_from((*descriptor).natts).unwrap_or(0);
            (*descriptor).compact_attrs.as_ptr().add(count).cast::<pg_sys::FormData_pg_attribute>()
        };
        #[cfg(not(any(feature = "pg18", feature = "pg19")))]
        let first = (*descriptor).attrs.as_ptr();
        first.add(usize::try_from(n).unwrap_or(0))
    }
}

/// Whether a column has no nulls. A column that is declared NOT NULL can hold them all the same from version 18 on, from
/// before the constraint (NOT VALID).
///
/// # Safety
///
/// The descriptor is that of an open relation and has more than `n` entries.
pub unsafe fn is_never_null(descriptor: pg_sys::TupleDesc, n: i32) -> bool {
    #[cfg(any(feature = "pg18", feature = "pg19"))]
    {
        const IS_VALID: u8 = b'v';
        let n = usize::try_from(n).unwrap_or(0);
        // SAFETY: as the caller promises.
        unsafe { (*(*descriptor).compact_attrs.as_ptr().add(n)).attnullability as u8 == IS_VALID }
    }
    #[cfg(not(any(feature = "pg18", feature = "pg19")))]
    // SAFETY: as the caller promises.
    unsafe {
        (*attribute(descriptor, n)).attnotnull
    }
}

/// A name from the catalog.
pub fn name(name: &pg_sys::NameData) -> CString {
    // SAFETY: a name of the catalog always has a NUL within its 64 bytes.
    owned(unsafe { CStr::from_ptr(name.data.as_ptr()) })
}

/// The name of a schema.
pub fn schema_name(schema: Oid) -> CString {
    // SAFETY: it reads the catalog; a null answer, for a schema that is gone, is not read.
    unsafe {
        let name = pg_sys::get_namespace_name(schema);
        if name.is_null() { CString::default() } else { owned(CStr::from_ptr(name)) }
    }
}

/// A copy on the Rust heap.
pub fn owned(text: &CStr) -> CString {
    text.to_owned()
}

/// The oid, unless it is the one that stands for none.
pub fn valid(oid: Oid) -> Option<Oid> {
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// Does something with the columns of a row type. Where it ends by an error, the server gives the descriptor back.
pub fn with_row_type<T>(row_type: Oid, act: impl FnOnce(pg_sys::TupleDesc) -> T) -> T {
    const NO_MODIFIER: i32 = -1;
    // SAFETY: the descriptor is valid until it is released.
    unsafe {
        let descriptor = pg_sys::lookup_rowtype_tupdesc(row_type, NO_MODIFIER);
        let answer = act(descriptor);
        release_descriptor(descriptor);
        answer
    }
}

/// A row as jsonb, as `to_jsonb()` makes it.
pub fn row_to_jsonb(row: Value) -> Datum {
    const ARGUMENTS: usize = 1;
    // SAFETY: the function finds the type of its argument in the expression that calls it, which is made here; the call
    // has room for one argument. All of it lives as long as the memory context of the call.
    unsafe {
        let typed = pg_sys::makeNullConst(row.type_oid, -1, pg_sys::InvalidOid);
        let arguments = pg_sys::lappend(std::ptr::null_mut(), typed.cast());
        let function = Oid::from(pg_sys::F_TO_JSONB);
        let expression = pg_sys::makeFuncExpr(
            function,
            pg_sys::JSONBOID,
            arguments,
            pg_sys::InvalidOid,
            pg_sys::InvalidOid,
            pg_sys::CoercionForm::COERCE_EXPLICIT_CALL,
        );
        let mut info = pg_sys::FmgrInfo::default();
        pg_sys::fmgr_info(function, &mut info);
        info.fn_expr = expression.cast();
        let size = size_of::<pg_sys::FunctionCallInfoBaseData>() + ARGUMENTS * size_of::<pg_sys::NullableDatum>();
        let call = pg_sys::palloc0(size).cast::<pg_sys::FunctionCallInfoBaseData>();
        (*call).flinfo = &mut info;
        (*call).nargs = ARGUMENTS as i16;
        *(*call).args.as_mut_ptr() = pg_sys::NullableDatum { value: row.datum, isnull: false };
        pg_sys::ffi::pg_guard_ffi_boundary(|| info.fn_addr.map_or(Datum::null(), |run| run(call)))
    }
}

/// Raises the server's error where a row is no value of a domain over its type.
pub fn check_domain(row: Datum, domain: Oid) {
    // SAFETY: the row is a value of the type that the domain is over; nothing is kept for the next check.
    unsafe { pg_sys::domain_check(row, false, domain, std::ptr::null_mut(), std::ptr::null_mut()) };
}

/// Has the server analyse every query anew that this session keeps, when it is run the next time.
pub fn forget_analyses() {
    // SAFETY: it marks entries of a list. Plans that run are kept until they are done.
    unsafe { pg_sys::ResetPlanCache() };
}

/// Gives a descriptor back that was looked up.
///
/// # Safety
///
/// The descriptor comes from `lookup_rowtype_tupdesc` and is not used afterwards.
unsafe fn release_descriptor(descriptor: pg_sys::TupleDesc) {
    // SAFETY: as the caller promises; one that is not counted has a negative count.
    unsafe {
        if (*descriptor).tdrefcount >= 0 {
            pg_sys::DecrTupleDescRefCount(descriptor);
        }
    }
}

/// Whether a table is a temporary one.
pub fn is_temporary(table: Oid) -> bool {
    // SAFETY: it looks the table up; one that is gone is permanent.
    (unsafe { pg_sys::get_rel_persistence(table) }) as u8 == pg_sys::RELPERSISTENCE_TEMP
}

/// Whether there is a relation with this oid.
pub fn relation_exists(relation: Oid) -> bool {
    is_in_cache(pg_sys::SysCacheIdentifier::RELOID as i32, relation)
}

/// Whether there is a database with this oid.
pub fn database_exists(database: u32) -> bool {
    is_in_cache(pg_sys::SysCacheIdentifier::DATABASEOID as i32, Oid::from(database))
}

fn is_in_cache(cache: i32, oid: Oid) -> bool {
    let no_key = Datum::null();
    // SAFETY: the key of both caches is an oid alone.
    unsafe { pg_sys::SearchSysCacheExists(cache as _, Datum::from(oid), no_key, no_key, no_key) }
}

/// What `act` gives, or `None` when the server refused it with an error, which then has no effect. A cancel and the end of
/// the session pass through.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub fn unless_refused<T>(act: impl FnOnce() -> T + std::panic::UnwindSafe + std::panic::RefUnwindSafe) -> Option<T> {
    use pgrx::PgSqlErrorCode::{ERRCODE_ADMIN_SHUTDOWN, ERRCODE_CRASH_SHUTDOWN, ERRCODE_QUERY_CANCELED};
    // SAFETY: a savepoint is begun and ended around the call, on either way out; context and owner are those of before.
    unsafe {
        if pg_sys::IsInParallelMode() {
            return None;
        }
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let back = move || {
            pg_sys::MemoryContextSwitchTo(context);
            pg_sys::CurrentResourceOwner = owner;
        };
        pgrx::PgTryBuilder::new(|| {
            let answer = act();
            pg_sys::ReleaseCurrentSubTransaction();
            Some(answer)
        })
        .catch_others(|cause| {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
            back();
            let code = match &cause {
                pg_sys::panic::CaughtError::PostgresError(report) => Some(report.sql_error_code()),
                _ => None,
            };
            match code {
                Some(ERRCODE_QUERY_CANCELED | ERRCODE_ADMIN_SHUTDOWN | ERRCODE_CRASH_SHUTDOWN) | None => {
                    cause.rethrow()
                }
                Some(_) => None,
            }
        })
        .finally(back)
        .execute()
    }
}

/// Writes a line to the server's log.
pub fn log_line(message: Vec<u8>) {
    report_line(pg_sys::LOG as i32, message, None);
}

/// Writes a line for whoever looks at level DEBUG1, in the log or as a client; nobody else pays for making it.
pub fn debug_line(message: impl FnOnce() -> Vec<u8>) {
    let level = pg_sys::DEBUG1 as i32;
    // SAFETY: it compares settings.
    if unsafe { pg_sys::message_level_is_interesting(level) } {
        report_line(level, message(), None);
    }
}

/// Tells the client something that is no error.
pub fn notice(message: Vec<u8>, hint: Vec<u8>) {
    report_line(pg_sys::NOTICE as i32, message, Some(hint));
}

fn report_line(level: i32, message: Vec<u8>, hint: Option<Vec<u8>>) {
    let (message, hint) = (c_string(message), hint.map(c_string));
    let mut entry = pg_sys::ErrorData {
        elevel: level,
        message: message.as_ptr().cast_mut(),
        hint: hint.as_ref().map_or(std::ptr::null_mut(), |hint| hint.as_ptr().cast_mut()),
        filename: c"pg_fence".as_ptr(),
        funcname: c"pg_fence".as_ptr(),
        ..Default::default()
    };
    // SAFETY: below ERROR the function returns; it copies the strings, which live until then.
    unsafe { pg_sys::ThrowErrorData(&mut entry) };
}

/// Whatever a C callback of the server is given as its argument, when it is given none.
pub const NO_ARGUMENT: Datum = Datum::null();
