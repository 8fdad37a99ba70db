//! The arguments of a call, read once and by name, and its reply.
//!
//! Nothing is decided here but whether an argument is there. Arguments 0 to 2 of every row function are its target,
//! its key and the fence; the fence column is the last and may be absent.

use crate::errors::Refused;
use crate::server::json::Document;
use crate::server::query::{self, MadeFor};
use crate::server::session;
use crate::server::types::{self, Value};
use crate::table::relation::Table;
use crate::table::tables;
use pgrx::pg_sys::{self, Datum, FunctionCallInfo, Oid};
use std::ffi::{CStr, CString};

/// A call of one of the extension's functions.
pub struct Call(FunctionCallInfo);

/// What a function answers.
pub enum Reply {
    /// Null, or no row at all where a function returns rows.
    Nothing,
    /// Nothing to tell, from a function that returns void.
    Void,
    /// A value.
    Value(Datum),
    /// Rows that have been handed over already.
    Handed,
}

/// Where the rows of a function go that returns several.
pub struct Rows {
    store: *mut pg_sys::Tuplestorestate,
    descriptor: pg_sys::TupleDesc,
    /// The domain over the rows' type, if the query expects one.
    domain: Option<Oid>,
}

/// A cursor may read the rows backwards.
const RANDOM_ACCESS: bool = true;

impl Rows {
    /// Adds a row of these fields, as many as the function's declaration says; `None` is null.
    pub fn put_fields(&self, fields: &[Option<Datum>]) {
        let mut values: Vec<Datum> = fields.iter().map(|field| field.unwrap_or(Datum::null())).collect();
        let mut nulls: Vec<bool> = fields.iter().map(Option::is_none).collect();
        // SAFETY: there is a value of the declared type for each column; the server copies them.
        unsafe {
            pg_sys::tuplestore_putvalues(self.store, self.descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
    }

    /// Where the server keeps them.
    pub fn store(&self) -> *mut pg_sys::Tuplestorestate {
        self.store
    }

    /// Whether each row is checked by the constraints of a domain.
    pub fn are_checked(&self) -> bool {
        self.domain.is_some()
    }

    /// Adds a row, a value of the table's row type.
    pub fn put(&self, row: Datum) {
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

impl Call {
    /// Takes a call.
    ///
    /// # Safety
    ///
    /// It is the call that the server is making of a function with the arguments that its SQL declaration says.
    pub unsafe fn new(info: FunctionCallInfo) -> Call {
        Call(info)
    }

    /// The table whose row type the first argument has.
    pub fn table_of_row_type(&self) -> Result<Oid, Refused> {
        tables::of_row_type(self.type_of(0))
    }

    /// The table that the first argument names.
    pub fn table(&self) -> Result<Oid, Refused> {
        Ok(Oid::from(self.datum(0, "target")?.value() as u32))
    }

    /// A value of any type.
    pub fn value(&self, argument: usize, name: &'static str) -> Result<Value, Refused> {
        Ok(Value { datum: self.datum(argument, name)?, type_oid: self.type_of(argument) })
    }

    /// A bigint, or `None` when it is null.
    pub fn number(&self, argument: usize) -> Option<i64> {
        self.nullable(argument).map(|datum| datum.value() as i64)
    }

    /// A jsonb value.
    pub fn document(&self, argument: usize, name: &'static str) -> Result<Document, Refused> {
        let datum = self.datum(argument, name)?;
        // SAFETY: the argument is declared jsonb and lives as long as the call.
        Ok(unsafe { Document::from_datum(datum) })
    }

    /// The name of the fence column, which is this argument where the call has so many.
    pub fn fence_column(&self, argument: usize) -> Result<&CStr, Refused> {
        // SAFETY: the server says how many arguments there are.
        let count = usize::try_from(unsafe { (*self.0).nargs }).unwrap_or(0);
        if argument >= count {
            return Ok(c"fence");
        }
        let datum = self.datum(argument, "fence_column")?;
        // SAFETY: the argument is declared name: a pointer to 64 bytes with a NUL.
        Ok(unsafe { CStr::from_ptr(datum.cast_mut_ptr()) })
    }

    /// A name, or `None` when it is null.
    pub fn name(&self, argument: usize) -> Option<&CStr> {
        // SAFETY: the argument is declared name: a pointer to 64 bytes with a NUL.
        self.nullable(argument).map(|datum| unsafe { CStr::from_ptr(datum.cast_mut_ptr()) })
    }

    /// A text, or `None` when it is null.
    pub fn text(&self, argument: usize) -> Option<CString> {
        self.nullable(argument).map(|datum| Value { datum, type_oid: pg_sys::TEXTOID }.text())
    }

    /// An oid; the one that stands for none when it is null.
    pub fn oid(&self, argument: usize) -> Oid {
        self.nullable(argument).map_or(pg_sys::InvalidOid, |datum| Oid::from(datum.value() as u32))
    }

    /// The place of a version of a row, or `None` when it is null.
    pub fn place(&self, argument: usize) -> Option<pg_sys::ItemPointerData> {
        // SAFETY: the argument is declared tid: a pointer to such a place.
        self.nullable(argument).map(|datum| unsafe { *datum.cast_mut_ptr::<pg_sys::ItemPointerData>() })
    }

    /// The memory context that the caller's expression lives in: that of its query.
    pub fn query(&self) -> pg_sys::MemoryContext {
        // SAFETY: the server passes what it has looked up of the function.
        unsafe { (*(*self.0).flinfo).fn_mcxt }
    }

    /// A smallint, or `None` when it is null.
    pub fn small_number(&self, argument: usize) -> Option<i16> {
        self.nullable(argument).map(|datum| datum.value() as i16)
    }

    /// The text of a node tree of the catalog, or `None` when it is null.
    pub fn text_of_tree(&self, argument: usize) -> Option<CString> {
        // SAFETY: the argument is declared pg_node_tree, which has the form of a text.
        self.nullable(argument)
            .map(|datum| unsafe { CStr::from_ptr(pg_sys::text_to_cstring(datum.cast_mut_ptr())).to_owned() })
    }

    /// What the server passes to a trigger function; none where the function is called as something else.
    pub fn trigger(&self) -> Option<*mut pg_sys::TriggerData> {
        // SAFETY: a trigger is called with its data in this place, which a tag identifies.
        unsafe {
            let context = (*self.0).context.as_ref()?;
            (context.type_ == pg_sys::NodeTag::T_TriggerData).then_some((&raw const *context).cast_mut().cast())
        }
    }

    /// Begins the rows of a function that returns several.
    pub fn rows(&self) -> Rows {
        // SAFETY: the call is one of a function that returns rows, so the server passed where they go. It takes the
        // store over from there, which must therefore live as long as the query.
        unsafe {
            let info = self.result_info();
            let context = (*(*info).econtext).ecxt_per_query_memory;
            let outer = pg_sys::MemoryContextSwitchTo(context);
            let store = pg_sys::tuplestore_begin_heap(RANDOM_ACCESS, false, pg_sys::work_mem);
            pg_sys::MemoryContextSwitchTo(outer);
            (*info).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*info).setResult = store;
            Rows { store, descriptor: (*info).expectedDesc, domain: None }
        }
    }

    /// Begins the rows of a function that returns rows of a table. Errors: the query was made for other columns than the
    /// table has now: it was prepared before, or has waited for the table's lock since.
    pub fn rows_of(&self, table: &Table) -> Result<Rows, Refused> {
        // SAFETY: the server passes the description of the rows that the query expects.
        let fits = unsafe { table.has_columns((*self.result_info()).expectedDesc) };
        // SAFETY: this call is one of a function that returns rows.
        let made_for = if fits { unsafe { query::made_for(self.0) } } else { MadeFor::Others };
        // Queries without `*` and what is stored in views stay as they are when they are analysed anew, so once is enough.
        let is_refused = match made_for {
            MadeFor::These => false,
            MadeFor::Older => tables::is_news(table),
            MadeFor::Others => true,
        };
        if is_refused {
            session::forget_analyses();
            return Err(Refused::Altered { table: table.name.clone() });
        }
        let domain = Some(self.type_of(0)).filter(|&given| given != table.row_type);
        Ok(Rows { domain, ..self.rows() })
    }

    /// Gives the reply to the server.
    pub fn answer(self, reply: Reply) -> Datum {
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

    fn datum(&self, argument: usize, name: &'static str) -> Result<Datum, Refused> {
        self.nullable(argument).ok_or(Refused::NullArgument(name))
    }

    fn nullable(&self, argument: usize) -> Option<Datum> {
        // SAFETY: the function is declared with at least this many arguments.
        unsafe {
            let argument = &*(*self.0).args.as_ptr().add(argument);
            (!argument.isnull).then_some(argument.value)
        }
    }

    fn type_of(&self, argument: usize) -> Oid {
        // SAFETY: the server finds the type in the expression that makes the call; without one it says none.
        unsafe { types::argument_type((*self.0).flinfo, argument) }
    }
}
