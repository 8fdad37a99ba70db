//! `pg_stat_fence`: what has been counted, and where.
//!
//! Calls are counted, not commits: a count survives rollback, so that a retry that is refused is seen. A call never
//! fails because it cannot be counted. It waits for others that count in the same block for as long as they add a
//! number.

pub(crate) mod counters;
pub(crate) mod memory;
pub(crate) mod waits;

use crate::errors::Refused;
use crate::server::call::{Call, Reply};
use crate::server::catalog;
use crate::server::log;
use crate::server::segment;
use crate::server::session;
use crate::server::text;
use crate::server::types;
use crate::settings;
use crate::stats::counters::{Count, Counted, Named, Stale, SubjectKey, SubjectKind};
use crate::stats::memory::{COUNTERS, Counter, MAX_NAME_BYTES};
use crate::table::verb::Verb;
use fence::Fence;
use fence::resource::NEVER_CLAIMED;
use pg_forms::{c_string, text};
use pgrx::pg_sys::{Datum, Oid};
use std::ffi::CStr;

/// What a call was made on.
#[derive(Clone, Copy)]
pub(crate) enum Subject<'a> {
    Table(Oid),
    Guard(&'a CStr),
    Lock(&'a [u8]),
}

impl Subject<'_> {
    /// Counts a call.
    pub(crate) fn count(self, counter: Counter) {
        self.count_with(counter, 1, None);
    }

    /// Counts so many.
    pub(crate) fn count_times(self, counter: Counter, times: u64) {
        if times > 0 {
            self.count_with(counter, times, None);
        }
    }

    /// Counts a call that was refused as stale.
    pub(crate) fn count_stale(self, counter: Counter, fence: Fence, stored: Option<i64>) {
        let (at, fence, stored) = (session::now(), fence.get() as i64, stored.unwrap_or(NEVER_CLAIMED));
        self.count_with(counter, 1, Some(Stale { at, fence, stored }));
    }

    fn count_with(self, counter: Counter, times: u64, stale: Option<Stale>) {
        if settings::tracks() {
            let (kind, key) = self.key();
            counters::count(kind, key, Count { counter, times, stale }, &self);
        }
    }

    /// Adds to counters, even while an error is under way.
    fn add(self, additions: &[(Counter, u64)]) {
        if settings::tracks() {
            let (kind, key) = self.key();
            counters::add(kind, key, &self.name_of_entry(), additions);
        }
    }

    fn key(self) -> (SubjectKind, SubjectKey) {
        let (kind, object) = match self {
            Subject::Table(oid) => (SubjectKind::Table, u64::from(oid.to_u32())),
            Subject::Guard(resource) => (SubjectKind::Guard, text::hash(resource.to_bytes())),
            Subject::Lock(name) => (SubjectKind::Lock, text::hash(name)),
        };
        (kind, SubjectKey { database: session::database(), object })
    }

    /// The name of its entry; a table has its oid alone.
    fn name_of_entry(&self) -> Vec<u8> {
        match *self {
            Subject::Table(_) => Vec::new(),
            Subject::Guard(resource) => text::cut(resource, MAX_NAME_BYTES),
            Subject::Lock(name) => text::cut(&c_string(name.to_vec()), MAX_NAME_BYTES),
        }
    }
}

impl Named for Subject<'_> {
    /// A temporary table has none: it is of one session, which no other can be stale against, and there can be
    /// thousands.
    fn name(&self) -> Option<Vec<u8>> {
        let has_none = matches!(*self, Subject::Table(oid) if catalog::is_temporary(oid));
        (!has_none).then(|| self.name_of_entry())
    }

    fn is_gone(&self, key: SubjectKey) -> bool {
        if key.database != session::database() {
            return !catalog::database_exists(key.database);
        }
        // What was the name of a guard or a lock once can be one again.
        matches!(self, Subject::Table(_))
            && u32::try_from(key.object).is_ok_and(|oid| !catalog::relation_exists(Oid::from(oid)))
    }
}

/// The counter of a call that was made, and of one that was stale.
pub(crate) fn counters_of(verb: Verb) -> (Counter, Counter) {
    match verb {
        Verb::Claim => (Counter::Claims, Counter::ClaimsStale),
        _ => (Counter::Writes, Counter::WritesStale),
    }
}

/// `stat()`: the rows of `pg_stat_fence` for this database; one row of nulls where nothing can be counted.
pub(crate) fn stat(call: &Call) -> Result<Reply, Refused> {
    let rows = call.rows(None);
    if !counters::are_there() {
        if segment::CAN_ATTACH {
            log::notice(
                text!["pg_fence counts nothing for now: the server has no shared memory for it"],
                text!["Make room for dynamic shared memory, or add pg_fence to shared_preload_libraries."],
            );
        } else {
            log::notice(
                text!["pg_fence counts nothing: it is not preloaded"],
                text![
                    "Add pg_fence to shared_preload_libraries and restart the server. From PostgreSQL 17 on that is not needed."
                ],
            );
        }
        rows.put_fields(&[None; COLUMNS]);
        return Ok(Reply::Handed);
    }
    let kinds = [
        (SubjectKind::Table, c"other tables"),
        (SubjectKind::Guard, c"other guards"),
        (SubjectKind::Lock, c"other locks"),
    ];
    for (kind, others) in kinds {
        for counted in counters::read(kind, session::database()) {
            let is_empty = counted.counts.iter().all(|&count| count == 0);
            if counted.key.is_some() || !is_empty {
                rows.put_fields(&fields(kind, others, &counted));
            }
        }
    }
    Ok(Reply::Handed)
}

/// `pg_stat_fence_reset()`: forgets what was counted in this database.
pub(crate) fn pg_stat_fence_reset(_call: &Call) -> Result<Reply, Refused> {
    counters::reset(session::database());
    Ok(Reply::Void)
}

/// SubjectKind, identity, name, the counters, and three of the newest stale call.
const COLUMNS: usize = 3 + COUNTERS + 3;

fn fields(kind: SubjectKind, others: &CStr, counted: &Counted) -> [Option<Datum>; COLUMNS] {
    let mut fields = [None; COLUMNS];
    let (name_of_kind, name) = match (counted.key, kind) {
        (None, _) => (others, None),
        (Some(_), SubjectKind::Table) => (c"table", None),
        (Some(_), SubjectKind::Guard) => (c"guard", Some(types::text_datum(&counted.name))),
        (Some(_), SubjectKind::Lock) => (c"lock", Some(types::text_datum(&counted.name))),
    };
    let id = counted.key.map(|key| Datum::from(key.object as i64));
    fields[..3].copy_from_slice(&[Some(types::text_datum(name_of_kind.to_bytes())), id, name]);
    for (field, &count) in fields[3..].iter_mut().zip(&counted.counts) {
        *field = Some(Datum::from(count as i64));
    }
    // As the server's own views show times: milliseconds with a fraction.
    let waited_ms = counted.counts[Counter::WaitedUs as usize] as f64 / 1_000.0;
    fields[3 + Counter::WaitedUs as usize] = Some(Datum::from(waited_ms.to_bits()));
    if let Some(stale) = counted.stale {
        let newest = [stale.at, stale.fence, stale.stored].map(|number| Some(Datum::from(number)));
        fields[3 + COUNTERS..].copy_from_slice(&newest);
    }
    fields
}

/// The refusal of a write on a protected table.
pub(crate) fn count_refused(table: Oid, refused: &Refused, stored: Option<i64>) {
    let subject = Subject::Table(table);
    match refused {
        Refused::StaleRow { fence, .. } | Refused::StaleInsert { fence, .. } => {
            subject.count_stale(Counter::WritesStale, *fence, stored)
        }
        Refused::UnclaimedRow { .. } => subject.count(Counter::Unclaimed),
        Refused::Outlived { .. } => subject.count(Counter::Outlived),
        Refused::DuplicateRow { .. } => subject.count(Counter::DuplicateFence),
        _ => subject.count(Counter::UnfencedRefused),
    }
}
