//! `fence_guard_evict`: ends the sessions that keep a newer fence out of a guard.
//!
//! A stalled holder is idle in a transaction, where a cancel changes nothing. Invariant: only a session is ended that holds the
//! guard with an older fence in the transaction that was seen, and none of a superuser's but by a superuser.

use crate::errors::Refused;
use crate::guard::holders::{Guards, Holder};
use crate::guard::resource;
use crate::server::call::{Call, Reply};
use crate::server::log;
use crate::server::processes::{self, Session};
use crate::server::rights;
use crate::server::types;
use crate::settings::accepted_number;
use crate::stats::Subject;
use crate::stats::memory::Counter;
use fence::Fence;
use pg_forms::text;
use std::ffi::CStr;

const ADVICE: &str = "Pass the fence of the newer holder, or the one that fence_guard_blockers shows, plus one.";

/// `fence_guard_evict(resource text, fence bigint)`: terminates the sessions that hold the guard with an older fence, and
/// answers their process IDs. Does not wait for their end. Written to the log.
pub(crate) fn fence_guard_evict(call: &Call) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    let (resource, fence) = (resource(&mut given)?.text(), given.number());
    let fence = accepted_number(fence).map_err(|refused| refused.of_chosen_fence("fence", ADVICE))?;
    let mut evicted = Vec::new();
    for (holder, session) in older(&resource, fence)? {
        let pid = holder.transaction.pid;
        if session.waits_for_standby {
            log::notice(
                text!["process ", pid, " is not terminated: it has committed, and waits for a standby"],
                text!["See to the standby, or to synchronous_standby_names."],
            );
        } else if processes::terminate(&holder.transaction, session.role) {
            note(&resource, fence, &holder, &session);
            Subject::Guard(&resource).count(Counter::Evictions);
            evicted.push(pid);
        }
    }
    Ok(Reply::from(types::int_array(&evicted)))
}

/// The sessions that hold the guard with an older fence. Errors: one is not the caller's to end; then none is.
fn older(resource: &CStr, fence: Fence) -> Result<Vec<(Holder, Session)>, Refused> {
    let mut found = Vec::new();
    let is_older = |holder: &Holder| holder.fence.is_some_and(|held| held < fence.get() as i64);
    let holders = Guards::open()?.holders_of(resource.to_bytes());
    if !holders.iter().any(is_older)
        && let Some(other) = holders.iter().find(|holder| !holder.transaction.is_own())
    {
        note_none(resource, fence, other);
    }
    for holder in holders.into_iter().filter(is_older) {
        if holder.transaction.is_prepared() {
            note_prepared(resource, &holder);
        } else if !holder.transaction.is_own()
            && let Some(session) = processes::session_in(&holder.transaction)
        {
            found.push((holder, session));
        }
    }
    let caller = Some(rights::current_user());
    if let Some((holder, _)) = found.iter().find(|(_, session)| processes::is_superuser(session.role))
        && !processes::is_superuser(caller)
    {
        return Err(Refused::EvictSuperuser { resource: resource.to_owned(), pid: holder.transaction.pid });
    }
    Ok(found)
}

/// Which fence it is, `fence_guard_blockers` shows to whoever may see it.
fn note_none(resource: &CStr, fence: Fence, holder: &Holder) {
    let (why, hint) = match holder.fence {
        Some(_) => (
            text!["is held with a fence that is not older than ", fence],
            "Pass the fence of the newer holder. To end the holder itself, pass the fence that fence_guard_blockers shows, plus one.",
        ),
        None => (
            text!["is held with a fence that is not known"],
            "Call it again: a transaction is just being admitted. If nothing changes, fence_guard_forget() has removed the guard: end the session with pg_terminate_backend().",
        ),
    };
    log::notice(text!["no session is terminated: guard \"", resource, "\" ", why], text![hint]);
}

fn note_prepared(resource: &CStr, holder: &Holder) {
    let fence = holder.fence.unwrap_or_default();
    log::notice(
        text!["a prepared transaction holds guard \"", resource, "\" with fence ", fence, ", and no session has it"],
        text!["Roll it back, or commit it, by the gid in fence_guard_blockers."],
    );
}

fn note(resource: &CStr, fence: Fence, holder: &Holder, session: &Session) {
    log::log_line(text![
        "pg_fence: role \"",
        processes::role_name(Some(rights::current_user())),
        "\" evicts process ",
        holder.transaction.pid,
        " of role \"",
        processes::role_name(session.role),
        "\" from guard \"",
        resource,
        "\": it holds fence ",
        holder.fence.unwrap_or_default(),
        ", older than ",
        fence
    ]);
}
