//! What the server passes to a function that it calls as a trigger.

use crate::server::call::Call;
use crate::server::catalog::{self, RelationName};
use crate::server::stored::Tid;
use crate::server::types::{self, Value};
use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;
use std::marker::PhantomData;

/// The event that a trigger was fired for.
pub(crate) struct TriggerEvent<'c> {
    data: *mut pg_sys::TriggerData,
    call: PhantomData<&'c Call>,
}

/// What fires a trigger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Insert,
    Update,
    Delete,
    Truncate,
}

/// A row of a trigger's event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EventRow {
    /// The row that is written; of an update, as it was before.
    Given,
    /// Of an update, as it is afterwards.
    New,
}

impl<'c> TriggerEvent<'c> {
    /// The event that a function is called for as a trigger; `None` where it is called as something else.
    pub(crate) fn of(call: &'c Call) -> Option<TriggerEvent<'c>> {
        Some(TriggerEvent { data: call.trigger()?, call: PhantomData })
    }

    pub(crate) fn table(&self) -> Oid {
        self.relation().rd_id
    }

    pub(crate) fn table_name(&self) -> RelationName {
        // SAFETY: an open relation has its row of the catalog.
        let form = unsafe { &*self.relation().rd_rel };
        RelationName { schema: catalog::schema_name(form.relnamespace), name: catalog::name(&form.relname) }
    }

    pub(crate) fn command(&self) -> Command {
        // SAFETY: the data lives as long as the call.
        match unsafe { (*self.data).tg_event } & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_TRUNCATE => Command::Truncate,
            pg_sys::TRIGGER_EVENT_UPDATE => Command::Update,
            pg_sys::TRIGGER_EVENT_DELETE => Command::Delete,
            _ => Command::Insert,
        }
    }

    /// The WHEN condition of the trigger, as the text of a node tree.
    pub(crate) fn condition(&self) -> Option<&CStr> {
        let condition = self.trigger().tgqual;
        // SAFETY: the condition is null or a text that lives as long as the call.
        (!condition.is_null()).then(|| unsafe { CStr::from_ptr(condition) })
    }

    /// As in `pg_trigger.tgtype`.
    pub(crate) fn kind(&self) -> i16 {
        self.trigger().tgtype
    }

    /// The value of a column of integers of a row trigger's row; `None` is null. The table has the column, which is
    /// bigint or integer.
    pub(crate) fn integer(&self, row: EventRow, column: i16) -> Option<i64> {
        const SHORT: i16 = size_of::<i32>() as i16;
        // SAFETY: a row trigger has the tuples of its event, rows of its table.
        unsafe {
            let descriptor = self.relation().rd_att;
            let mut is_null = false;
            let datum = pg_sys::htup::heap_getattr(self.tuple(row), i32::from(column), descriptor, &mut is_null);
            let is_short = (*catalog::attribute(descriptor, i32::from(column) - 1)).attlen == SHORT;
            (!is_null).then_some(if is_short { i64::from(datum.value() as i32) } else { datum.value() as i64 })
        }
    }

    /// The value of a column of a row trigger's row, of the type that a domain is over; none where it is null. The table
    /// has the column.
    pub(crate) fn value(&self, row: EventRow, column: i16) -> Option<Value> {
        // SAFETY: as above; the datum is of the column's type, and lives as long as the call.
        unsafe {
            let descriptor = self.relation().rd_att;
            let mut is_null = false;
            let datum = pg_sys::htup::heap_getattr(self.tuple(row), i32::from(column), descriptor, &mut is_null);
            let type_oid = (*catalog::attribute(descriptor, i32::from(column) - 1)).atttypid;
            (!is_null).then(|| Value::new(datum, type_oid).in_base_type())
        }
    }

    /// The type of a column, which the table has; of a domain the type that it is over.
    pub(crate) fn column_type(&self, column: i16) -> Oid {
        // SAFETY: the descriptor of an open relation has an entry for each of its columns.
        types::base_type(unsafe { (*catalog::attribute(self.relation().rd_att, i32::from(column) - 1)).atttypid })
    }

    /// Where the version lies that was written; of an update or a deletion the one before.
    pub(crate) fn tid(&self) -> Tid {
        // SAFETY: a row trigger has the tuple of its event.
        unsafe { (*self.tuple(EventRow::Given)).t_self }
    }

    /// The trigger that is fired.
    pub(crate) fn trigger_oid(&self) -> Oid {
        self.trigger().tgoid
    }

    fn tuple(&self, row: EventRow) -> pg_sys::HeapTuple {
        // SAFETY: a row trigger has the tuples of its event.
        unsafe {
            match row {
                EventRow::Given => (*self.data).tg_trigtuple,
                EventRow::New => (*self.data).tg_newtuple,
            }
        }
    }

    /// The transaction that wrote the row of a row trigger, as its stored version says.
    pub(crate) fn written_by(&self) -> u32 {
        // SAFETY: a row trigger after the event has the tuple of it, a stored one.
        unsafe { (*(*(*self.data).tg_trigtuple).t_data).t_choice.t_heap.t_xmin }.into_inner()
    }

    fn relation(&self) -> &pg_sys::RelationData {
        // SAFETY: the relation of a trigger is open.
        unsafe { &*(*self.data).tg_relation }
    }

    fn trigger(&self) -> &pg_sys::Trigger {
        // SAFETY: a trigger that is fired has its description.
        unsafe { &*(*self.data).tg_trigger }
    }
}
