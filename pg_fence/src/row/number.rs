//! Numbers as keys: one number in every type that can hold it.
//!
//! A number goes from type to type by its digits, which no setting changes. Invariant: what comes out is the same
//! number, or nothing: it is never rounded. A float stands for the shortest number that is read as that float, as the
//! server writes it by default: 0.1 and not 0.1000000000000000055.

use crate::server::types::{self, Input, Value};
use pg_forms::{c_string, integer, is_same_number, shortest};
use pgrx::pg_sys::{self, Oid};

/// Whether values of a type are numbers to this module.
pub(crate) fn is_number(type_oid: Oid) -> bool {
    matches!(
        type_oid,
        pg_sys::INT2OID
            | pg_sys::INT4OID
            | pg_sys::INT8OID
            | pg_sys::OIDOID
            | pg_sys::NUMERICOID
            | pg_sys::FLOAT4OID
            | pg_sys::FLOAT8OID
            | pg_sys::MONEYOID
    )
}

/// The digits of a number: `-12.50`, `NaN`, `Infinity`.
pub(crate) fn digits(number: Value) -> String {
    let datum = number.datum();
    match number.type_oid() {
        pg_sys::INT2OID => (datum.value() as i16).to_string(),
        pg_sys::INT4OID => (datum.value() as i32).to_string(),
        pg_sys::INT8OID => (datum.value() as i64).to_string(),
        pg_sys::OIDOID => (datum.value() as u32).to_string(),
        pg_sys::FLOAT4OID => shortest(f32::from_bits(datum.value() as u32)),
        pg_sys::FLOAT8OID => shortest(f64::from_bits(datum.value() as u64)),
        pg_sys::MONEYOID => digits(types::numeric_of_money(number)),
        _ => number.text().to_string_lossy().into_owned(),
    }
}

/// The number with these digits as a value of a type; `None` where the type has no such number.
pub(crate) fn value_of(digits: &str, type_oid: Oid) -> Option<Value> {
    let read = |text: &str| Input::of(type_oid).value(&c_string(text.into()));
    match type_oid {
        pg_sys::INT2OID => read(&i16::try_from(integer(digits)?).ok()?.to_string()),
        pg_sys::INT4OID => read(&i32::try_from(integer(digits)?).ok()?.to_string()),
        pg_sys::INT8OID => read(&i64::try_from(integer(digits)?).ok()?.to_string()),
        pg_sys::OIDOID => read(&u32::try_from(integer(digits)?).ok()?.to_string()),
        pg_sys::FLOAT4OID => read(&shortest(digits.parse::<f32>().ok()?)).filter(|float| is_same(*float, digits)),
        pg_sys::FLOAT8OID => read(&shortest(digits.parse::<f64>().ok()?)).filter(|float| is_same(*float, digits)),
        pg_sys::MONEYOID => money(digits),
        _ => read(digits),
    }
}

/// Whether a number has these digits.
pub(crate) fn is_same(number: Value, digits: &str) -> bool {
    is_same_number(&self::digits(number), digits)
}

/// A money has as many places after the point as the server's locale says, so the server rounds it.
fn money(digits: &str) -> Option<Value> {
    // Half of what a money holds with two places after the point: above, the server's conversion could end in an error.
    const MAX: f64 = 4.6e16;
    if digits.parse::<f64>().ok()?.abs() > MAX || !digits.parse::<f64>().ok()?.is_finite() {
        return None;
    }
    let exact = value_of(digits, pg_sys::NUMERICOID)?;
    Some(types::money_of_numeric(exact)).filter(|money| is_same(*money, digits))
}
