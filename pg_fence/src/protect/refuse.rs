//! The trigger that refuses a write on a protected table, and says why.
//!
//! It is fired for rows that the WHEN condition of the trigger has turned away (`passes`), and for every TRUNCATE; it
//! never lets one through. Invariant: the stored fence is told where the client could read the row itself.

use crate::errors::{Refused, UnfencedWrite};
use crate::protect::condition;
use crate::protect::members;
use crate::protect::passes;
use crate::server::call::{Call, Reply};
use crate::server::catalog::{self, RelationName};
use crate::stats;
use fence::resource::{NEVER_CLAIMED, PlainVerdict};
use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;

/// The event that a trigger was fired for.
pub(crate) struct TriggerEvent {
    pub(crate) table: Oid,
    data: *mut pg_sys::TriggerData,
}

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
    let event = TriggerEvent::of(call)?;
    let column = event.fence_column();
    let refused = event.refusal(column);
    stats::count_refused(event.table, &refused, event.stored(column));
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

impl TriggerEvent {
    /// The event that a function is called for as a trigger. Errors: it is not called as one.
    pub(crate) fn of(call: &Call) -> Result<TriggerEvent, Refused> {
        let data = call.trigger().ok_or(Refused::NotATrigger)?;
        // SAFETY: the relation of a trigger is open.
        Ok(TriggerEvent { table: unsafe { (*(*data).tg_relation).rd_id }, data })
    }

    /// The fence column, by the condition of the trigger itself.
    fn fence_column(&self) -> Option<i16> {
        // SAFETY: a trigger that is fired has its description; the condition is null or a text.
        unsafe {
            let trigger = &*(*self.data).tg_trigger;
            if trigger.tgqual.is_null() {
                return None;
            }
            condition::fence_column(CStr::from_ptr(trigger.tgqual), trigger.tgtype)
        }
    }

    fn written(&self, column: Option<i16>) -> Written {
        // SAFETY: a row trigger has the tuples of its event.
        let (event, one, other) =
            unsafe { ((*self.data).tg_event, (*self.data).tg_trigtuple, (*self.data).tg_newtuple) };
        match (event & pg_sys::TRIGGER_EVENT_OPMASK, column) {
            (pg_sys::TRIGGER_EVENT_TRUNCATE, _) => Written::Truncated,
            (pg_sys::TRIGGER_EVENT_UPDATE, None) => Written::Unknown("UPDATE"),
            (pg_sys::TRIGGER_EVENT_DELETE, None) => Written::Unknown("DELETE"),
            (_, None) => Written::Unknown("INSERT"),
            (pg_sys::TRIGGER_EVENT_UPDATE, Some(column)) => {
                Written::Updated { old: self.fence(one, column), new: self.fence(other, column) }
            }
            (pg_sys::TRIGGER_EVENT_DELETE, Some(column)) => Written::Deleted { old: self.fence(one, column) },
            (_, Some(column)) => Written::Inserted { new: self.fence(one, column) },
        }
    }

    /// The fence of the row before the write.
    fn stored(&self, column: Option<i16>) -> Option<i64> {
        match self.written(column) {
            Written::Updated { old, .. } | Written::Deleted { old } => old,
            Written::Inserted { .. } | Written::Truncated | Written::Unknown(_) => None,
        }
    }

    fn fence(&self, tuple: pg_sys::HeapTuple, column: i16) -> Option<i64> {
        // SAFETY: the tuple is one of the trigger's table, which has this column: it is in the trigger's condition.
        unsafe {
            let descriptor = (*(*self.data).tg_relation).rd_att;
            let mut is_null = false;
            let datum = pg_sys::htup::heap_getattr(tuple, i32::from(column), descriptor, &mut is_null);
            let is_short = (*catalog::attribute(descriptor, i32::from(column) - 1)).attlen == 4;
            (!is_null).then_some(if is_short { i64::from(datum.value() as i32) } else { datum.value() as i64 })
        }
    }

    fn refusal(&self, column: Option<i16>) -> Refused {
        let table = self.name();
        let unfenced = |write| Refused::Unfenced { table: table.clone(), write };
        match self.written(column) {
            Written::Truncated => unfenced(UnfencedWrite::Truncate),
            Written::Unknown(command) => unfenced(UnfencedWrite::Altered(command)),
            Written::Updated { old, new } => self.judged(old, table.clone(), column, "UPDATE").unwrap_or_else(|| {
                unfenced(if old == new { UnfencedWrite::NoFence("UPDATE") } else { UnfencedWrite::FenceChanged })
            }),
            Written::Deleted { old } => self.judged(old, table.clone(), column, "DELETE").unwrap_or_else(|| {
                let write = match members::open_to_moves(self.table) {
                    Some(partition) => UnfencedWrite::MoveUnasked(catalog::relation_name(partition)),
                    None => UnfencedWrite::NoFence("DELETE"),
                };
                unfenced(write)
            }),
            // What could be a new row is one that has moved here and lost its fence.
            Written::Inserted { new: None | Some(NEVER_CLAIMED) } => unfenced(UnfencedWrite::FenceChanged),
            Written::Inserted { new } if passes::judge(new) == PlainVerdict::Accepted => {
                unfenced(UnfencedWrite::FenceChanged)
            }
            Written::Inserted { new: Some(fence) } => unfenced(UnfencedWrite::Insert(fence)),
        }
    }

    /// The refusal of a row with this fence, unless a fence in use is the same.
    fn judged(
        &self,
        stored: Option<i64>,
        table: RelationName,
        column: Option<i16>,
        command: &'static str,
    ) -> Option<Refused> {
        let may_read = column.is_some_and(|column| members::may_disclose(self.table, column));
        let told = may_read.then_some(stored.unwrap_or(NEVER_CLAIMED));
        match passes::judge(stored) {
            PlainVerdict::Accepted => None,
            PlainVerdict::NoFence => Some(Refused::Unfenced { table, write: UnfencedWrite::NoFence(command) }),
            PlainVerdict::Stale(fence) => Some(Refused::StaleRow { table, stored: told, fence }),
            PlainVerdict::Unclaimed(fence) => Some(Refused::UnclaimedRow { table, stored: told, fence }),
        }
    }

    fn name(&self) -> RelationName {
        // SAFETY: an open relation has its row of the catalog.
        let form = unsafe { &*(*(*self.data).tg_relation).rd_rel };
        RelationName { schema: catalog::schema_name(form.relnamespace), name: catalog::name(&form.relname) }
    }
}
