//! The query that calls a function which returns rows: which columns it was made for.
//!
//! The server analyses a query once and keeps it, for a prepared statement or in PL/pgSQL. For a query on a table it
//! notes that it must be analysed anew when the table's columns change; for one on a function that returns rows of the
//! table it does not. So the functions look it up in the plan that runs. Invariant: nothing is changed; each node is
//! used as what its tag says.

use crate::server::catalog;
use crate::server::nodes::elements;
use pgrx::pg_sys::{self, NodeTag};
use std::ffi::CStr;

/// How the columns that a query was made for compare with those that the table has now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MadeFor {
    /// They are the same, as far as the query shows.
    These,
    /// The query reads what is there, but the table has a new column or a new name for one: `*` would mean more.
    Older,
    /// It reads a column that was dropped or has another type now.
    Others,
}

/// A row has no more columns.
const MAX_COLUMNS: usize = pg_sys::MaxTupleAttributeNumber as usize;

/// What the query was made for that makes this call.
///
/// # Safety
///
/// The call is under way, of a function that returns rows.
pub(crate) unsafe fn made_for(call: pg_sys::FunctionCallInfo) -> MadeFor {
    // SAFETY: the server passes where the rows go, with the context of the query; a field that is not there is null.
    unsafe {
        let info = (*call).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        let (expression, columns) = ((*(*call).flinfo).fn_expr.cast(), (*info).expectedDesc);
        let state = (*info).econtext.as_ref().and_then(|context| context.ecxt_estate.as_ref());
        let Some(statement) = state.and_then(|state| state.es_plannedstmt.as_ref()) else {
            return MadeFor::These;
        };
        let plans = std::iter::once(statement.planTree.cast()).chain(elements(statement.subplans));
        let scan = plans.into_iter().find_map(|plan| scan_of(plan.cast(), expression));
        scan.map_or(MadeFor::These, |scan| compare(scan, statement, columns))
    }
}

/// The scan of a function, and the number of columns of other functions that come before it in the same scan.
struct FunctionScan {
    scan: *mut pg_sys::FunctionScan,
    function: *mut pg_sys::RangeTblFunction,
    first: usize,
}

unsafe fn scan_of(plan: *mut pg_sys::Plan, call: *mut pg_sys::Node) -> Option<FunctionScan> {
    // SAFETY: plans are trees of nodes, null where there is none.
    unsafe {
        let head = plan.as_ref()?;
        match head.type_ {
            NodeTag::T_FunctionScan => {
                let scan = plan.cast::<pg_sys::FunctionScan>();
                let mut first = 0;
                for function in elements((*scan).functions) {
                    let function = function.cast::<pg_sys::RangeTblFunction>();
                    if (*function).funcexpr == call {
                        return Some(FunctionScan { scan, function, first });
                    }
                    first += usize::try_from((*function).funccolcount).unwrap_or(0);
                }
                None
            }
            NodeTag::T_SubqueryScan => scan_of((*plan.cast::<pg_sys::SubqueryScan>()).subplan, call),
            NodeTag::T_Append => in_list((*plan.cast::<pg_sys::Append>()).appendplans, call),
            NodeTag::T_MergeAppend => in_list((*plan.cast::<pg_sys::MergeAppend>()).mergeplans, call),
            NodeTag::T_CustomScan => in_list((*plan.cast::<pg_sys::CustomScan>()).custom_plans, call),
            _ => scan_of(head.lefttree, call).or_else(|| scan_of(head.righttree, call)),
        }
    }
}

unsafe fn in_list(plans: *mut pg_sys::List, call: *mut pg_sys::Node) -> Option<FunctionScan> {
    // SAFETY: a list of plans.
    unsafe { elements(plans).find_map(|plan| scan_of(plan.cast(), call)) }
}

unsafe fn compare(found: FunctionScan, statement: &pg_sys::PlannedStmt, now: pg_sys::TupleDesc) -> MadeFor {
    // SAFETY: the scan's number is that of its entry in the range table; the names there are strings, one for each
    // column that the function had, an empty one for a column that was dropped by then.
    unsafe {
        let relation = (*found.scan).scan.scanrelid;
        let Some(entry) = elements(statement.rtable).nth(relation as usize - 1) else { return MadeFor::These };
        let entry = &*entry.cast::<pg_sys::RangeTblEntry>();
        let then = usize::try_from((*found.function).funccolcount).unwrap_or(0);
        let count = usize::try_from((*now).natts).unwrap_or(0);
        if then > count || then > MAX_COLUMNS {
            return MadeFor::Others;
        }
        let own_names = entry.alias.as_ref().map_or(0, |alias| elements(alias.colnames).count());
        let mut made_for = MadeFor::These;
        let mut used = [0_u64; MAX_COLUMNS.div_ceil(64)];
        let mut reads_others = false;
        each_variable(&(*found.scan).scan.plan, |var| {
            let place = usize::try_from((*var).varattno).unwrap_or(0).wrapping_sub(found.first + 1);
            if (*var).varno as u32 != relation || place >= then {
                return;
            }
            let column = &*catalog::attribute(now, place as i32);
            reads_others |= column.attisdropped || column.atttypid != (*var).vartype;
            if column.atttypmod != (*var).vartypmod || column.attcollation != (*var).varcollid {
                made_for = MadeFor::Older;
            }
            used[place / 64] |= 1 << (place % 64);
        });
        if reads_others {
            return MadeFor::Others;
        }
        let mut uses_all = true;
        let names = elements((*entry.eref).colnames).skip(found.first).take(then);
        for (place, name) in names.enumerate() {
            let name = CStr::from_ptr((*name.cast::<pg_sys::String>()).sval);
            let is_used = used[place / 64] & (1 << (place % 64)) != 0;
            uses_all &= is_used || name.is_empty();
            let column = &*catalog::attribute(now, place as i32);
            let is_renamed = name != CStr::from_ptr(column.attname.data.as_ptr());
            if is_used && is_renamed && found.first + place >= own_names {
                made_for = MadeFor::Older;
            }
        }
        let has_new = (then..count).any(|n| !(*catalog::attribute(now, n as i32)).attisdropped);
        if uses_all && has_new { MadeFor::Older } else { made_for }
    }
}

/// Does something with each column that a scan reads: most are an entry of their own.
unsafe fn each_variable(plan: &pg_sys::Plan, mut act: impl FnMut(*mut pg_sys::Var)) {
    const THROUGH_ALL: u32 =
        pg_sys::PVC_RECURSE_AGGREGATES | pg_sys::PVC_RECURSE_WINDOWFUNCS | pg_sys::PVC_RECURSE_PLACEHOLDERS;
    // SAFETY: a target list has entries with expressions, the condition is a list of expressions or null.
    unsafe {
        let within = |node: *mut pg_sys::Node| elements(pg_sys::pull_var_clause(node, THROUGH_ALL as i32));
        for entry in elements(plan.targetlist) {
            let expression = (*entry.cast::<pg_sys::TargetEntry>()).expr.cast::<pg_sys::Node>();
            match (*expression).type_ {
                NodeTag::T_Var => act(expression.cast()),
                _ => within(expression).for_each(|var| act(var.cast())),
            }
        }
        if !plan.qual.is_null() {
            within(plan.qual.cast()).for_each(|var| act(var.cast()));
        }
    }
}
