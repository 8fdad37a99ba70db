//! Text as the encoding of the database sees it.

use pgrx::pg_sys;
use std::ffi::CStr;

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
