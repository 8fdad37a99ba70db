//! One change of one row under a fence: make it, and if it reaches no row, find out why, or insert the row.
//!
//! The rule itself is in `fence`; here is when it is asked. Invariants: `Ok(None)` means that a newer fence is stored
//! and nothing else; every other reason is a refusal of its own. A refused change changes nothing, as its error ends
//! the statement of the caller.

use crate::errors::{Disclosed, Refused, UnfencedWrite};
use crate::life::{self, Outlived};
use crate::protect::deletions;
use crate::protect::passes::OwnPass;
use crate::row::disclosure::{disclosed, may_disclose};
use crate::row::insertion::Insertion;
use crate::row::key::Key;
use crate::row::patch::Patch;
use crate::server::log;
use crate::server::rights;
use crate::server::rows::Rows;
use crate::server::text::Bytes;
use crate::server::types::Value;
use crate::stats::memory::Counter;
use crate::stats::{self, Subject, waits};
use crate::table::owner::{Owner, is_somebody};
use crate::table::plans::{self, Outcome, RowAs, Values};
use crate::table::relation::{Column, Table};
use crate::table::statement::{OWNER_CHANGED, Statement};
use crate::table::verb::{Answer, Source, Verb};
use fence::Fence;
use fence::deletion::{InsertVerdict, judge_insert};
use fence::resource::{Bearer, DuplicateFence, Owned, Verdict};
use pg_forms::text;
use pgrx::pg_sys::Datum;
use std::ffi::{CStr, CString};
use std::iter;

/// How often a change is tried when it reaches no row although the stored fence accepts it. The row can have been
/// deleted and inserted again in between; a policy or a trigger that blocks it does so each time.
pub(crate) const MAX_TRIES: usize = 3;

/// How often a row is inserted that is not there and that another row's key keeps out. Each time that one can have been
/// inserted and deleted by others in between, for as long as their transactions take; one that is hidden stays.
const MAX_INSERTIONS: usize = 10;

/// A change of one row.
pub(crate) struct Change<'a> {
    pub(crate) table: &'a Table,
    pub(crate) fence_column: &'a Column,
    pub(crate) owner: Option<Owner<'a>>,
    pub(crate) key: &'a Key,
    pub(crate) fence: Fence,
    pub(crate) verb: Verb,
    pub(crate) answer: Answer,
    pub(crate) patch: Option<&'a Patch<'a>>,
    /// What a row is made of where there is none; else that is an error.
    pub(crate) initial: Option<&'a Patch<'a>>,
    /// Where the row is added, if it is answered as a row.
    pub(crate) rows: Option<&'a Rows>,
}

/// What became of a change. All but the first reached no row; with them is the stored fence, `None` of null.
#[derive(Debug)]
pub(crate) enum Made {
    Written(Outcome),
    /// A newer fence is stored.
    Stale(Option<i64>),
    /// An older fence is stored.
    Unclaimed(Option<i64>),
    /// There is no such row, or none that the caller may see.
    Missing,
    /// The claim was made in another life of the server.
    Outlived(Option<i64>),
    /// The stored fence has the number of the caller's, and is another owner's.
    Duplicate {
        stored: Option<i64>,
        owner: Option<CString>,
    },
    /// The stored fence accepts the change, which a policy or a trigger blocks.
    Blocked(Option<i64>),
}

/// What was read of the row of a change that reached none.
struct Found {
    /// The stored fence; `None` is null.
    stored: Option<i64>,
    /// Its owner; `None` is null, or that the table keeps none.
    owner: Option<CString>,
    /// What the rule says about it. `Accepted` contradicts a change that reached no row.
    verdict: Result<Verdict, DuplicateFence>,
}

/// What became of the row that was not there.
enum Inserted {
    Row(Outcome),
    None,
    /// A newer fence has deleted it, and is remembered.
    Stale {
        remembered: i64,
    },
}

impl Change<'_> {
    /// Makes the change. Returns what it answered, or `None` when it is stale: a newer fence is stored.
    pub(crate) fn make(&self) -> Result<Option<Outcome>, Refused> {
        self.attempt().and_then(|made| self.answer(made))
    }

    /// What a call answers of what became of its change; all but a write and staleness are errors.
    pub(crate) fn answer(&self, made: Made) -> Result<Option<Outcome>, Refused> {
        match made {
            Made::Written(outcome) => Ok(Some(outcome)),
            Made::Stale(_) => Ok(None),
            Made::Unclaimed(stored) => Err(self.unclaimed(stored)),
            Made::Missing => Err(self.key.no_row(self.table, self.fence_number())),
            Made::Outlived(_) => Err(self.outlived()),
            Made::Duplicate { owner, .. } => Err(self.duplicate(owner)),
            Made::Blocked(stored) => Err(self.blocked(stored)),
        }
    }

    /// Makes the change, and answers what became of it. Counted. Errors: those of the write itself, and of a trigger or a
    /// rule that turned it into another.
    pub(crate) fn attempt(&self) -> Result<Made, Refused> {
        let (statement, values, row_as) = (self.statement(), self.values(), self.row_as());
        let (_, counted_stale) = stats::counters_of(self.verb);
        let (mut tries, mut insertions) = (0, 0);
        life::begin();
        let outlived = Outlived::watch();
        loop {
            let pass = OwnPass::new(self.table, self.key, self.verb, self.fence_number());
            let outcome = waits::on_rows(self.table.oid, || plans::run_as(row_as, &statement, &values))?;
            let misused = pass.end(|_| outcome.rows == 1);
            match outcome.rows {
                0 => self.refuse_misuse(misused)?,
                1 => {
                    let outcome = self.checked(outcome)?;
                    self.refuse_misuse(misused)?;
                    return Ok(Made::Written(self.made(outcome)));
                }
                rows => return Err(Refused::ManyRows { table: self.table.name.clone(), key: self.key_text(), rows }),
            }
            let Some(found) = self.explain(&values)? else {
                let Some(initial) = self.initial else { return Ok(Made::Missing) };
                match self.insert(initial)? {
                    Inserted::Row(inserted) => return Ok(Made::Written(self.made(inserted))),
                    Inserted::Stale { remembered } => {
                        self.subject().count_stale(counted_stale, self.fence, Some(remembered));
                        self.note_stale(Some(remembered));
                        return Ok(Made::Stale(Some(remembered)));
                    }
                    // Another one has inserted it meanwhile, or it is hidden.
                    Inserted::None => insertions += 1,
                }
                if insertions == MAX_INSERTIONS {
                    return Err(Refused::InsertBlocked { table: self.table.name.clone(), key: self.key_text() });
                }
                continue;
            };
            match found.verdict {
                Ok(Verdict::Stale) => {
                    self.subject().count_stale(counted_stale, self.fence, found.stored);
                    self.note_stale(found.stored);
                    return Ok(Made::Stale(found.stored));
                }
                Ok(Verdict::Unclaimed) => {
                    self.subject().count(Counter::Unclaimed);
                    return Ok(Made::Unclaimed(found.stored));
                }
                Err(DuplicateFence) => {
                    self.subject().count(Counter::DuplicateFence);
                    return Ok(Made::Duplicate { stored: found.stored, owner: found.owner });
                }
                Ok(Verdict::Accepted) => {
                    tries += 1;
                    if tries == MAX_TRIES {
                        return Ok(self.kept_from_the_row(found.stored, outlived.is_met()));
                    }
                }
            }
        }
    }

    /// Why a change that the stored fence accepts reaches no row.
    fn kept_from_the_row(&self, stored: Option<i64>, is_outlived: bool) -> Made {
        if is_outlived && self.verb.step().is_some_and(|step| step.relies_on_claim(stored, self.fence)) {
            self.subject().count(Counter::Outlived);
            return Made::Outlived(stored);
        }
        Made::Blocked(stored)
    }

    /// Why the change reached no row: a plain read of the stored fence, with the rights and the snapshot of the caller
    /// and without a lock, judged by the rule. `None`: there is no such row, or none that the caller may see.
    fn explain(&self, values: &Values) -> Result<Option<Found>, Refused> {
        let outcome = plans::run(&self.statement().plain(Verb::Read), values)?;
        if outcome.rows == 0 {
            return Ok(None);
        }
        let stored = outcome.fence;
        let owner = outcome.owner.map(Value::text).filter(|stored| is_somebody(stored.as_bytes()));
        let stamp = Owned { fence: stored, owner: owner.as_deref().map(CStr::to_bytes) };
        let given = self.owner.and_then(|owner| owner.given);
        let caller = Bearer { fence: self.fence, owner: given.as_ref().map(Bytes::bytes) };
        let verdict = self.verb.step().map_or(Ok(Verdict::Accepted), |step| step.judge_owned(stamp, caller));
        Ok(Some(Found { stored, owner, verdict }))
    }

    /// Makes the row that is not there, unless a newer fence has deleted it.
    fn insert(&self, initial: &Patch) -> Result<Inserted, Refused> {
        let (table, fence_column, owner, answer) = (self.table, self.fence_column, self.owner, self.answer);
        let key = self.key.to_insert(table)?;
        let fence = self.fence_number();
        // Without the right, the insertion says so and nothing of deletions.
        if rights::may_insert(table.oid, fence_column.number)
            && let Some(remembered) = deletions::recall(table, &key)?
            && judge_insert(Some(remembered), Some(fence), iter::empty()) != InsertVerdict::Accepted
        {
            return Ok(Inserted::Stale { remembered });
        }
        let inserted = Insertion { table, fence_column, owner, key: &key, fence, initial, answer }.make()?;
        Ok(inserted.map_or(Inserted::None, Inserted::Row))
    }

    /// Hands the row over and counts the change.
    fn made(&self, outcome: Outcome) -> Outcome {
        if let (Some(rows), Some(row)) = (self.rows, outcome.row) {
            rows.put(row);
        }
        let (counted, _) = stats::counters_of(self.verb);
        self.subject().count(counted);
        outcome
    }

    /// The statement that makes the change.
    fn statement(&self) -> Statement<'_> {
        Statement {
            table: self.table,
            fence: self.fence_column,
            owner: self.owner,
            fits: &self.key.fits,
            verb: self.verb,
            answer: self.answer,
            patch: self.patch.map_or(&[], |patch| &patch.columns),
            source: Source::Parameters,
        }
    }

    /// A row is added field by field if its fields are the table's columns and nothing has to be checked first.
    fn row_as(&self) -> RowAs<'_> {
        let are_fields = self.table.has_all_columns && !self.table.can_change_writes;
        match self.rows {
            Some(rows) if are_fields && !rows.are_checked() => RowAs::Stored(rows),
            _ => RowAs::Value,
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject::Table(self.table.oid)
    }

    /// The key as error texts show it.
    fn key_text(&self) -> Vec<u8> {
        self.key.text(self.table)
    }

    /// The fence as the server stores it; a fence has at most 53 bits.
    fn fence_number(&self) -> i64 {
        self.fence.get() as i64
    }

    fn values(&self) -> Values {
        let patch = self.patch.map_or(&[][..], |patch| &patch.values);
        let owner = self.owner.and_then(|owner| owner.given);
        let mut values = Values::with_capacity(self.key.fits.len() + 2 + patch.len());
        values.extend(self.key.datums());
        values.push(Some(Datum::from(self.fence_number())));
        values.extend(owner.map(|owner| Some(owner.datum())));
        patch.iter().for_each(|&value| values.push(value));
        values
    }

    /// A trigger may have set the fence column.
    pub(crate) fn checked(&self, outcome: Outcome) -> Result<Outcome, Refused> {
        if !self.statement().answers_fence() || outcome.fence == Some(self.fence_number()) {
            return Ok(outcome);
        }
        let (table, key) = (self.table.name.clone(), self.key_text());
        if outcome.fence == Some(OWNER_CHANGED) {
            return Err(Refused::OwnerPutBack { table, key, fence: self.fence_number() });
        }
        Err(Refused::PutBack { table, key, stored: self.disclosed(outcome.fence), fence: self.fence_number() })
    }

    /// Stale is an answer, not an error, so nothing else logs it.
    pub(crate) fn note_stale(&self, stored: Option<i64>) {
        log::debug_line(|| {
            let (table, key) = (self.table.qualified_name(), self.key_text());
            let stored = self.disclosed(stored).or("a newer one", "");
            text!["pg_fence: fence ", self.fence, " is stale for ", table, " ", key, ", which has ", stored]
        });
    }

    fn refuse_misuse(&self, misused: Option<UnfencedWrite>) -> Result<(), Refused> {
        refuse_misuse(self.table, misused)
    }

    fn unclaimed(&self, stored: Option<i64>) -> Refused {
        let stored = self.disclosed(stored);
        Refused::Unclaimed { table: self.table.name.clone(), key: self.key_text(), stored, fence: self.fence }
    }

    fn duplicate(&self, owner: Option<CString>) -> Refused {
        let stored = self.owner.filter(|owner| may_disclose(self.table, owner.column)).and(owner);
        Refused::Duplicate { table: self.table.name.clone(), key: self.key_text(), stored, fence: self.fence }
    }

    fn outlived(&self) -> Refused {
        let (table, key) = (self.table.name.clone(), Some(self.key_text()));
        Refused::Outlived { table, key, fence: self.fence, since: life::since() }
    }

    fn blocked(&self, stored: Option<i64>) -> Refused {
        let (table, key, verb) = (self.table.name.clone(), self.key_text(), self.verb.command());
        Refused::Blocked { table, key, stored: self.disclosed(stored), fence: self.fence_number(), verb }
    }

    fn disclosed(&self, stored: Option<i64>) -> Disclosed {
        disclosed(self.table, self.fence_column, stored)
    }
}

/// Refuses a change whose pass through the triggers was misused.
pub(crate) fn refuse_misuse(table: &Table, misused: Option<UnfencedWrite>) -> Result<(), Refused> {
    match misused {
        Some(write) => Err(Refused::Unfenced { table: table.name.clone(), write }),
        None => Ok(()),
    }
}
