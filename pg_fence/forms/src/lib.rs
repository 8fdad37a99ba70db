//! How PostgreSQL writes names, numbers, arrays and SQLSTATEs.
//!
//! The part of the extension that calls no server, so that its tests need none. Not the rule, which is in `fence`.

#![forbid(unsafe_code)]

mod array;
mod number;
mod numeric;
mod sqlstate;
mod text;

pub use array::{is_json_array, quote_element};
pub use number::{integer, is_same_number, shortest};
pub use numeric::short_integer;
pub use sqlstate::packed_sqlstate;
pub use text::{Identifier, Parameter, Part, c_string, joined};
