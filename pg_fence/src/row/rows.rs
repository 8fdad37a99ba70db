//! The rows of a table as the answer of a function.

use crate::errors::Refused;
use crate::server::call::Call;
use crate::server::query::MadeFor;
use crate::server::rows::Rows;
use crate::server::session;
use crate::table::relation::Table;
use crate::table::tables;

/// Begins them. Errors: the query was made for other columns than the table has now: it was prepared before, or has
/// waited for the table's lock since.
pub(crate) fn rows_of(call: &Call, table: &Table) -> Result<Rows, Refused> {
    let fits = call.expects(table.columns.iter().map(|column| (column.number, column.type_oid)));
    // Queries without `*` and what is stored in views stay as they are when they are analysed anew, so once is enough.
    let is_refused = match if fits { call.made_for() } else { MadeFor::Others } {
        MadeFor::These => false,
        MadeFor::Older => tables::note_refusal(table),
        MadeFor::Others => true,
    };
    if is_refused {
        session::forget_analyses();
        return Err(Refused::Altered { table: table.name.clone() });
    }
    let target = call.arguments().type_only();
    Ok(call.rows(Some(target).filter(|&given| given != table.row_type)))
}
