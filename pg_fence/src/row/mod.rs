//! The functions that claim, write and reset one row or many, from their arguments to the verdict.
//!
//! Not the statement that is run, which is in `table`, and not the rule, which is `fence::resource`.

pub mod arguments;
pub mod change;
pub mod claim;
pub mod claim_many;
pub mod key;
pub mod literal;
pub mod number;
pub mod patch;
pub mod reset;
pub mod rows;
pub mod update;
