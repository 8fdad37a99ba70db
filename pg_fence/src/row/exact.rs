//! Which texts the input function of a type keeps, and which it cuts or rounds without an error: those name no key.
//!
//! Not the modifier of a column: a key is read without it. What SQL leaves out of a text of the type by its own rules, such
//! as the time zone of a `timestamp`, is no part of the value.

use crate::row::number;
use crate::server::types::{Input, Value};
use pg_forms::c_string;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Bytes of a name, without the NUL.
const MAX_NAME: usize = pg_sys::NAMEDATALEN as usize - 1;
/// A timestamp counts microseconds.
const PLACES_OF_SECOND: usize = 6;
const US_PER_DAY: i64 = 24 * 60 * 60 * 1_000_000;

/// Whether the value, which the input function of its type has made of the text, is what the text says.
pub(crate) fn is_kept(value: Value, text: &CStr) -> bool {
    let bytes = text.to_bytes();
    match value.type_oid() {
        pg_sys::NAMEOID => bytes.len() <= MAX_NAME,
        pg_sys::CHAROID => is_char(bytes),
        pg_sys::FLOAT4OID | pg_sys::FLOAT8OID | pg_sys::MONEYOID | pg_sys::OIDOID => is_number(value, bytes),
        pg_sys::DATEOID => !bytes.contains(&b':') || is_midnight(text),
        pg_sys::TIMESTAMPOID | pg_sys::TIMESTAMPTZOID | pg_sys::TIMEOID | pg_sys::TIMETZOID => {
            is_in_microseconds(bytes)
        }
        // A part of an hour can have many places.
        pg_sys::INTERVALOID => bytes.iter().any(u8::is_ascii_alphabetic) || is_in_microseconds(bytes),
        _ => true,
    }
}

/// Type `"char"` is one byte, or `\` and its three octal digits.
fn is_char(text: &[u8]) -> bool {
    let is_octal = |digits: &[u8]| digits.iter().all(|digit| (b'0'..=b'7').contains(digit));
    text.len() <= 1 || matches!(text, [b'\\', digits @ ..] if digits.len() == 3 && is_octal(digits))
}

/// Whether the number is the one with these digits. What is no plain number (`Infinity`, `$1.50`) is taken as it was read.
fn is_number(value: Value, text: &[u8]) -> bool {
    let text = text.trim_ascii();
    let is_plain = text.iter().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(byte));
    if !is_plain || !text.iter().any(u8::is_ascii_digit) {
        return true;
    }
    let exact = Input::of(pg_sys::NUMERICOID).value(&c_string(text.to_vec()));
    exact.is_some_and(|exact| number::is_same(value, &number::digits(exact)))
}

/// Whether a text of a date and a time of day is of the day's begin.
fn is_midnight(text: &CStr) -> bool {
    let read = Input::of(pg_sys::TIMESTAMPOID).value(text);
    read.is_some_and(|timestamp| timestamp.datum().value() as i64 % US_PER_DAY == 0)
}

/// Whether no digit but zeros stands behind the sixth place after a point.
fn is_in_microseconds(text: &[u8]) -> bool {
    text.split(|&byte| byte == b'.').skip(1).all(|places| {
        let mut digits = places.iter().take_while(|byte| byte.is_ascii_digit()).skip(PLACES_OF_SECOND);
        digits.all(|&digit| digit == b'0')
    })
}
