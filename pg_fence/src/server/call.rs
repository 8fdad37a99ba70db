//! The arguments of a call, read once and in order, and its reply.
//!
//! The only thing decided here is whether an argument is null.

use crate::errors::Refused;
use crate::server::catalog;
use crate::server::json::Document;
use crate::server::query::{self, MadeFor};
use crate::server::raw;
use crate::server::rows::Rows;
use crate::server::text::Bytes;
use crate::server::types::{self, Value};
use fence::Fence;
use pgrx::pg_sys::{self, Datum, FunctionCallInfo, Oid};
use std::ffi::{CStr, CString};

/// A call of one of the extension's functions.
pub(crate) struct Call(FunctionCallInfo);

/// What a function answers.
pub(crate) enum Reply {
    /// Null, or no row at all where a function returns rows.
    Nothing,
    /// The answer of a function that returns void.
    Void,
    Value(Datum),
    /// Rows that were added already.
    Handed,
}

impl Call {
    /// Takes a call.
    ///
    /// # Safety
    ///
    /// It is the call that the server is making of a function with the arguments that its SQL declaration says.
    pub(crate) unsafe fn new(info: FunctionCallInfo) -> Call {
        Call(info)
    }

    /// The arguments, to be read in the order of the function's declaration.
    pub(crate) fn arguments(&self) -> Arguments<'_> {
        Arguments { call: self, next: 0 }
    }

    /// The memory context that the caller's expression lives in: that of its query.
    pub(crate) fn query(&self) -> pg_sys::MemoryContext {
        // SAFETY: the server passes what it has looked up of the function.
        unsafe { (*(*self.0).flinfo).fn_mcxt }
    }

    /// What the server passes to a trigger function; none where the function is called as something else.
    pub(crate) fn trigger(&self) -> Option<*mut pg_sys::TriggerData> {
        // SAFETY: a trigger is called with its data as the context, which a tag identifies.
        unsafe {
            let context = (*self.0).context.as_ref()?;
            (context.type_ == pg_sys::NodeTag::T_TriggerData).then_some((&raw const *context).cast_mut().cast())
        }
    }

    /// Begins the rows of a function that returns several. They are checked by the constraints of a domain, if the
    /// query expects one over their type.
    pub(crate) fn rows(&self, domain: Option<Oid>) -> Rows {
        // SAFETY: the call is one of a function that returns rows, so the server passed where they go. It takes the
        // store over from there, which must therefore live as long as the query.
        unsafe {
            let info = self.result_info();
            let context = (*(*info).econtext).ecxt_per_query_memory;
            let outer = pg_sys::MemoryContextSwitchTo(context);
            let rows = Rows::new((*info).expectedDesc, domain);
            pg_sys::MemoryContextSwitchTo(outer);
            (*info).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*info).setResult = rows.store();
            rows
        }
    }

    /// Whether the query expects rows of exactly these columns, by number and type.
    pub(crate) fn expects(&self, columns: impl Iterator<Item = (i16, Oid)>) -> bool {
        // SAFETY: the call is one of a function that returns rows, so the server passed the description of those that
        // the query expects, which has as many entries as it says.
        let expected = unsafe {
            let descriptor = (*self.result_info()).expectedDesc;
            (0..(*descriptor).natts).map(move |n| &*catalog::attribute(descriptor, n))
        };
        let expected = expected.filter(|attribute| !attribute.attisdropped);
        expected.map(|attribute| (attribute.attnum, attribute.atttypid)).eq(columns)
    }

    /// What the query was made for.
    pub(crate) fn made_for(&self) -> MadeFor {
        // SAFETY: the call is under way, one of a function that returns rows.
        unsafe { query::made_for(self.0) }
    }

    /// A record of the columns that the function's declaration says; `None` is null.
    pub(crate) fn record(&self, fields: &[Option<Datum>]) -> Reply {
        let mut values: Vec<Datum> = fields.iter().map(|field| field.unwrap_or(Datum::null())).collect();
        let mut nulls: Vec<bool> = fields.iter().map(Option::is_none).collect();
        let mut descriptor: pg_sys::TupleDesc = std::ptr::null_mut();
        // SAFETY: the function is declared with OUT arguments, of which there is a value of the declared type each.
        unsafe {
            pg_sys::get_call_result_type(self.0, std::ptr::null_mut(), &mut descriptor);
            let descriptor = pg_sys::BlessTupleDesc(descriptor);
            let tuple = raw::heap_form_tuple(descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            Reply::Value(raw::HeapTupleHeaderGetDatum((*tuple).t_data))
        }
    }

    /// Whether the call is a CALL after which the transaction may end: COMMIT would be allowed in it.
    pub(crate) fn may_commit(&self) -> bool {
        // SAFETY: a procedure is called with such a context, which a tag identifies.
        unsafe {
            (*self.0).context.as_ref().is_some_and(|context| {
                context.type_ == pg_sys::NodeTag::T_CallContext
                    && !(*(&raw const *context).cast::<pg_sys::CallContext>()).atomic
            })
        }
    }

    /// Gives the reply to the server.
    pub(crate) fn answer(self, reply: Reply) -> Datum {
        // SAFETY: writing the fields of the call that are there for it. Where the function returns rows, the server
        // passes where to say how many follow.
        unsafe {
            let info = self.result_info();
            let returns_rows =
                !info.is_null() && (*info.cast::<pg_sys::Node>()).type_ == pg_sys::NodeTag::T_ReturnSetInfo;
            match reply {
                Reply::Value(datum) => return datum,
                Reply::Void => return Datum::null(),
                Reply::Nothing if returns_rows => (*info).isDone = pg_sys::ExprDoneCond::ExprEndResult,
                Reply::Nothing | Reply::Handed => {}
            }
            (*self.0).isnull = true;
            Datum::null()
        }
    }

    fn result_info(&self) -> *mut pg_sys::ReturnSetInfo {
        // SAFETY: reading a field of the call.
        unsafe { (*self.0).resultinfo.cast() }
    }
}

/// The arguments of a call, read one after the other as the SQL of the function declares them.
pub(crate) struct Arguments<'c> {
    call: &'c Call,
    next: usize,
}

impl<'c> Arguments<'c> {
    /// A relation, by its oid.
    pub(crate) fn table(&mut self, name: &'static str) -> Result<Oid, Refused> {
        self.oid().ok_or(Refused::NullArgument(name))
    }

    /// The type of an argument whose value does not matter.
    pub(crate) fn type_only(&mut self) -> Oid {
        let (argument, _) = self.next();
        self.type_of(argument)
    }

    /// A value of any type.
    pub(crate) fn value(&mut self, name: &'static str) -> Result<Value, Refused> {
        let (argument, datum) = self.next();
        let datum = datum.ok_or(Refused::NullArgument(name))?;
        // SAFETY: the server passes a value of the type that the expression has; it lives as long as the call.
        Ok(unsafe { Value::new(datum, self.type_of(argument)) })
    }

    /// A bigint, or `None` when it is null.
    pub(crate) fn number(&mut self) -> Option<i64> {
        self.datum().map(|datum| datum.value() as i64)
    }

    /// A smallint, or `None` when it is null.
    pub(crate) fn small_number(&mut self) -> Option<i16> {
        self.datum().map(|datum| datum.value() as i16)
    }

    /// An array of bigints.
    pub(crate) fn numbers(&mut self, name: &'static str) -> Result<Value, Refused> {
        let datum = self.datum().ok_or(Refused::NullArgument(name))?;
        // SAFETY: the argument is declared bigint[] and lives as long as the call.
        Ok(unsafe { Value::new(datum, pg_sys::INT8ARRAYOID) })
    }

    /// An oid, or `None` when it is null.
    pub(crate) fn oid(&mut self) -> Option<Oid> {
        self.datum().map(|datum| Oid::from(datum.value() as u32))
    }

    /// The number of a transaction, or `None` when it is null.
    pub(crate) fn transaction(&mut self) -> Option<u32> {
        self.datum().map(|datum| datum.value() as u32)
    }

    /// A jsonb value.
    pub(crate) fn document(&mut self, name: &'static str) -> Result<Document, Refused> {
        let datum = self.datum().ok_or(Refused::NullArgument(name))?;
        // SAFETY: the argument is declared jsonb and lives as long as the call.
        Ok(unsafe { Document::from_datum(datum) })
    }

    /// The name of the fence column, which is the last argument of a function and may be left out.
    pub(crate) fn fence_column(&mut self) -> Result<&'c CStr, Refused> {
        if !self.has_more() {
            return Ok(c"fence");
        }
        self.name().ok_or(Refused::NullArgument("fence_column"))
    }

    /// A text that may be left out, which is the same as an empty one.
    pub(crate) fn text_if_given(&mut self, name: &'static str) -> Result<CString, Refused> {
        if !self.has_more() {
            return Ok(CString::default());
        }
        self.text().map(Value::text).ok_or(Refused::NullArgument(name))
    }

    /// Whether the signature that is called has another argument.
    pub(crate) fn has_more(&self) -> bool {
        // SAFETY: the server says how many arguments there are.
        let count = usize::try_from(unsafe { (*self.call.0).nargs }).unwrap_or(0);
        self.next < count
    }

    /// A name, or `None` when it is null.
    pub(crate) fn name(&mut self) -> Option<&'c CStr> {
        // SAFETY: the argument is declared name: a pointer to 64 bytes with a NUL, which live as long as the call.
        self.datum().map(|datum| unsafe { CStr::from_ptr(datum.cast_mut_ptr()) })
    }

    /// A text, or `None` when it is null.
    pub(crate) fn text(&mut self) -> Option<Value> {
        // SAFETY: the argument is declared text and lives as long as the call.
        self.datum().map(|datum| unsafe { Value::new(datum, pg_sys::TEXTOID) })
    }

    /// A text as its bytes, or `None` when it is null.
    pub(crate) fn bytes(&mut self) -> Option<Bytes<'c>> {
        // SAFETY: the argument is declared text and lives as long as the call.
        self.datum().map(|datum| unsafe { Bytes::of(datum) })
    }

    /// A boolean, or `None` when it is null.
    pub(crate) fn truth(&mut self) -> Option<bool> {
        self.datum().map(|datum| datum.value() & 0xff != 0)
    }

    /// The text of a node tree of the catalog, or `None` when it is null.
    pub(crate) fn text_of_tree(&mut self) -> Option<CString> {
        // SAFETY: the argument is declared pg_node_tree, which has the form of a text.
        self.datum().map(|datum| unsafe { CStr::from_ptr(pg_sys::text_to_cstring(datum.cast_mut_ptr())).to_owned() })
    }

    /// The tid of a version of a row, or `None` when it is null.
    pub(crate) fn tid(&mut self) -> Option<pg_sys::ItemPointerData> {
        // SAFETY: the argument is declared tid: a pointer to such a value.
        self.datum().map(|datum| unsafe { *datum.cast_mut_ptr::<pg_sys::ItemPointerData>() })
    }

    /// Passes an argument over.
    pub(crate) fn skip(&mut self) {
        self.next += 1;
    }

    fn datum(&mut self) -> Option<Datum> {
        let (_, datum) = self.next();
        datum
    }

    fn next(&mut self) -> (usize, Option<Datum>) {
        let argument = self.next;
        self.next += 1;
        // SAFETY: the function is declared with at least this many arguments.
        let given = unsafe { &*(*self.call.0).args.as_ptr().add(argument) };
        (argument, (!given.isnull).then_some(given.value))
    }

    fn type_of(&self, argument: usize) -> Oid {
        // SAFETY: the server finds the type in the expression that makes the call; without one it says none.
        unsafe { types::argument_type((*self.call.0).flinfo, argument) }
    }
}

impl From<Datum> for Reply {
    fn from(datum: Datum) -> Reply {
        Reply::Value(datum)
    }
}

impl From<Fence> for Reply {
    /// A bigint; a fence has at most 53 bits.
    fn from(fence: Fence) -> Reply {
        Reply::Value(Datum::from(fence.get() as i64))
    }
}

macro_rules! replies {
    ($($number:ty),+) => { $(
        impl From<$number> for Reply {
            fn from(value: $number) -> Reply {
                Reply::Value(Datum::from(value))
            }
        }
    )+ };
}
replies!(bool, i16, i32, i64);

impl<T: Into<Reply>> From<Option<T>> for Reply {
    /// Null where there is nothing.
    fn from(value: Option<T>) -> Reply {
        value.map_or(Reply::Nothing, T::into)
    }
}
