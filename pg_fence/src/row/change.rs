//! One change of one row under a fence: try it, and if it reached no row find out why.
//!
//! The rule itself is in `fence`; here is when it is asked. Invariants: `Ok(None)` means that a newer fence is stored
//! and nothing else; every other reason is a refusal of its own. A refused change changes nothing, as its error ends
//! the statement of the caller.

use crate::errors::{FenceProblem, Refused, UnfencedWrite};
use crate::protect::passes::OwnPass;
use crate::row::explain::explain;
use crate::row::key::Key;
use crate::row::patch::Patch;
use crate::server;
use crate::server::call::Rows;
use crate::server::text::text;
use crate::settings;
use crate::stats::counters::Counter;
use crate::stats::{self, Subject};
use crate::table::plans::{self, Outcome, RowAs, Values};
use crate::table::relation::{Column, Table};
use crate::table::statement::{Answer, Statement, Verb};
use fence::resource::Verdict;
use fence::{Fence, FenceLimits, FenceRefused};
use pgrx::pg_sys::{self, Datum};

/// How often a change is tried when it reaches no row although the stored fence accepts it. The row can have been
/// deleted and inserted again in between; a policy or a trigger that blocks it does so each time.
const MAX_TRIES: usize = 3;

/// A change of one row.
pub struct Change<'a> {
    /// The table.
    pub table: &'a Table,
    /// Its fence column.
    pub fence_column: &'a Column,
    /// The row's key.
    pub key: &'a Key,
    /// The caller's fence.
    pub fence: Fence,
    /// What is done.
    pub verb: Verb,
    /// What is answered.
    pub answer: Answer,
    /// The columns to set.
    pub patch: Option<&'a Patch<'a>>,
    /// Where the row is added, if it is answered as a row.
    pub rows: Option<&'a Rows>,
}

impl Change<'_> {
    /// Makes the change. Returns what it answered, or `None` when it is stale: a newer fence is stored.
    pub fn make(&self) -> Result<Option<Outcome>, Refused> {
        let (statement, values, row_as) = (self.statement(), self.values(), self.row_as());
        let (counted, counted_stale) = stats::counters_of(self.verb);
        let mut stored = None;
        for _ in 0..MAX_TRIES {
            let pass = OwnPass::new(self.table, self.key, self.verb, self.fence_number());
            let outcome = plans::run_as(row_as, &statement, &values)?;
            let misused = pass.end(outcome.rows);
            match outcome.rows {
                0 => self.refuse_misuse(misused)?,
                1 => {
                    let outcome = self.checked(outcome)?;
                    self.refuse_misuse(misused)?;
                    if let (Some(rows), Some(row)) = (self.rows, outcome.row) {
                        rows.put(row);
                    }
                    self.subject().count(counted);
                    return Ok(Some(outcome));
                }
                rows => return Err(Refused::ManyRows { table: self.table.name.clone(), key: self.key_text(), rows }),
            }
            let found = explain(self, &values)?;
            match found.verdict {
                Verdict::Stale => {
                    self.subject().count_stale(counted_stale, self.fence, found.stored);
                    self.note_stale(found.stored);
                    return Ok(None);
                }
                Verdict::Unclaimed => {
                    self.subject().count(Counter::Unclaimed);
                    return Err(self.unclaimed(found.stored));
                }
                Verdict::Accepted => stored = found.stored,
            }
        }
        Err(self.blocked(stored))
    }

    /// The statement that makes the change.
    pub fn statement(&self) -> Statement<'_> {
        Statement {
            table: self.table,
            fence: self.fence_column,
            fits: &self.key.fits,
            verb: self.verb,
            answer: self.answer,
            patch: self.patch.map_or(&[], |patch| &patch.columns),
        }
    }

    /// A row is handed over field by field, without a value of its type, where its fields are the table's columns and
    /// neither they nor the fence have to be checked first.
    fn row_as(&self) -> RowAs {
        let are_fields = self.table.has_all_columns && !self.table.can_change_writes;
        match self.rows {
            Some(rows) if are_fields && !rows.are_checked() => RowAs::Stored(rows.store()),
            _ => RowAs::Value,
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject::Table(self.table.oid)
    }

    /// The key as error texts show it.
    pub fn key_text(&self) -> Vec<u8> {
        self.key.text(self.table)
    }

    /// The fence as the server stores it; a fence has at most 53 bits.
    fn fence_number(&self) -> i64 {
        self.fence.get() as i64
    }

    fn values(&self) -> Values {
        let patch = self.patch.map_or(&[][..], |patch| &patch.values);
        let mut values = Values::with_capacity(self.key.fits.len() + 1 + patch.len());
        values.extend(self.key.datums());
        values.push(Some(Datum::from(self.fence_number())));
        patch.iter().for_each(|&value| values.push(value));
        values
    }

    /// A trigger may have set the fence column on the way to the row.
    fn checked(&self, outcome: Outcome) -> Result<Outcome, Refused> {
        if !self.statement().answers_fence() || outcome.fence == Some(self.fence_number()) {
            return Ok(outcome);
        }
        let (table, key) = (self.table.name.clone(), self.key_text());
        Err(Refused::PutBack { table, key, stored: outcome.fence, fence: self.fence_number() })
    }

    /// Stale is an answer and no error, so the log would know nothing of it.
    fn note_stale(&self, stored: Option<i64>) {
        server::debug_line(|| {
            let (table, key) = (self.table.qualified_name(), self.key_text());
            let stored = stored.map_or_else(|| text!["null"], |stored| text![stored]);
            text!["pg_fence: fence ", self.fence, " is stale for ", table, " ", key, ", which has ", stored]
        });
    }

    fn refuse_misuse(&self, misused: Option<UnfencedWrite>) -> Result<(), Refused> {
        match misused {
            Some(write) => Err(Refused::Unfenced { table: self.table.name.clone(), write }),
            None => Ok(()),
        }
    }

    fn unclaimed(&self, stored: Option<i64>) -> Refused {
        Refused::Unclaimed { table: self.table.name.clone(), key: self.key_text(), stored, fence: self.fence }
    }

    fn blocked(&self, stored: Option<i64>) -> Refused {
        let (table, key, verb) = (self.table.name.clone(), self.key_text(), self.verb.command());
        Refused::Blocked { table, key, stored, fence: self.fence_number(), verb }
    }
}

/// Takes a number as a fence for this column. Errors: it is out of range.
pub fn accepted_fence(table: &Table, column: &Column, number: Option<i64>) -> Result<Fence, Refused> {
    let column_max = if column.base_type == pg_sys::INT4OID { i32::MAX as u64 } else { i64::MAX as u64 };
    let above_column =
        |fence, max| FenceProblem::AboveColumn { fence, max, table: table.name.clone(), column: column.name.clone() };
    accepted(number, column_max, above_column)
}

/// Takes a number as a fence that no column of the caller's holds. Errors: it is out of range.
pub fn accepted_number(number: Option<i64>) -> Result<Fence, Refused> {
    accepted(number, i64::MAX as u64, |fence, max| FenceProblem::AboveSetting { fence, max })
}

fn accepted(
    number: Option<i64>,
    column_max: u64,
    above_column: impl FnOnce(i64, u64) -> FenceProblem,
) -> Result<Fence, Refused> {
    let refused = |problem| Err(Refused::Fence(problem));
    let Some(number) = number else {
        return refused(FenceProblem::Null);
    };
    let limits = settings::fence_limits();
    let max = limits.max.min(column_max);
    match (FenceLimits { max, ..limits }).accept(number, server::now_us()) {
        Ok(fence) => Ok(fence),
        Err(FenceRefused::NotPositive) => refused(FenceProblem::NotPositive(number)),
        Err(FenceRefused::AheadOfClock(horizon)) => {
            refused(FenceProblem::Ahead { fence: number, horizon, max_ahead_s: settings::max_fence_ahead_s() })
        }
        Err(FenceRefused::AboveMax(max)) if max == column_max => refused(above_column(number, max)),
        Err(FenceRefused::AboveMax(Fence::MAX)) => refused(FenceProblem::AboveProtocol(number)),
        Err(FenceRefused::AboveMax(max)) => refused(FenceProblem::AboveSetting { fence: number, max }),
    }
}
