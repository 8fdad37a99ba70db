//! Text as the encoding of the database sees it.

use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

/// A text as its bytes, neither compressed nor elsewhere. It lives as long as the memory of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'c> {
    datum: Datum,
    bytes: &'c [u8],
}

impl<'c> Bytes<'c> {
    /// Takes a text.
    ///
    /// # Safety
    ///
    /// The datum is a text that lives so long, in memory of the call or of a page that is pinned.
    pub(crate) unsafe fn of(datum: Datum) -> Bytes<'c> {
        // SAFETY: as the caller promises; the server unpacks the text into memory of the call where it must.
        unsafe {
            let text = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
            let bytes = std::slice::from_raw_parts(pgrx::vardata_any(text).cast(), pgrx::varsize_any_exhdr(text));
            Bytes { datum: Datum::from(text), bytes }
        }
    }

    /// A new text of these bytes.
    pub(crate) fn copy(bytes: &[u8]) -> Bytes<'c> {
        let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
        // SAFETY: as many bytes are copied as there are, into memory of the call.
        unsafe { Bytes::of(Datum::from(pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), length))) }
    }

    pub(crate) fn bytes(&self) -> &'c [u8] {
        self.bytes
    }

    pub(crate) fn datum(&self) -> Datum {
        self.datum
    }

    /// How many characters it has in the encoding of the database.
    pub(crate) fn characters(&self) -> usize {
        let length = i32::try_from(self.bytes.len()).unwrap_or(i32::MAX);
        // SAFETY: the text is valid in that encoding, and has as many bytes as the length says.
        usize::try_from(unsafe { pg_sys::pg_mbstrlen_with_len(self.bytes.as_ptr().cast(), length) }).unwrap_or(0)
    }
}

/// A hash of bytes, the same in all processes of the server.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    const SEED: u64 = 0;
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    // SAFETY: the hash reads as many bytes as there are.
    unsafe { pg_sys::hash_bytes_extended(bytes.as_ptr(), length, SEED) }
}

/// The text up to a number of bytes, cut between two characters.
pub(crate) fn cut(text: &CStr, max_bytes: usize) -> Vec<u8> {
    let bytes = text.to_bytes();
    let (length, max) = (i32::try_from(bytes.len()).unwrap_or(i32::MAX), i32::try_from(max_bytes).unwrap_or(i32::MAX));
    // SAFETY: the text has as many bytes as the length says.
    let end = unsafe { pg_sys::pg_mbcliplen(text.as_ptr(), length, max) };
    bytes[..usize::try_from(end).unwrap_or(0).min(bytes.len())].to_vec()
}
