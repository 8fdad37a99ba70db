//! The trigger that refuses a write on a protected table, and says why.
//!
//! It fires for rows that the WHEN condition does not admit (`passes`), and for every TRUNCATE; it always raises an
//! error. Invariant: the stored fence is shown only to a client that could read the row itself.

use crate::errors::{Refused, UnfencedWrite};
use crate::life;
use crate::protect::condition;
use crate::protect::members;
use crate::protect::passes;
use crate::server::call::{Call, Reply};
use crate::server::catalog::{self, RelationName};
use crate::server::trigger::{Command, EventRow, TriggerEvent};
use crate::server::types::{self, Value};
use crate::stats;
use fence::Fence;
use fence::resource::{DuplicateFence, NEVER_CLAIMED, Owned, PlainVerdict};
use std::ffi::{CStr, CString};

/// What a write does to a row, by the fence before and after it.
enum Written {
    Updated {
        old: Option<i64>,
        new: Option<i64>,
    },
    Deleted {
        old: Option<i64>,
    },
    Inserted {
        new: Option<i64>,
    },
    Truncated,
    /// By this command; the trigger does not say which column has the fence.
    Unknown(&'static str),
}

/// `refuse()`, the trigger of protected tables: refuses.
pub(crate) fn refuse(call: &Call) -> Result<Reply, Refused> {
    let event = TriggerEvent::of(call).ok_or(Refused::NotATrigger)?;
    let column = event.condition().and_then(|condition| condition::fence_column(condition, event.kind()));
    let owner = event.condition().and_then(|condition| condition::owner_column(condition, event.kind()));
    let write = RefusedWrite { event, column, owner };
    let refused = write.refusal();
    stats::count_refused(write.event.table(), &refused, write.stored());
    Err(refused)
}

/// `trigger_column(condition pg_node_tree, kind smallint)`: the number of the fence column of a trigger with this
/// WHEN condition and this `pg_trigger.tgtype`; null when the condition is not the one that `fence_protect` makes.
pub(crate) fn trigger_column(call: &Call) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    let (Some(condition), Some(kind)) = (given.text_of_tree(), given.small_number()) else {
        return Ok(Reply::Nothing);
    };
    Ok(Reply::from(condition::fence_column(&condition, kind)))
}

/// `trigger_owner(condition pg_node_tree, kind smallint)`: the number of the column of the owner, where such a condition names one.
pub(crate) fn trigger_owner(call: &Call) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    let (Some(condition), Some(kind)) = (given.text_of_tree(), given.small_number()) else {
        return Ok(Reply::Nothing);
    };
    Ok(Reply::from(condition::owner_column(&condition, kind)))
}

/// `trigger_inserts(condition pg_node_tree, kind smallint)`: which new rows a trigger on INSERT with this WHEN condition admits,
/// plain or fenced; null of another trigger.
pub(crate) fn trigger_inserts(call: &Call) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    let (Some(condition), Some(kind)) = (given.text_of_tree(), given.small_number()) else {
        return Ok(Reply::Nothing);
    };
    if !condition::is_on_insert(kind) || condition::fence_column(&condition, kind).is_none() {
        return Ok(Reply::Nothing);
    }
    let inserts: &[u8] = if condition::asks_new_rows(&condition, kind) { b"fenced" } else { b"plain" };
    Ok(Reply::Value(types::text_datum(inserts)))
}

/// A write that the trigger refuses.
struct RefusedWrite<'c> {
    event: TriggerEvent<'c>,
    /// The fence column, by the condition of the trigger itself.
    column: Option<i16>,
    /// That of its owner, where the condition names one.
    owner: Option<i16>,
}

impl RefusedWrite<'_> {
    fn written(&self) -> Written {
        let Some(column) = self.column else {
            return match self.event.command() {
                Command::Truncate => Written::Truncated,
                Command::Update => Written::Unknown("UPDATE"),
                Command::Delete => Written::Unknown("DELETE"),
                Command::Insert => Written::Unknown("INSERT"),
            };
        };
        let fence = |row| self.event.integer(row, column);
        match self.event.command() {
            Command::Truncate => Written::Truncated,
            Command::Update => Written::Updated { old: fence(EventRow::Given), new: fence(EventRow::New) },
            Command::Delete => Written::Deleted { old: fence(EventRow::Given) },
            Command::Insert => Written::Inserted { new: fence(EventRow::Given) },
        }
    }

    /// The fence of the row before the write.
    fn stored(&self) -> Option<i64> {
        match self.written() {
            Written::Updated { old, .. } | Written::Deleted { old } => old,
            Written::Inserted { .. } | Written::Truncated | Written::Unknown(_) => None,
        }
    }

    fn refusal(&self) -> Refused {
        let table = self.event.table_name();
        let unfenced = |write| Refused::Unfenced { table: table.clone(), write };
        match self.written() {
            Written::Truncated => unfenced(UnfencedWrite::Truncate),
            Written::Unknown(command) => unfenced(UnfencedWrite::Altered(command)),
            Written::Updated { old, new } => self.judged(old, table.clone(), "UPDATE").unwrap_or_else(|| {
                unfenced(match old == new {
                    true if self.owner_of(EventRow::Given) != self.owner_of(EventRow::New) => {
                        UnfencedWrite::OwnerChanged
                    }
                    true => UnfencedWrite::NoFence("UPDATE"),
                    false => UnfencedWrite::FenceChanged,
                })
            }),
            Written::Deleted { old } => self.judged(old, table.clone(), "DELETE").unwrap_or_else(|| {
                let write = match members::open_to_moves(self.event.table()) {
                    Some(partition) => UnfencedWrite::MoveUnasked(catalog::relation_name(partition)),
                    None => UnfencedWrite::NoFence("DELETE"),
                };
                unfenced(write)
            }),
            Written::Inserted { new: None | Some(NEVER_CLAIMED) } if self.asks_new_rows() => {
                unfenced(UnfencedWrite::InsertWithout)
            }
            // What could be a new row is one that has moved here and lost its fence.
            Written::Inserted { new: None | Some(NEVER_CLAIMED) } => unfenced(UnfencedWrite::FenceChanged),
            Written::Inserted { new: Some(fence) } if self.judge(Some(fence)) == Ok(PlainVerdict::Accepted) => {
                unfenced(UnfencedWrite::FenceChanged)
            }
            Written::Inserted { new: Some(fence) } if self.judge(Some(fence)) == Err(DuplicateFence) => {
                self.duplicate(table, fence)
            }
            Written::Inserted { new: Some(fence) } => unfenced(UnfencedWrite::Insert(fence)),
        }
    }

    /// Whether each new row must carry a fence.
    fn asks_new_rows(&self) -> bool {
        self.event.condition().is_some_and(|condition| condition::asks_new_rows(condition, self.event.kind()))
    }

    /// The refusal of a row with this fence, unless a fence in use is the same.
    fn judged(&self, stored: Option<i64>, table: RelationName, command: &'static str) -> Option<Refused> {
        let may_read = self.column.is_some_and(|column| members::may_disclose(self.event.table(), column));
        let shown = may_read.then_some(stored.unwrap_or(NEVER_CLAIMED));
        let verdict = match self.judge(stored) {
            Err(DuplicateFence) => return Some(self.duplicate(table, stored.unwrap_or(NEVER_CLAIMED))),
            Ok(verdict) => verdict,
        };
        match verdict {
            PlainVerdict::Accepted if !life::has(self.event.written_by()) => {
                let fence = Fence::new(stored?.unsigned_abs())?;
                Some(Refused::Outlived { table, key: None, fence, since: life::since() })
            }
            PlainVerdict::Accepted => None,
            PlainVerdict::NoFence => Some(Refused::Unfenced { table, write: UnfencedWrite::NoFence(command) }),
            PlainVerdict::Stale(fence) => Some(Refused::StaleRow { table, stored: shown, fence }),
            PlainVerdict::Unclaimed(fence) => Some(Refused::UnclaimedRow { table, stored: shown, fence }),
        }
    }
    /// What the fences in use say to a row that has this fence.
    fn judge(&self, stored: Option<i64>) -> Result<PlainVerdict, DuplicateFence> {
        let owner = self.owner_of(EventRow::Given);
        passes::judge(Owned { fence: stored, owner: owner.as_deref().map(CStr::to_bytes) })
    }

    /// Whose the fence of a row is; none where the table keeps no owners, or nobody has said.
    fn owner_of(&self, row: EventRow) -> Option<CString> {
        let owner = self.event.value(row, self.owner?).map(Value::text);
        owner.filter(|owner| !owner.is_empty())
    }

    fn duplicate(&self, table: RelationName, fence: i64) -> Refused {
        let may_read = self.owner.is_some_and(|column| members::may_disclose(self.event.table(), column));
        let stored = self.owner_of(EventRow::Given).filter(|_| may_read);
        Refused::DuplicateRow { table, stored, fence }
    }
}
