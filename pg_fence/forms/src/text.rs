//! Text for the server, put together from bytes.
//!
//! Names come in the encoding of the database, which need not be UTF-8, so neither SQL nor error texts are ever built
//! as a Rust string. The macro `text!` joins its parts into one byte vector.

use fence::Fence;
use std::ffi::{CStr, CString};

/// A part of a text.
pub trait Part {
    /// Appends this part.
    fn put(&self, text: &mut Vec<u8>);
}

/// A name as an SQL identifier, always in quotes.
pub struct Identifier<'a>(pub &'a CStr);

/// The parameter with this number (from 1) in an SQL text.
pub struct Parameter(pub usize);

/// Joins parts (texts, names, numbers, identifiers) into a `Vec<u8>`.
#[macro_export]
macro_rules! text {
    ($($part:expr),+ $(,)?) => {{
        let mut text: Vec<u8> = Vec::with_capacity(64);
        $( $crate::Part::put(&$part, &mut text); )+
        text
    }};
}

/// The text as a C string. A NUL cannot come from a name or a value of the server; if it did, the text ends there.
pub fn c_string(text: Vec<u8>) -> CString {
    CString::new(text).unwrap_or_else(|err| {
        let end = err.nul_position();
        let mut text = err.into_vec();
        text.truncate(end);
        CString::new(text).unwrap_or_default()
    })
}

/// Joins the parts of a list with `between`.
pub fn joined<P: Part>(parts: impl IntoIterator<Item = P>, between: &str) -> Vec<u8> {
    let mut text = Vec::new();
    for (n, part) in parts.into_iter().enumerate() {
        if n > 0 {
            between.put(&mut text);
        }
        part.put(&mut text);
    }
    text
}

impl Part for &str {
    fn put(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(self.as_bytes());
    }
}

impl Part for &[u8] {
    fn put(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(self);
    }
}

impl Part for Vec<u8> {
    fn put(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(self);
    }
}

impl Part for &CStr {
    fn put(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(self.to_bytes());
    }
}

impl Part for &CString {
    fn put(&self, text: &mut Vec<u8>) {
        self.as_c_str().put(text);
    }
}

impl Part for CString {
    fn put(&self, text: &mut Vec<u8>) {
        self.as_c_str().put(text);
    }
}

impl Part for Identifier<'_> {
    fn put(&self, text: &mut Vec<u8>) {
        text.push(b'"');
        // No server encoding uses the byte of a quote inside a longer character.
        for &byte in self.0.to_bytes() {
            if byte == b'"' {
                text.push(b'"');
            }
            text.push(byte);
        }
        text.push(b'"');
    }
}

impl Part for Parameter {
    fn put(&self, text: &mut Vec<u8>) {
        text.push(b'$');
        self.0.put(text);
    }
}

macro_rules! number_parts {
    ($($number:ty),+) => { $(
        impl Part for $number {
            fn put(&self, text: &mut Vec<u8>) {
                text.extend_from_slice(self.to_string().as_bytes());
            }
        }
    )+ };
}
number_parts!(i64, u64, u32, i32, usize, Fence);

#[cfg(test)]
mod tests {
    use super::{Identifier, Parameter, c_string, joined};
    use fence::Fence;

    #[test]
    fn an_identifier_is_quoted_whatever_is_in_it() {
        assert_eq!(text![Identifier(c"fence")], b"\"fence\"");
        assert_eq!(text![Identifier(c"a\"b\"\"c; --")], b"\"a\"\"b\"\"\"\"c; --\"");
        assert_eq!(text![Identifier(c"")], b"\"\"");
    }

    #[test]
    fn bytes_of_any_encoding_stay_as_they_are() {
        let latin1 = c_string(vec![0xE9]);
        assert_eq!(text![Identifier(&latin1)], [b'"', 0xE9, b'"']);
    }

    #[test]
    fn parts_are_joined_in_order() {
        let fence = Fence::new(7).unwrap();
        assert_eq!(text!["a ", Parameter(2), " = ", -5_i64, &b" b"[..], c" c", fence], b"a $2 = -5 b c7");
        assert_eq!(joined(["a", "b", "c"], ", "), b"a, b, c");
        assert_eq!(joined(Vec::<&str>::new(), ", "), b"");
    }

    #[test]
    fn a_text_ends_at_a_nul() {
        assert_eq!(c_string(b"ab\0cd".to_vec()).as_c_str(), c"ab");
        assert_eq!(c_string(Vec::new()).as_c_str(), c"");
    }
}
