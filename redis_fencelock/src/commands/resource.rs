//! Redis as the protected resource: a hash whose field `fence` is its stamp.
//!
//! Not the rule, which is `fence::resource`. What is written is propagated as HSET, before it is written, because that
//! command may be renamed.
//! Invariant: a refused call changes nothing, and the stamp never goes down.

use std::ffi::CStr;

use fence::lock::args::{self, STAMP};
use fence::lock::queue::LockName;
use fence::resource::{Step, Verdict, read_stamp};
use fence::{Brought, Fence};

use crate::commands::lock::{Answer, Reply, Words};
use crate::counters::Count;
use crate::ffi::{Ctx, Hash, Key, Name, NotPropagated, OwnName};
use crate::lock::slot::WRONG_TYPE;
use crate::server::server;

const HSET: &CStr = c"HSET";

/// `FENCELOCK.CLAIM resource fence`
pub(crate) fn claim(ctx: Ctx, words: &Words) -> Reply {
    let fence = fence_of(words.at(2))?;
    let stored = stored(ctx, words)?;
    let lock = LockName { db: ctx.selected_db(), name: words.at(1) };
    if Step::Claim.judge(stored, fence) == Verdict::Stale {
        server().stats.count_for(lock, Count::ClaimsStale);
        return Ok(Answer::Null);
    }
    let key = ctx.open(words.key);
    if stored != Some(fence.get() as i64) {
        let (field, number) = (OwnName::new(STAMP), OwnName::new(fence.to_string().as_bytes()));
        hset(ctx, &key, words.key, &[field.0, number.0])?;
    }
    server().stats.count_for(lock, Count::Claims);
    Ok(Answer::Fields(key))
}

/// Sets fields as HSET does, if that can be propagated.
fn hset(ctx: Ctx, key: &Key, name: Name, fields: &[Name]) -> Result<(), NotPropagated> {
    ctx.replicate_words(HSET, name, fields)?;
    for pair in fields.chunks_exact(2) {
        key.set_field(pair[0], pair[1]);
    }
    ctx.signal_modified(name);
    ctx.notify_hset(name);
    Ok(())
}

/// `FENCELOCK.WRITE resource fence field value [field value ...]`
pub(crate) fn write(ctx: Ctx, words: &Words) -> Reply {
    let fence = fence_of(words.at(2))?;
    args::fields(words.from(3))?;
    let stored = stored(ctx, words)?;
    let lock = LockName { db: ctx.selected_db(), name: words.at(1) };
    match Step::Update.judge(stored, fence) {
        Verdict::Stale => {
            server().stats.count_for(lock, Count::WritesStale);
            Ok(Answer::Integer(0))
        }
        Verdict::Unclaimed => {
            server().stats.count(Count::Unclaimed);
            let stored = stored.unwrap_or(0);
            Err(Answer::Error(format!(
                "UNCLAIMED fence {fence} has not claimed this resource, whose stamp is {stored}: claim, read, then write"
            )))
        }
        Verdict::Accepted => {
            hset(ctx, &ctx.open(words.key), words.key, words.names_from(3))?;
            server().stats.count_for(lock, Count::Writes);
            Ok(Answer::Integer(1))
        }
    }
}

fn fence_of(word: &[u8]) -> Result<Fence, Answer> {
    let fence = args::fence(word)?;
    let wall_us = server().clocks().wall_us;
    if server().issuer().accepts(fence, Brought::ByClaim, wall_us) {
        return Ok(fence);
    }
    let horizon = wall_us.saturating_add(Brought::ByClaim.ahead_us());
    Err(Answer::Error(format!(
        "ERR fence {fence} is more than two days ahead of the clock: the largest accepted now is {horizon}"
    )))
}

/// The stamp of the resource; `None` when it was never claimed.
fn stored(ctx: Ctx, words: &Words) -> Result<Option<i64>, Answer> {
    if !server().is_primary.get() {
        return Err(Answer::read_only());
    }
    let text = match ctx.hash_field(words.key, c"fence") {
        Hash::WrongType => return Err(Answer::Error(WRONG_TYPE.into())),
        Hash::NoField => return Ok(None),
        Hash::Field(text) => text,
    };
    match read_stamp(text.0.bytes()) {
        Some(stamp) => Ok(Some(stamp)),
        None => Err(Answer::Error(format!(
            "ERR the stored fence of this resource is not an integer up to {}: it was not written by CLAIM",
            Fence::MAX
        ))),
    }
}
