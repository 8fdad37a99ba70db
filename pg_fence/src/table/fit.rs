//! How values of a type are compared with a column of a primary key.

use pgrx::pg_sys::Oid;

/// How values of a type are compared with a key column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    /// The operator, of the primary key's operator family.
    pub(crate) operator: Oid,
    /// The type of the value that is compared.
    pub(crate) value_type: Oid,
    /// How that value is made.
    pub(crate) way: Way,
}

/// How the value that is compared is made of what the caller passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// It is the value as it is.
    AsIs,
    /// It is the same number in another type.
    Number,
    /// It is read from the text form.
    Text,
    /// It is cast. The operator between both types says whether something was lost: it is not in the statement, as its
    /// function is not immutable.
    Cast { function: Oid, operator: Oid },
}
