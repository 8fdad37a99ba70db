//! What is read of the answer of a statement, while the server's executor runs it.
//!
//! The server calls a receiver with each row. Invariant: what it calls raises the server's errors without a guard, so nothing
//! in there may have a destructor.

use crate::server::catalog;
use crate::server::raw;
use crate::server::rows::Rows;
use crate::server::text::Bytes;
use pgrx::pg_sys::{self, Datum, Oid, ffi::pg_guard_ffi_boundary};
use std::ffi::c_int;

/// The fields of the one row of an answer that are read, by their index, from 0.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// A bigint.
    pub(crate) number: Option<usize>,
    /// A text.
    pub(crate) text: Option<usize>,
    /// The other fields, as a row.
    pub(crate) row: WantedRow<'a>,
}

/// What becomes of the fields of the row.
#[derive(Clone, Copy)]
pub(crate) enum WantedRow<'a> {
    None,
    /// All fields are added to the store, as they are, which takes rows of these columns.
    Stored(*mut pg_sys::Tuplestorestate, pg_sys::TupleDesc),
    /// The fields from this index on become a value of a row type.
    Formed {
        first: usize,
        /// The columns of the row type; the fields are those that were not dropped, in order.
        descriptor: pg_sys::TupleDesc,
    },
    /// This is done with each row of the answer.
    Each(*mut EachRow<'a>),
}

impl WantedRow<'_> {
    /// Whether rows of these columns have the fields that are wanted: one for each column that was not dropped, of its type.
    ///
    /// # Safety
    ///
    /// The descriptors are the server's, and what is pointed to is there.
    pub(crate) unsafe fn fits(self, row: pg_sys::TupleDesc) -> bool {
        // SAFETY: as the caller promises; a descriptor has as many columns as it says.
        unsafe {
            let (first, wanted) = match self {
                WantedRow::None => return true,
                WantedRow::Stored(_, descriptor) => (0, descriptor),
                WantedRow::Formed { first, descriptor } => (first, descriptor),
                WantedRow::Each(each) => match &(*each).store {
                    Some(store) => ((*each).first(), store.descriptor),
                    None => return true,
                },
            };
            let columns = |of: pg_sys::TupleDesc| (0..(*of).natts).map(move |n| &*catalog::attribute(of, n));
            let given = columns(row).skip(first).map(|column| column.atttypid);
            given.eq(columns(wanted).filter(|column| !column.attisdropped).map(|column| column.atttypid))
        }
    }
}

/// What is read of every row of an answer that begins with the number of the row.
pub(crate) struct EachRow<'a> {
    /// Whether a fence follows, a bigint.
    pub(crate) fence: bool,
    /// Whether its owner follows, a text.
    pub(crate) owner: bool,
    /// Whether it follows whether the version is of this life, a boolean.
    pub(crate) life: bool,
    /// Where the other fields are added.
    pub(crate) store: Option<RowStore>,
    pub(crate) reached: &'a mut Vec<Reached>,
}

impl EachRow<'_> {
    fn owner_field(&self) -> usize {
        1 + usize::from(self.fence)
    }

    fn life_field(&self) -> usize {
        self.owner_field() + usize::from(self.owner)
    }

    /// The index of the first of the other fields.
    fn first(&self) -> usize {
        self.life_field() + usize::from(self.life)
    }
}

/// A row that a statement on many has reached. There can be a million of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    number: u32,
    is_fence_null: bool,
    /// Whether the version is of this life, as far as that was asked.
    pub(crate) is_of_this_life: bool,
    fence: i64,
    /// The owner that was answered, a text in the memory context of the caller; null as a pointer.
    owner: Datum,
}

impl Reached {
    /// Its number in the batch.
    pub(crate) fn number(&self) -> usize {
        self.number as usize
    }

    /// The fence that was answered; `None` is null.
    pub(crate) fn fence(&self) -> Option<i64> {
        (!self.is_fence_null).then_some(self.fence)
    }

    /// The owner that was answered; `None` is null.
    pub(crate) fn owner(&self) -> Option<Bytes<'_>> {
        // SAFETY: the text lives as long as the call.
        (!self.owner.is_null()).then(|| unsafe { Bytes::of(self.owner) })
    }
}

/// Where the rows go that a statement on many answers.
pub(crate) struct RowStore {
    store: *mut pg_sys::Tuplestorestate,
    descriptor: pg_sys::TupleDesc,
    domain: Option<Oid>,
}

impl RowStore {
    /// Adds them to these.
    pub(crate) fn of(rows: &Rows) -> RowStore {
        RowStore { store: rows.store(), descriptor: rows.descriptor(), domain: rows.domain() }
    }
}

/// What a plan answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// How many rows it reached.
    pub(crate) rows: u64,
    /// The number of the first row.
    pub(crate) number: Option<i64>,
    /// The text of the first row, in the memory context of the caller.
    pub(crate) text: Option<Datum>,
    /// The value that was formed of the first row, in the memory context of the caller.
    pub(crate) row: Option<Datum>,
    /// Whether its fields are those that the wanted row has. If not, none was read.
    pub(crate) fits: bool,
}

/// Takes the first row of an answer, or each.
#[repr(C)]
pub(crate) struct Receiver<'a> {
    head: pg_sys::DestReceiver,
    wanted: Wanted<'a>,
    context: pg_sys::MemoryContext,
    is_first: bool,
    pub(crate) answered: Answered,
}

impl Receiver<'_> {
    /// The columns of the answer are checked unless the plan is one that has answered such rows before, and still holds.
    pub(crate) fn new(wanted: Wanted, is_checked: bool) -> Receiver {
        let head = pg_sys::DestReceiver {
            receiveSlot: Some(receive),
            rStartup: Some(if is_checked { start_checked } else { start }),
            rShutdown: Some(end),
            rDestroy: Some(end),
            mydest: pg_sys::CommandDest::DestNone,
        };
        // SAFETY: reading a variable of the backend.
        let context = unsafe { pg_sys::CurrentMemoryContext };
        let answered = Answered { rows: 0, number: None, text: None, row: None, fits: true };
        Receiver { head, wanted, context, is_first: true, answered }
    }
}

unsafe extern "C-unwind" fn start(_receiver: *mut pg_sys::DestReceiver, _operation: c_int, _row: pg_sys::TupleDesc) {}

/// Checks the columns of the answer. What the caller read of the table may be old: planning, and reading the arguments, can call
/// functions that alter it.
unsafe extern "C-unwind" fn start_checked(
    receiver: *mut pg_sys::DestReceiver,
    _operation: c_int,
    row: pg_sys::TupleDesc,
) {
    // SAFETY: the server passes the receiver that it was given and the columns of its rows.
    unsafe {
        let receiver = &mut *receiver.cast::<Receiver>();
        receiver.answered.fits = receiver.wanted.row.fits(row);
    }
}

unsafe extern "C-unwind" fn end(_receiver: *mut pg_sys::DestReceiver) {}

unsafe extern "C-unwind" fn receive(slot: *mut pg_sys::TupleTableSlot, receiver: *mut pg_sys::DestReceiver) -> bool {
    const GO_ON: bool = true;
    // SAFETY: the server passes the receiver that it was given and a row with the fields that are wanted.
    unsafe {
        let receiver = &mut *receiver.cast::<Receiver>();
        if !receiver.answered.fits {
            return GO_ON;
        }
        if let WantedRow::Each(each) = receiver.wanted.row {
            receive_each(slot, &mut *each, receiver.context);
            return GO_ON;
        }
        if !std::mem::replace(&mut receiver.is_first, false) {
            return GO_ON;
        }
        if let Some(index) = receiver.wanted.number {
            load(slot, index as c_int + 1);
            let is_null = *(*slot).tts_isnull.add(index);
            receiver.answered.number = (!is_null).then(|| (*(*slot).tts_values.add(index)).value() as i64);
        }
        if let Some(index) = receiver.wanted.text {
            receiver.answered.text = copy_of_text(slot, index, receiver.context);
        }
        match receiver.wanted.row {
            WantedRow::None | WantedRow::Each(_) => {}
            WantedRow::Stored(store, _) => raw::tuplestore_puttupleslot(store, slot),
            WantedRow::Formed { first, descriptor } => {
                load(slot, (*(*slot).tts_tupleDescriptor).natts);
                let executors = pg_sys::CurrentMemoryContext;
                pg_sys::CurrentMemoryContext = receiver.context;
                let (values, nulls) = ((*slot).tts_values.add(first), (*slot).tts_isnull.add(first));
                receiver.answered.row = Some(form_unguarded(descriptor, values, nulls));
                pg_sys::CurrentMemoryContext = executors;
            }
        }
        GO_ON
    }
}

/// Reads a row of the answer of a statement on many.
unsafe fn receive_each(slot: *mut pg_sys::TupleTableSlot, each: &mut EachRow, context: pg_sys::MemoryContext) {
    // SAFETY: the row has the fields that are wanted. What is formed is freed after it was copied.
    unsafe {
        load(slot, (*(*slot).tts_tupleDescriptor).natts);
        let field = |index: usize| (!*(*slot).tts_isnull.add(index)).then(|| *(*slot).tts_values.add(index));
        let number = field(0).map_or(u32::MAX, |datum| datum.value() as u32);
        let fence = if each.fence { field(1).map(|datum| datum.value() as i64) } else { None };
        let (owner, life) = (each.owner_field(), each.life_field());
        let owner = if each.owner { copy_of_text(slot, owner, context) } else { None }.unwrap_or(Datum::null());
        let is_of_this_life = !each.life || field(life).is_some_and(|datum| datum.value() & 0xff != 0);
        let (is_fence_null, fence) = (fence.is_none(), fence.unwrap_or_default());
        each.reached.push(Reached { number, is_fence_null, is_of_this_life, fence, owner });
        let Some(store) = &each.store else { return };
        let first = each.first();
        let (values, nulls) = ((*slot).tts_values.add(first), (*slot).tts_isnull.add(first));
        let (values, nulls) = with_dropped(store.descriptor, values, nulls);
        if let Some(domain) = store.domain {
            let tuple = raw::heap_form_tuple(store.descriptor, values, nulls);
            let row = raw::HeapTupleHeaderGetDatum((*tuple).t_data);
            raw::domain_check(row, false, domain, std::ptr::null_mut(), std::ptr::null_mut());
            raw::heap_freetuple(tuple);
        }
        raw::tuplestore_putvalues(store.store, store.descriptor, values, nulls);
        raw::pfree(values.cast());
        raw::pfree(nulls.cast());
    }
}

/// A copy of a text of a row, in a memory context; `None` is null.
unsafe fn copy_of_text(
    slot: *mut pg_sys::TupleTableSlot,
    index: usize,
    context: pg_sys::MemoryContext,
) -> Option<Datum> {
    // SAFETY: the row has such a field.
    unsafe {
        load(slot, index as c_int + 1);
        if *(*slot).tts_isnull.add(index) {
            return None;
        }
        let executors = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = context;
        let copy = raw::pg_detoast_datum_copy((*(*slot).tts_values.add(index)).cast_mut_ptr());
        pg_sys::CurrentMemoryContext = executors;
        Some(Datum::from(copy))
    }
}

/// Makes the first fields of a row readable.
unsafe fn load(slot: *mut pg_sys::TupleTableSlot, count: c_int) {
    // SAFETY: the row has so many fields.
    unsafe {
        if c_int::from((*slot).tts_nvalid) < count {
            raw::slot_getsomeattrs_int(slot, count);
        }
    }
}

/// A value of a row type, in the current memory context, from a field for each of its columns that was not dropped.
///
/// # Safety
///
/// There are as many values and marks of null as there are such columns, each of the column's type.
pub(crate) unsafe fn form(descriptor: pg_sys::TupleDesc, values: *const Datum, nulls: *const bool) -> Datum {
    // SAFETY: as the caller promises; the closure holds nothing to drop.
    unsafe { pg_guard_ffi_boundary(|| form_unguarded(descriptor, values, nulls)) }
}

unsafe fn form_unguarded(descriptor: pg_sys::TupleDesc, values: *const Datum, nulls: *const bool) -> Datum {
    // SAFETY: see `form`. The server copies the fields, also those that lie outside of their row.
    unsafe {
        let (values, nulls) = with_dropped(descriptor, values, nulls);
        let tuple = raw::heap_form_tuple(descriptor, values, nulls);
        raw::HeapTupleHeaderGetDatum((*tuple).t_data)
    }
}

/// The fields with nulls in between for the columns that were dropped, in the current memory context.
unsafe fn with_dropped(
    descriptor: pg_sys::TupleDesc,
    values: *const Datum,
    nulls: *const bool,
) -> (*mut Datum, *mut bool) {
    // SAFETY: there are as many values and marks of null as columns that were not dropped.
    unsafe {
        let count = usize::try_from((*descriptor).natts).unwrap_or(0);
        let all_values = raw::palloc(count * size_of::<Datum>()).cast::<Datum>();
        let all_nulls = raw::palloc(count * size_of::<bool>()).cast::<bool>();
        let mut field = 0;
        for n in 0..count {
            let is_dropped = (*catalog::attribute(descriptor, n as c_int)).attisdropped;
            *all_nulls.add(n) = is_dropped || *nulls.add(field);
            *all_values.add(n) = if is_dropped { Datum::null() } else { *values.add(field) };
            field += usize::from(!is_dropped);
        }
        (all_values, all_nulls)
    }
}
