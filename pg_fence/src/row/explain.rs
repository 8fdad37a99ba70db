//! Why a change reached no row: a plain read of the stored fence, as the caller, judged by the rule in `fence`.
//!
//! Asked only after a change reached none, so it costs nothing otherwise. The read sees what the caller may see, by
//! its rights and its isolation level; it takes no lock.

use crate::errors::Refused;
use crate::row::change::Change;
use crate::table::plans::{self, Values};
use crate::table::statement::Verb;
use fence::resource::Verdict;

/// What was found.
pub struct Found {
    /// The stored fence; `None` is null.
    pub stored: Option<i64>,
    /// What the rule says about it. `Accepted` contradicts a change that reached no row.
    pub verdict: Verdict,
}

/// Reads the row of a change that reached none; `values` are the change's, the key's first. Errors: there is no such row, or none that the caller may see.
pub fn explain(change: &Change, values: &Values) -> Result<Found, Refused> {
    let outcome = plans::run(&change.statement().plain(Verb::Read), values)?;
    if outcome.rows == 0 {
        return Err(change.key.no_row(change.table, change.fence.get() as i64));
    }
    let stored = outcome.fence;
    let verdict = change.verb.step().map_or(Verdict::Accepted, |step| step.judge(stored, change.fence));
    Ok(Found { stored, verdict })
}
