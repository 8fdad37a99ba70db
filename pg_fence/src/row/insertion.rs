//! The insertion of a row that is not there, stamped from the start.
//!
//! It is refused by nothing but the table itself: a row that is not there has no fence to compare. Invariant: what is left
//! in the table has the key, the fence and the owner that were passed, whatever triggers do.

use crate::errors::Refused;
use crate::protect::passes::OwnPass;
use crate::row::disclosure::disclosed;
use crate::row::key::Key;
use crate::row::patch::Patch;
use crate::stats::waits;
use crate::table::owner::Owner;
use crate::table::plans::{self, Outcome, Values};
use crate::table::relation::{Column, Table};
use crate::table::statement::{OWNER_CHANGED, Statement};
use crate::table::verb::{Answer, Source, Verb};
use pgrx::pg_sys::Datum;

/// A row to be inserted.
pub(crate) struct Insertion<'a> {
    pub(crate) table: &'a Table,
    pub(crate) fence_column: &'a Column,
    pub(crate) owner: Option<Owner<'a>>,
    /// With values of the columns' own types.
    pub(crate) key: &'a Key,
    pub(crate) fence: i64,
    /// The columns beside the key and the fence that do not get their defaults.
    pub(crate) initial: &'a Patch<'a>,
    pub(crate) answer: Answer,
}

impl Insertion<'_> {
    /// Inserts the row. `None`: another row has the key, also one that is hidden from the caller, or a trigger dropped the
    /// new one. Waits for a transaction that is inserting the key. Errors: the server gives out the keys; a trigger has
    /// changed the key or the fence.
    pub(crate) fn make(&self) -> Result<Option<Outcome>, Refused> {
        self.refuse_given_key()?;
        let statement = self.statement();
        let pass = OwnPass::new(self.table, self.key, Verb::Insert, self.fence);
        let outcome = waits::on_rows(self.table.oid, || plans::run(&statement, &self.values()))?;
        let misused = pass.end(|_| outcome.rows == 1);
        if outcome.rows == 1 && outcome.fence != Some(self.fence) {
            return Err(self.changed(outcome.fence)?);
        }
        match misused {
            Some(write) => Err(Refused::Unfenced { table: self.table.name.clone(), write }),
            None => Ok((outcome.rows == 1).then_some(outcome)),
        }
    }

    /// The server makes the values of a column that is GENERATED ALWAYS. It would refuse any other, without a word about
    /// what to do here.
    fn refuse_given_key(&self) -> Result<(), Refused> {
        let mut columns = self.table.key.iter().map(|key| self.table.key_column(key));
        match columns.find(|column| column.is_generated || column.is_identity_always) {
            Some(column) => Err(Refused::KeyGenerated {
                table: self.table.name.clone(),
                key: self.key.text(self.table),
                column: column.name.clone(),
            }),
            None => Ok(()),
        }
    }

    fn statement(&self) -> Statement<'_> {
        let (table, fence, owner, fits) = (self.table, self.fence_column, self.owner, &self.key.fits);
        let (answer, patch) = (self.answer, &self.initial.columns);
        Statement { table, fence, owner, fits, verb: Verb::Insert, answer, patch, source: Source::Parameters }
    }

    fn values(&self) -> Values {
        let mut values = self.key_and_fence();
        values.extend(self.owner.and_then(|owner| owner.given).map(|owner| Some(owner.datum())));
        values.extend(&self.initial.values);
        values
    }

    fn key_and_fence(&self) -> Values {
        self.key.datums().chain([Some(Datum::from(self.fence))]).collect()
    }

    /// What a trigger has left of the new row. The statement answers no fence where the key or the fence is another one.
    fn changed(&self, stored: Option<i64>) -> Result<Refused, Refused> {
        let (table, key) = (self.table.name.clone(), self.key.text(self.table));
        if stored.is_none() {
            let read = plans::run(&self.statement().plain(Verb::Read), &self.key_and_fence())?;
            if read.rows != 1 || read.fence.is_some() {
                return Ok(Refused::KeyChanged { table, key });
            }
        }
        if stored == Some(OWNER_CHANGED) {
            return Ok(Refused::OwnerPutBack { table, key, fence: self.fence });
        }
        let stored = disclosed(self.table, self.fence_column, stored);
        Ok(Refused::PutBack { table, key, stored, fence: self.fence })
    }
}
