//! Operators, comparison functions and casts, as the catalog lists them.

use crate::server::catalog::valid;
use crate::server::types::Value;
use pg_forms::c_string;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cmp::Ordering;
use std::ffi::CStr;

/// The comparison function of a B-tree operator family for values of one type, ready to be called.
pub(crate) struct Comparison(pg_sys::FmgrInfo);

impl Comparison {
    /// The family's function for values of a type; for a type that the operator class takes as it is, the function of
    /// the class.
    pub(crate) fn of(family: Oid, class_type: Oid, type_oid: Oid) -> Comparison {
        const ORDER: i16 = pg_sys::BTORDER_PROC as i16;
        let mut info = pg_sys::FmgrInfo::default();
        // SAFETY: it reads the catalog; every operator class has this function. What the function keeps for itself
        // lives in the memory context of the call.
        unsafe {
            let own = valid(pg_sys::get_opfamily_proc(family, type_oid, type_oid, ORDER));
            let function = own.unwrap_or_else(|| pg_sys::get_opfamily_proc(family, class_type, class_type, ORDER));
            pg_sys::fmgr_info(function, &mut info);
        }
        Comparison(info)
    }

    /// Orders two values of that type.
    pub(crate) fn compare(&self, one: Value, other: Value, collation: Oid) -> Ordering {
        let info = (&raw const self.0).cast_mut();
        // SAFETY: both are values of the type that the function takes.
        let sign = unsafe { pg_sys::FunctionCall2Coll(info, collation, one.datum(), other.datum()).value() as i32 };
        sign.cmp(&0)
    }
}

/// The equality operator between two types in a B-tree operator family.
pub(crate) fn equality_operator(family: Oid, left: Oid, right: Oid) -> Option<Oid> {
    // SAFETY: it reads the catalog alone.
    valid(unsafe { pg_sys::get_opfamily_member(family, left, right, pg_sys::BTEqualStrategyNumber as i16) })
}

/// Whether an operator's function is immutable.
pub(crate) fn is_immutable(operator: Oid) -> bool {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::op_volatile(operator) as u8 == pg_sys::PROVOLATILE_IMMUTABLE }
}

/// Whether the operator says that two values are equal.
pub(crate) fn are_equal(operator: Oid, left: Value, right: Value, collation: Oid) -> bool {
    // SAFETY: the operator takes values of these types and answers a boolean.
    unsafe {
        pg_sys::OidFunctionCall2Coll(pg_sys::get_opcode(operator), collation, left.datum(), right.datum()).value() != 0
    }
}

/// Whether a value of type interval is less than none.
pub(crate) fn is_negative(interval: Value) -> bool {
    let none = pg_sys::Interval { time: 0, day: 0, month: 0 };
    let none = Datum::from((&raw const none).addr());
    // SAFETY: the function compares two intervals, which it reads.
    unsafe {
        pg_sys::OidFunctionCall2Coll(pg_sys::F_INTERVAL_LT.into(), pg_sys::InvalidOid, interval.datum(), none).value()
            != 0
    }
}

/// Whether two values of one type have the same bytes. What the type's own operator calls equal may differ.
pub(crate) fn have_same_bytes(one: Value, other: Value) -> bool {
    let (mut length, mut by_value) = (0, false);
    // SAFETY: it reads the catalog and fills both; both are values of the type.
    unsafe {
        pg_sys::get_typlenbyval(one.type_oid(), &mut length, &mut by_value);
        pg_sys::datum_image_eq(one.datum(), other.datum(), by_value, i32::from(length))
    }
}

/// The function that casts values of one type to another, where a cast takes one.
pub(crate) fn cast_function(from: Oid, to: Oid) -> Option<Oid> {
    let mut function = pg_sys::InvalidOid;
    let explicit = pg_sys::CoercionContext::COERCION_EXPLICIT;
    // SAFETY: it reads the catalog and fills the oid.
    unsafe { pg_sys::find_coercion_pathway(to, from, explicit, &mut function) };
    valid(function)
}

/// Casts a value by such a function.
pub(crate) fn cast(value: Value, function: Oid, type_oid: Oid) -> Value {
    const NO_MODIFIER: i32 = -1;
    const IS_EXPLICIT: bool = true;
    let (modifier, explicit) = (Datum::from(NO_MODIFIER), Datum::from(IS_EXPLICIT));
    // SAFETY: a cast's function takes the value, and then perhaps a modifier and whether the cast is explicit, and
    // gives a value of the type.
    unsafe {
        let datum = pg_sys::OidFunctionCall3Coll(function, pg_sys::InvalidOid, value.datum(), modifier, explicit);
        Value::new(datum, type_oid)
    }
}

/// `left operator right` in SQL that means exactly this operator, whatever the search path.
pub(crate) fn operator_clause(
    left: Vec<u8>,
    left_type: Oid,
    operator: Oid,
    right: Vec<u8>,
    right_type: Oid,
) -> Vec<u8> {
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
pub(crate) fn operator_schema(operator: Oid) -> Option<Oid> {
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
