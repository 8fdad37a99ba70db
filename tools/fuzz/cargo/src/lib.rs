//! What the fuzz targets check: the protocol crate against plain references, driven by bytes.
//!
//! No fuzzer in here, so that a stable toolchain can run the kept inputs too (`fence/tests/seeds.rs`).
//! Invariant: `run` of each module returns for any bytes, unless the crate is wrong.

pub mod arguments;
pub mod awaits;
pub mod codec;
pub mod input;
pub mod lease;
pub mod queue;
pub mod wheel;
