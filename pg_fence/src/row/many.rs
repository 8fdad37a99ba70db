//! The same change of many rows, each under its fence: one statement that makes it, and for the rows that it did not reach
//! one that finds out why.
//!
//! The rule itself is in `fence`. Invariants: the rows are locked in the order of the key; what is said of a row that was not
//! reached was read after the change was tried, so a row that was stamped while the change waited is judged by its new stamp;
//! a verdict is what the change of this row alone would have come to.

use crate::errors::Refused;
use crate::life;
use crate::protect::members;
use crate::protect::passes::OwnPass;
use crate::row::change::{Change, MAX_TRIES, Made, refuse_misuse};
use crate::row::keys::{self, Keys};
use crate::row::patch::Patches;
use crate::server::rows::Rows;
use crate::server::text::Bytes;
use crate::stats::memory::Counter;
use crate::stats::{self, Subject, waits};
use crate::table::answer::Reached;
use crate::table::batch::Batch;
use crate::table::owner::{Owner, is_somebody};
use crate::table::plans::{self, Outcome, Values};
use crate::table::relation::{Column, Table};
use crate::table::statement::Statement;
use crate::table::verb::{Answer, Source, Verb};
use fence::Fence;
use fence::resource::{Bearer, DuplicateFence, Owned, Verdict};
use std::rc::Rc;

/// A change of many rows.
#[derive(Clone, Copy)]
pub(crate) struct Many<'a> {
    pub(crate) table: &'a Table,
    pub(crate) fence_column: &'a Column,
    /// Whose all the fences are.
    pub(crate) owner: Option<Owner<'a>>,
    pub(crate) keys: &'a Keys<'a>,
    /// One for each key, or one for all.
    pub(crate) fences: &'a [Fence],
    pub(crate) verb: Verb,
    pub(crate) answer: Answer,
    pub(crate) patches: Option<&'a Patches<'a>>,
    /// Where the rows are added, if they are answered as rows.
    pub(crate) rows: Option<&'a Rows>,
}

/// What became of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowVerdict {
    Written,
    Stale,
    Unclaimed,
    Missing,
    Outlived,
    Blocked,
    DuplicateFence,
}

/// What became of a row, and the fence that is stored there. There can be a million of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged {
    pub(crate) verdict: RowVerdict,
    has_stored: bool,
    stored: i64,
}

impl Judged {
    fn new(verdict: RowVerdict, stored: Option<i64>) -> Judged {
        Judged { verdict, has_stored: stored.is_some(), stored: stored.unwrap_or_default() }
    }

    /// The stored fence; `None` is null, or of no row.
    pub(crate) fn stored(self) -> Option<i64> {
        self.has_stored.then_some(self.stored)
    }

    /// The same as it is said of a row alone, which was not written.
    fn made(self) -> Made {
        match self.verdict {
            RowVerdict::Written | RowVerdict::Stale => Made::Stale(self.stored()),
            RowVerdict::Unclaimed => Made::Unclaimed(self.stored()),
            RowVerdict::Missing => Made::Missing,
            RowVerdict::Outlived => Made::Outlived(self.stored()),
            RowVerdict::Blocked => Made::Blocked(self.stored()),
            RowVerdict::DuplicateFence => Made::Duplicate { stored: self.stored(), owner: None },
        }
    }
}

impl Many<'_> {
    /// Makes the change. Answers what became of each row, by the place of its key. Counted.
    pub(crate) fn make(&self) -> Result<Vec<Judged>, Refused> {
        self.make_in(&self.keys.order()?)
    }

    /// Makes the change of all rows but the stale ones. Errors: what became of the first other, in the order of the key, with
    /// its place.
    pub(crate) fn make_all(&self) -> Result<(), Refused> {
        let order = self.keys.order()?;
        let judged = self.make_in(&order)?;
        let mut places = self.keys.absent().chain(order.iter().map(|&place| place as usize));
        places.try_for_each(|place| {
            let answered = match judged[place].verdict {
                RowVerdict::Written | RowVerdict::Stale => return Ok(()),
                // The error says whose the fence is, which is read again.
                RowVerdict::DuplicateFence => self.with_change(place, |change| change.make().map(|_| ())),
                _ => self.with_change(place, |change| change.answer(judged[place].made()).map(|_| ())),
            };
            answered.map_err(|refused| refused.of_element(keys::ARGUMENT, place + 1))
        })
    }

    fn make_in(&self, order: &[u32]) -> Result<Vec<Judged>, Refused> {
        life::begin();
        let mut judged = vec![Judged::new(RowVerdict::Missing, None); self.keys.len()];
        // A search for a key that no row has still checks the rights.
        self.one_by_one(self.keys.absent(), &mut judged)?;
        if !self.table.takes_many {
            self.one_by_one(order.iter().map(|&place| place as usize), &mut judged)?;
        } else if !order.is_empty() {
            self.together(order, &mut judged)?;
        }
        Ok(judged)
    }

    fn together(&self, order: &[u32], judged: &mut [Judged]) -> Result<(), Refused> {
        let mut pending = self.attempt(&Rc::new(self.batch(order)), judged)?;
        for _ in 1..MAX_TRIES {
            if pending.len() == 0 {
                break;
            }
            let before: Vec<bool> = judged.iter().map(|row| row.verdict == RowVerdict::Written).collect();
            let aside = self.rows.map(Rows::aside);
            let tried = Rc::new(pending);
            pending = Many { rows: aside.as_ref(), ..*self }.attempt(&tried, judged)?;
            if let (Some(rows), Some(aside)) = (self.rows, &aside) {
                // Rows that were reached late are answered in their order, too.
                let is_written = |place: &usize| judged[*place].verdict == RowVerdict::Written;
                let places = order.iter().map(|&place| place as usize).filter(is_written);
                rows.merge(aside, places.map(|place| !before[place]));
            }
        }
        Ok(())
    }

    /// Changes the rows of a batch that accept it, and judges the others. Answers those that accept it by what was read of them:
    /// that contradicts what the statement did.
    fn attempt(&self, batch: &Rc<Batch>, judged: &mut [Judged]) -> Result<Batch, Refused> {
        if !self.write(batch, judged)? {
            // The planner has found no way that keeps the order. A change of one row alone is tried again by itself.
            self.one_by_one((0..batch.len()).map(|row| batch.number(row)), judged)?;
            return Ok(batch.only(|_| false));
        }
        let missed = batch.only(|place| judged[place].verdict != RowVerdict::Written);
        if missed.len() > 0 {
            self.judge(&missed, judged)?;
        }
        Ok(missed.only(|place| judged[place].verdict == RowVerdict::Blocked))
    }

    /// Changes the rows of a batch that accept it, and notes which. Answers whether it was tried.
    fn write(&self, batch: &Rc<Batch>, judged: &mut [Judged]) -> Result<bool, Refused> {
        let statement = self.statement();
        let mut reached = Vec::with_capacity(batch.len());
        let pass = OwnPass::of_many(self.table, &self.keys.fits, self.verb, batch);
        let run = || plans::run_many(&statement, batch, &self.parameters(), self.rows, &mut reached);
        if !waits::on_rows(self.table.oid, run)? {
            return Ok(false);
        }
        for row in &reached {
            self.note_written(&statement, row, judged)?;
        }
        let is_written = |place: usize| judged[place].verdict == RowVerdict::Written;
        refuse_misuse(self.table, pass.end(is_written))?;
        let (counted, _) = stats::counters_of(self.verb);
        self.subject().count_times(counted, reached.len() as u64);
        Ok(true)
    }

    fn note_written(&self, statement: &Statement, row: &Reached, judged: &mut [Judged]) -> Result<(), Refused> {
        let place = row.number();
        if judged[place].verdict == RowVerdict::Written {
            let (table, key) = (self.table.name.clone(), self.keys.key(place).text(self.table));
            return Err(Refused::ManyRows { table, key, rows: 2 });
        }
        if statement.answers_fence() {
            let outcome = Outcome { rows: 1, fence: row.fence(), owner: None, row: None };
            self.with_change(place, |change| change.checked(outcome).map(|_| ()))?;
        }
        judged[place] = self.written(place);
        Ok(())
    }

    /// A row that was deleted has no fence.
    fn written(&self, place: usize) -> Judged {
        let stored = (self.verb != Verb::Delete).then(|| self.fence(place).get() as i64);
        Judged::new(RowVerdict::Written, stored)
    }

    /// Why the change has not reached these rows: a plain read of the stored fences, with the rights and the snapshot of the
    /// caller and without a lock, judged by the rule.
    fn judge(&self, missed: &Batch, judged: &mut [Judged]) -> Result<(), Refused> {
        let read = Statement { source: Source::GivenKeys, ..self.statement().plain(Verb::Read) };
        let mut found = Vec::with_capacity(missed.len());
        let keys = Rc::new(self.batch_of((0..missed.len()).map(|row| missed.number(row)), None));
        plans::run_many(&read, &keys, &Values::new(), None, &mut found)?;
        for row in 0..keys.len() {
            judged[keys.number(row)] = Judged::new(RowVerdict::Missing, None);
        }
        let discloses = members::may_disclose_what_is_read(self.table.oid, self.fence_column.number);
        let (mut unclaimed, mut outlived, mut duplicate) = (0, 0, 0);
        for row in &found {
            let verdict = self.verdict(row);
            match verdict {
                RowVerdict::Stale => self.count_stale(row),
                RowVerdict::Unclaimed => unclaimed += 1,
                RowVerdict::Outlived => outlived += 1,
                RowVerdict::DuplicateFence => duplicate += 1,
                _ => {}
            }
            judged[row.number()] = Judged::new(verdict, row.fence().filter(|_| discloses));
        }
        self.subject().count_times(Counter::Unclaimed, unclaimed);
        self.subject().count_times(Counter::Outlived, outlived);
        self.subject().count_times(Counter::DuplicateFence, duplicate);
        Ok(())
    }

    /// The rule's, on a row that was read.
    fn verdict(&self, row: &Reached) -> RowVerdict {
        let (fence, stored) = (self.fence(row.number()), row.fence());
        let owner = row.owner().filter(|stored| is_somebody(stored.bytes()));
        let stamp = Owned { fence: stored, owner: owner.as_ref().map(Bytes::bytes) };
        let given = self.owner.and_then(|owner| owner.given);
        let caller = Bearer { fence, owner: given.as_ref().map(Bytes::bytes) };
        match self.verb.step().map_or(Ok(Verdict::Accepted), |step| step.judge_owned(stamp, caller)) {
            Err(DuplicateFence) => RowVerdict::DuplicateFence,
            Ok(Verdict::Stale) => RowVerdict::Stale,
            Ok(Verdict::Unclaimed) => RowVerdict::Unclaimed,
            Ok(Verdict::Accepted) => {
                let relies = self.verb.step().is_some_and(|step| step.relies_on_claim(stored, fence));
                if relies && !row.is_of_this_life { RowVerdict::Outlived } else { RowVerdict::Blocked }
            }
        }
    }

    fn count_stale(&self, row: &Reached) {
        let (_, counted) = stats::counters_of(self.verb);
        self.subject().count_stale(counted, self.fence(row.number()), row.fence());
        self.with_change(row.number(), |change| change.note_stale(row.fence()));
    }

    /// The changes of these rows, each by a statement of its own.
    fn one_by_one(&self, places: impl Iterator<Item = usize>, judged: &mut [Judged]) -> Result<(), Refused> {
        let discloses = members::may_disclose_what_is_read(self.table.oid, self.fence_column.number);
        for place in places {
            let (verdict, stored) = match self.with_change(place, |change| change.attempt())? {
                Made::Written(_) => {
                    judged[place] = self.written(place);
                    continue;
                }
                Made::Stale(stored) => (RowVerdict::Stale, stored),
                Made::Unclaimed(stored) => (RowVerdict::Unclaimed, stored),
                Made::Missing => (RowVerdict::Missing, None),
                Made::Outlived(stored) => (RowVerdict::Outlived, stored),
                Made::Blocked(stored) => (RowVerdict::Blocked, stored),
                Made::Duplicate { stored, .. } => (RowVerdict::DuplicateFence, stored),
            };
            judged[place] = Judged::new(verdict, stored.filter(|_| discloses));
        }
        Ok(())
    }

    /// The change of one of the rows.
    pub(crate) fn with_change<T>(&self, place: usize, act: impl FnOnce(&Change) -> T) -> T {
        let (key, patch) = (self.keys.key(place), self.patches.map(|patches| patches.patch(place)));
        act(&Change {
            table: self.table,
            fence_column: self.fence_column,
            owner: self.owner,
            key: &key,
            fence: self.fence(place),
            verb: self.verb,
            answer: self.answer,
            patch: patch.as_ref(),
            initial: None,
            rows: self.rows,
        })
    }

    fn fence(&self, place: usize) -> Fence {
        if let [only] = self.fences { *only } else { self.fences[place] }
    }

    fn batch(&self, order: &[u32]) -> Batch {
        let patches = self.patches.filter(|patches| patches.are_each);
        self.batch_of(order.iter().map(|&place| place as usize), patches)
    }

    fn batch_of(&self, places: impl ExactSizeIterator<Item = usize>, patches: Option<&Patches>) -> Batch {
        let key_types: Vec<_> = self.keys.fits.iter().map(|fit| fit.value_type).collect();
        let columns = patches.map_or(&[][..], |patches| &patches.columns);
        let mut batch = Batch::new(&key_types, columns.iter().map(|column| column.type_oid), places.len());
        for place in places {
            let patch = patches.into_iter().flat_map(|patches| patches.values_of(place));
            batch.push(place, self.fence(place).get() as i64, self.keys.values_of(place), patch);
        }
        batch
    }

    fn statement(&self) -> Statement<'_> {
        Statement {
            table: self.table,
            fence: self.fence_column,
            owner: self.owner,
            fits: &self.keys.fits,
            verb: self.verb,
            answer: self.answer,
            patch: self.patches.map_or(&[], |patches| &patches.columns),
            source: match self.patches {
                Some(patches) if patches.are_each => Source::Given,
                _ => Source::GivenKeys,
            },
        }
    }

    /// The owner, and the values of a patch that serves all.
    fn parameters(&self) -> Values {
        let owner = self.owner.and_then(|owner| owner.given).map(|owner| Some(owner.datum()));
        let patch =
            self.patches.filter(|patches| !patches.are_each).into_iter().flat_map(|patches| patches.values_of(0));
        owner.into_iter().chain(patch).collect()
    }

    fn subject(&self) -> Subject<'_> {
        Subject::Table(self.table.oid)
    }
}
