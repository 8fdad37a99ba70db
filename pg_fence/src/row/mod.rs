//! The functions that claim, write and reset one row or many, from their arguments to the verdict.
//!
//! Not the statement that is run, which is in `table`, and not the rule, which is `fence::resource`.

pub(crate) mod arguments;
pub(crate) mod change;
pub(crate) mod claim;
pub(crate) mod claim_many;
pub(crate) mod disclosure;
pub(crate) mod exact;
pub(crate) mod few;
pub(crate) mod insertion;
pub(crate) mod key;
pub(crate) mod keys;
pub(crate) mod literal;
pub(crate) mod many;
pub(crate) mod number;
pub(crate) mod patch;
pub(crate) mod reset;
pub(crate) mod rows;
pub(crate) mod update;
pub(crate) mod write_many;
