//! Types and values of the server: what the catalog says of a type, and how a value is read, written and taken apart.
//!
//! Invariant: a [`Value`] is never null and its datum is of its type.

use crate::server::catalog::{attribute, name, valid};
use crate::server::raw;
use crate::server::text::{Bytes, cut};
use fence::Fence;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::{CStr, CString, c_char};

/// A value that is not null, with its type. It lives as long as the memory context it was made in: that of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    datum: Datum,
    type_oid: Oid,
}

impl Value {
    /// Takes a value.
    ///
    /// # Safety
    ///
    /// The datum is a value of this type, and is read no longer than the memory that it points into lives.
    pub(crate) unsafe fn new(datum: Datum, type_oid: Oid) -> Value {
        Value { datum, type_oid }
    }

    /// A fence as a bigint; it has at most 53 bits.
    pub(crate) fn of_fence(fence: Fence) -> Value {
        Value { datum: Datum::from(fence.get() as i64), type_oid: pg_sys::INT8OID }
    }

    /// A text.
    pub(crate) fn of_text(text: Bytes) -> Value {
        Value { datum: text.datum(), type_oid: pg_sys::TEXTOID }
    }

    pub(crate) fn datum(self) -> Datum {
        self.datum
    }

    pub(crate) fn type_oid(self) -> Oid {
        self.type_oid
    }

    /// The same value as one of the type that its domain is over.
    pub(crate) fn in_base_type(self) -> Value {
        Value { type_oid: base_type(self.type_oid), ..self }
    }

    /// The value in its text form, by the type's output function.
    pub(crate) fn text(self) -> CString {
        if self.type_oid == pg_sys::UNKNOWNOID {
            // SAFETY: a value of type unknown is a C string.
            return unsafe { CStr::from_ptr(self.datum.cast_mut_ptr()) }.to_owned();
        }
        let mut function = pg_sys::InvalidOid;
        let mut is_varlena = false;
        // SAFETY: the datum is a value of this type, so its type's output function may read it.
        unsafe {
            pg_sys::getTypeOutputInfo(self.type_oid, &mut function, &mut is_varlena);
            CStr::from_ptr(pg_sys::OidOutputFunctionCall(function, self.datum)).to_owned()
        }
    }

    /// The value in its text form for an error text, cut where it gets long.
    pub(crate) fn short_text(self) -> Vec<u8> {
        const MAX_BYTES: usize = 200;
        let text = self.text();
        let mut short = cut(&text, MAX_BYTES);
        if short.len() < text.count_bytes() {
            short.extend_from_slice(b"...");
        }
        short
    }

    /// The fields of a row value with their types; a null one is `None`. Columns that were dropped from the row's type
    /// are left out. `None` when the value is not a row.
    pub(crate) fn fields(self) -> Option<Vec<Option<Value>>> {
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
}

/// The input function of a type, ready to be called.
pub(crate) struct Input {
    type_oid: Oid,
    function: pg_sys::FmgrInfo,
    parameter: Oid,
}

impl Input {
    /// Looks the input function up.
    pub(crate) fn of(type_oid: Oid) -> Input {
        let mut function_oid = pg_sys::InvalidOid;
        let mut input = Input { type_oid, function: pg_sys::FmgrInfo::default(), parameter: pg_sys::InvalidOid };
        // SAFETY: what the look-up allocates must live as long as the entry of the cache, so it uses the
        // memory context that lives as long as the backend.
        unsafe {
            pg_sys::getTypeInputInfo(type_oid, &mut function_oid, &mut input.parameter);
            pg_sys::fmgr_info_cxt(function_oid, &mut input.function, pg_sys::CacheMemoryContext);
        }
        input
    }

    /// The value with this text form; none where the type has a function that makes null of it.
    pub(crate) fn value(&self, text: &CStr) -> Option<Value> {
        const NO_MODIFIER: i32 = -1;
        self.value_of(text, NO_MODIFIER)
    }

    /// The same with a modifier of the type, such as the precision of a numeric.
    pub(crate) fn value_of(&self, text: &CStr, typmod: i32) -> Option<Value> {
        self.read(Some(text), typmod).map(|datum| Value { datum, type_oid: self.type_oid })
    }

    /// Reads a value from its text form. A null text gives null, or the error of a domain that forbids it.
    pub(crate) fn read(&self, text: Option<&CStr>, typmod: i32) -> Option<Datum> {
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
pub(crate) unsafe fn argument_type(function: *mut pg_sys::FmgrInfo, argument: usize) -> Oid {
    // SAFETY: as the caller promises.
    unsafe { raw::get_fn_expr_argtype(function, i32::try_from(argument).unwrap_or(i32::MAX)) }
}

/// The name of a type as error texts give it.
pub(crate) fn type_name(type_oid: Oid) -> CString {
    // SAFETY: the function gives a name to any oid.
    unsafe { CStr::from_ptr(pg_sys::format_type_be(type_oid)) }.to_owned()
}

/// The name of a type in SQL, whatever the search path.
pub(crate) fn sql_name(type_oid: Oid) -> CString {
    const NO_MODIFIER: i32 = -1;
    const QUALIFIED: u16 = pg_sys::FORMAT_TYPE_FORCE_QUALIFY as u16;
    // SAFETY: the function gives a name to the oid of any type that is there.
    unsafe { CStr::from_ptr(pg_sys::format_type_extended(type_oid, NO_MODIFIER, QUALIFIED)) }.to_owned()
}

/// The schema of a type.
pub(crate) fn schema_of(type_oid: Oid) -> Option<Oid> {
    // SAFETY: the tuple is checked, read and released; a type's tuple has this layout.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::TYPEOID as _, Datum::from(type_oid));
        if tuple.is_null() {
            return None;
        }
        let schema = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_type>()).typnamespace;
        pg_sys::ReleaseSysCache(tuple);
        Some(schema)
    }
}

/// Whether there is such a type: another session can have dropped it since the query was made.
pub(crate) fn type_exists(type_oid: Oid) -> bool {
    let none = Datum::from(0);
    // SAFETY: it reads the catalog alone.
    unsafe {
        pg_sys::SearchSysCacheExists(pg_sys::SysCacheIdentifier::TYPEOID as _, Datum::from(type_oid), none, none, none)
    }
}

/// The type that a domain is over, or the type itself.
pub(crate) fn base_type(type_oid: Oid) -> Oid {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::getBaseType(type_oid) }
}

/// How many characters a varchar has room for, given its type, which may be a domain, and its column's modifier.
pub(crate) fn max_characters(type_oid: Oid, typmod: i32) -> Option<usize> {
    const HEADER: i32 = size_of::<i32>() as i32;
    let mut modifier = typmod;
    // SAFETY: it reads the catalog alone and fills the modifier, where the type is a domain.
    unsafe { pg_sys::getBaseTypeAndTypmod(type_oid, &mut modifier) };
    usize::try_from(modifier.checked_sub(HEADER)?).ok()
}

/// The element type of an array type.
pub(crate) fn element_type(type_oid: Oid) -> Option<Oid> {
    // SAFETY: it reads the catalog alone.
    valid(unsafe { pg_sys::get_element_type(type_oid) })
}

/// The relation of a composite type, which every table's row type has.
pub(crate) fn relation_of_type(type_oid: Oid) -> Option<Oid> {
    // SAFETY: it reads the catalog alone.
    valid(unsafe { pg_sys::get_typ_typrelid(type_oid) })
}

/// The category of a type, as in `pg_type.typcategory`.
pub(crate) fn type_category(type_oid: Oid) -> u8 {
    let (mut category, mut is_preferred) = (0 as c_char, false);
    // SAFETY: it reads the catalog alone and fills both.
    unsafe { pg_sys::get_type_category_preferred(type_oid, &mut category, &mut is_preferred) };
    category as u8
}

/// Whether a value of the first type is one of the second as it is, without a conversion.
pub(crate) fn is_binary_coercible(from: Oid, to: Oid) -> bool {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::IsBinaryCoercible(from, to) }
}

/// Whether a type stands for a kind of types.
pub(crate) fn is_polymorphic(type_oid: Oid) -> bool {
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
pub(crate) fn array_delimiter(element_type: Oid) -> u8 {
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
pub(crate) fn composite_fields(type_oid: Oid) -> Vec<(CString, Oid)> {
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

/// An array of integers.
pub(crate) fn int_array(numbers: &[i32]) -> Datum {
    const BYTES: i32 = 4;
    const BY_VALUE: bool = true;
    const ALIGNED_AS: c_char = b'i' as c_char;
    let mut elements: Vec<Datum> = numbers.iter().map(|&number| Datum::from(number)).collect();
    let count = i32::try_from(elements.len()).unwrap_or(i32::MAX);
    // SAFETY: there are as many elements, each an integer; the server copies them.
    unsafe {
        let made = pg_sys::construct_array(elements.as_mut_ptr(), count, pg_sys::INT4OID, BYTES, BY_VALUE, ALIGNED_AS);
        Datum::from(made)
    }
}

/// A value of type text.
pub(crate) fn text_datum(bytes: &[u8]) -> Datum {
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    // SAFETY: as many bytes are copied as there are.
    Datum::from(unsafe { pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), length) })
}

/// Does something with the columns of a row type. Where it ends by an error, the server gives the descriptor back.
pub(crate) fn with_row_type<T>(row_type: Oid, act: impl FnOnce(pg_sys::TupleDesc) -> T) -> T {
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
pub(crate) fn row_to_jsonb(row: Value) -> Datum {
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

/// Raises the server's error if a row violates a domain over its type.
pub(crate) fn check_domain(row: Datum, domain: Oid) {
    // SAFETY: the row is a value of the type that the domain is over; nothing is kept for the next check.
    unsafe { pg_sys::domain_check(row, false, domain, std::ptr::null_mut(), std::ptr::null_mut()) };
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

/// A number of type money as a numeric.
pub(crate) fn numeric_of_money(money: Value) -> Value {
    convert(pg_sys::F_NUMERIC_MONEY, money, pg_sys::NUMERICOID)
}

/// A numeric, which is in the range of money, as a money with as many places as the locale says.
pub(crate) fn money_of_numeric(numeric: Value) -> Value {
    convert(pg_sys::F_MONEY_NUMERIC, numeric, pg_sys::MONEYOID)
}

fn convert(function: u32, value: Value, type_oid: Oid) -> Value {
    // SAFETY: the function takes a value of this type and gives one of the other.
    let datum = unsafe { pg_sys::OidFunctionCall1Coll(function.into(), pg_sys::InvalidOid, value.datum) };
    Value { datum, type_oid }
}
