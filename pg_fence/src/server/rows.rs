//! The rows that a function answers, as the server keeps them: in memory, or in a file where they are many.
//!
//! Invariant: each row has the fields that the query expects.

use crate::server::raw;
use crate::server::types::{self, Value};
use pgrx::pg_sys::{self, Datum, Oid};

/// Where the rows of a function go that returns several.
pub(crate) struct Rows {
    store: *mut pg_sys::Tuplestorestate,
    descriptor: pg_sys::TupleDesc,
    /// The domain over the rows' type, if the query expects one.
    domain: Option<Oid>,
}

/// A cursor may read the rows backwards.
const RANDOM_ACCESS: bool = true;

impl Rows {
    /// Begins them, in the current memory context.
    ///
    /// # Safety
    ///
    /// The descriptor is that of their fields, and lives as long as they do.
    pub(crate) unsafe fn new(descriptor: pg_sys::TupleDesc, domain: Option<Oid>) -> Rows {
        // SAFETY: the store is freed with the memory context, or before.
        let store = unsafe { pg_sys::tuplestore_begin_heap(RANDOM_ACCESS, false, pg_sys::work_mem) };
        Rows { store, descriptor, domain }
    }

    /// Adds a row of these fields, as many as the function's declaration says; `None` is null.
    pub(crate) fn put_fields(&self, fields: &[Option<Datum>]) {
        let mut values: Vec<Datum> = fields.iter().map(|field| field.unwrap_or(Datum::null())).collect();
        let mut nulls: Vec<bool> = fields.iter().map(Option::is_none).collect();
        // SAFETY: there is a value of the declared type for each column; the server copies them.
        unsafe {
            pg_sys::tuplestore_putvalues(self.store, self.descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
    }

    /// Adds rows of so many fields each. A cancel ends it.
    pub(crate) fn put_all(&self, width: usize, values: &[Datum], are_null: &[bool]) {
        let rows = values.len().min(are_null.len()) / width;
        // SAFETY: there is a value of the declared type for each column of each row, which the caller has counted; the
        // server copies them. There is one guard for all, and what an error ends holds nothing to drop.
        unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                for row in 0..rows {
                    if pg_sys::InterruptPending != 0 {
                        raw::ProcessInterrupts();
                    }
                    let (values, nulls) = (values.as_ptr().add(row * width), are_null.as_ptr().add(row * width));
                    raw::tuplestore_putvalues(self.store, self.descriptor, values.cast_mut(), nulls.cast_mut());
                }
            });
        }
    }

    /// Rows of the same form, beside these.
    pub(crate) fn aside(&self) -> Rows {
        // SAFETY: as of these.
        unsafe { Rows::new(self.descriptor, self.domain) }
    }

    /// Puts others between these, as often as it is said which comes next: one of the others, or one of these.
    pub(crate) fn merge(&self, others: &Rows, are_others: impl Iterator<Item = bool>) {
        let merged = self.aside();
        // SAFETY: the stores have rows of these fields; each row is copied before the next is read, and no row is read that is
        // not there.
        unsafe {
            let slot = pg_sys::MakeSingleTupleTableSlot(self.descriptor, &pg_sys::TTSOpsMinimalTuple);
            let take = |from: &Rows, to: &Rows| {
                let is_there = pg_sys::tuplestore_gettupleslot(from.store, true, false, slot);
                if is_there {
                    pg_sys::tuplestore_puttupleslot(to.store, slot);
                }
                is_there
            };
            pg_sys::tuplestore_rescan(self.store);
            are_others.for_each(|is_other| _ = take(if is_other { others } else { self }, &merged));
            pg_sys::tuplestore_clear(self.store);
            while take(&merged, self) {}
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            pg_sys::tuplestore_end(merged.store);
            pg_sys::tuplestore_end(others.store);
        }
    }

    /// What describes their fields.
    pub(crate) fn descriptor(&self) -> pg_sys::TupleDesc {
        self.descriptor
    }

    /// Where the server keeps them.
    pub(crate) fn store(&self) -> *mut pg_sys::Tuplestorestate {
        self.store
    }

    /// The domain that checks each row.
    pub(crate) fn domain(&self) -> Option<Oid> {
        self.domain
    }

    /// Whether each row is checked by the constraints of a domain.
    pub(crate) fn are_checked(&self) -> bool {
        self.domain.is_some()
    }

    /// Adds a row of the type that the query expects.
    pub(crate) fn put(&self, row: Value) {
        let row = row.datum();
        if let Some(domain) = self.domain {
            types::check_domain(row, domain);
        }
        // SAFETY: the row is a tuple of the type that the query expects (see `rows_of`); the server copies it.
        unsafe {
            let header = pg_sys::htup::datum_get_heap_tuple_header(row);
            let mut tuple = pg_sys::HeapTupleData {
                t_len: pgrx::varsize_any(header.cast()) as u32,
                t_data: header,
                ..Default::default()
            };
            pg_sys::tuplestore_puttuple(self.store, &mut tuple);
        }
    }
}
