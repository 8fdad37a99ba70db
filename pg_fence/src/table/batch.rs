//! The rows of a change of many rows, in the order in which they are changed, and how its statement gets them.
//!
//! The statement reads them from the SQL function `given()`, in whose rows each has its number, its fence, its key and its
//! patch. Invariant: the function gives them to the query that the batch is run for, and to nothing that this query calls.

use crate::errors::Refused;
use crate::server::call::{Call, Reply};
use crate::server::session::MainThread;
use crate::server::types::Value;
use crate::table::running;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::RefCell;
use std::ffi::CStr;
use std::rc::Rc;

/// The SQL function of the rows, in the extension's schema of its own.
pub(crate) const FUNCTION: &CStr = c"given";

/// The fields before those of the key.
const NUMBERS: usize = 2;

/// Rows that are changed together, each once.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The types of the fields of a row: its number, its fence, its key, its patch.
    types: Vec<Oid>,
    key_columns: usize,
    /// The fields of all rows, one row after the other.
    values: Vec<Datum>,
    are_null: Vec<bool>,
}

static GIVEN: MainThread<RefCell<Option<Rc<Batch>>>> = MainThread(RefCell::new(None));

impl Batch {
    /// Begins a batch with keys and patches of these types, and room for so many rows.
    pub(crate) fn new(key: &[Oid], patch: impl Iterator<Item = Oid>, rows: usize) -> Batch {
        let numbers = [pg_sys::INT8OID; NUMBERS];
        let types: Vec<Oid> = numbers.into_iter().chain(key.iter().copied()).chain(patch).collect();
        let fields = rows * types.len();
        let (values, are_null) = (Vec::with_capacity(fields), Vec::with_capacity(fields));
        Batch { types, key_columns: key.len(), values, are_null }
    }

    /// Adds a row: its number, its fence, and its key and its patch, each of its type.
    pub(crate) fn push(
        &mut self,
        number: usize,
        fence: i64,
        key: impl Iterator<Item = Datum>,
        patch: impl Iterator<Item = Option<Datum>>,
    ) {
        self.values.extend([Datum::from(number as i64), Datum::from(fence)]);
        self.values.extend(key);
        self.are_null.resize(self.values.len(), false);
        for value in patch {
            self.values.push(value.unwrap_or(Datum::null()));
            self.are_null.push(value.is_none());
        }
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.values.len() / self.types.len()
    }

    /// The number of a row, by its place.
    pub(crate) fn number(&self, row: usize) -> usize {
        self.values[row * self.types.len()].value()
    }

    /// The fence of a row, by its place.
    pub(crate) fn fence(&self, row: usize) -> i64 {
        self.values[row * self.types.len() + 1].value() as i64
    }

    /// A value of the key of a row, by its place.
    pub(crate) fn key_value(&self, row: usize, column: usize) -> Value {
        let field = NUMBERS + column;
        // SAFETY: each value is of its type, and lives as long as the call that made the batch.
        unsafe { Value::new(self.values[row * self.types.len() + field], self.types[field]) }
    }

    /// The rows with these numbers, in the same order.
    pub(crate) fn only(&self, is_wanted: impl Fn(usize) -> bool) -> Batch {
        let (width, types) = (self.types.len(), self.types.clone());
        let mut batch = Batch { types, key_columns: self.key_columns, values: Vec::new(), are_null: Vec::new() };
        for row in (0..self.len()).filter(|&row| is_wanted(self.number(row))) {
            batch.values.extend_from_slice(&self.values[row * width..(row + 1) * width]);
            batch.are_null.extend_from_slice(&self.are_null[row * width..(row + 1) * width]);
        }
        batch
    }

    /// Gives the rows to the query that is run next, as long as the answer lives.
    pub(crate) fn give(self: &Rc<Batch>) -> Given {
        Given(GIVEN.replace(Some(self.clone())))
    }
}

/// Rows are given, until this ends.
#[must_use]
pub(crate) struct Given(Option<Rc<Batch>>);

impl Drop for Given {
    fn drop(&mut self) {
        GIVEN.replace(self.0.take());
    }
}

/// `given()`: the rows of the change that is made by the query which calls this; none for any other. A function or a policy in
/// that query that asks for columns of other types gets none either.
pub(crate) fn given(call: &Call) -> Result<Reply, Refused> {
    let batch = GIVEN.borrow().clone().filter(|_| call.query() == running::running());
    let Some(batch) = batch.filter(|batch| call.expects((1..).zip(batch.types.iter().copied()))) else {
        return Ok(Reply::Nothing);
    };
    let rows = call.rows(None);
    rows.put_all(batch.types.len(), &batch.values, &batch.are_null);
    Ok(Reply::Handed)
}
