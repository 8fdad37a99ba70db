//! The elements of an array.

use crate::server::types::{self, Value};
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::c_void;

/// An array, taken apart. It lives as long as the memory context of the call.
pub(crate) struct Elements {
    element_type: Oid,
    datums: *mut Datum,
    nulls: *mut bool,
    count: usize,
    /// How many dimensions it has; an empty one has none.
    pub(crate) dimensions: i32,
}

impl Elements {
    /// The elements of an array value, flat. `None` when the value is not an array.
    pub(crate) fn of(array: Value) -> Option<Elements> {
        let element_type = types::element_type(types::base_type(array.type_oid()))?;
        let (mut length, mut by_value, mut align) = (0, false, 0);
        let (mut datums, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: the datum is an array of this element type; the server fills two arrays of `count` entries, which
        // live in the memory context of the call.
        unsafe {
            pg_sys::get_typlenbyvalalign(element_type, &mut length, &mut by_value, &mut align);
            let array = pg_sys::pg_detoast_datum(array.datum().cast_mut_ptr()).cast::<pg_sys::ArrayType>();
            pg_sys::deconstruct_array(
                array,
                element_type,
                i32::from(length),
                by_value,
                align,
                &mut datums,
                &mut nulls,
                &mut count,
            );
            let (count, dimensions) = (usize::try_from(count).unwrap_or(0), (*array).ndim);
            Some(Elements { element_type, datums, nulls, count, dimensions })
        }
    }

    /// Frees what they take beside the array itself.
    pub(crate) fn free(self) {
        // SAFETY: the server has made both arrays, and nobody uses them any more.
        unsafe {
            for array in [self.datums.cast::<c_void>(), self.nulls.cast()] {
                if !array.is_null() {
                    pg_sys::pfree(array);
                }
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Each element; a null one is `None`.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Option<Value>> + '_ {
        // SAFETY: both arrays have `count` entries.
        let (datums, nulls) = unsafe {
            match self.count {
                0 => (&[][..], &[][..]),
                count => {
                    (std::slice::from_raw_parts(self.datums, count), std::slice::from_raw_parts(self.nulls, count))
                }
            }
        };
        let type_oid = self.element_type;
        datums.iter().zip(nulls).map(move |(&datum, &is_null)| {
            // SAFETY: each is of the type of elements, and lives as long as the array.
            (!is_null).then(|| unsafe { Value::new(datum, type_oid) })
        })
    }
}
