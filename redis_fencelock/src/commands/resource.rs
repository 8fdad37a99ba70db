//! Redis as the protected resource: a hash whose field `fence` is its stamp.
//!
//! Not the rule, which is `fence::resource`. What is written is propagated as HSET, before it is written, because that
//! command may be renamed.
//! Invariant: a refused call changes nothing, and the stamp never goes down.

use std::ffi::CStr;

use fence::lock::args::{self, STAMP};
use fence::lock::queue::LockName;
use fence::resource::{NEVER_CLAIMED, Step, Verdict, read_stamp};
use fence::{Brought, Fence};

use crate::commands::argv::{ANY, Argv, command};
use crate::commands::reply::{CommandResult, Reply};
use crate::counters::{self, Count};
use crate::ffi::{Ctx, Hash, Key, NotPropagated, OwnedStr, Str};
use crate::lock::slot::WRONG_TYPE;
use crate::{clock, server};

command!(on_claim, 3..=3, claim);
command!(on_write, 5..=ANY, write);

const HSET: &CStr = c"HSET";

/// `FENCELOCK.CLAIM resource fence`
fn claim(ctx: Ctx, argv: &Argv) -> CommandResult {
    let fence = fence_of(argv.at(2))?;
    let stored = stored(ctx, argv)?;
    let lock = LockName { db: ctx.selected_db(), name: argv.at(1) };
    if Step::Claim.judge(stored, fence) == Verdict::Stale {
        counters::count_for(lock, Count::ClaimsStale);
        return Ok(Reply::Null);
    }
    let key = ctx.open(argv.key());
    if stored != Some(fence.get() as i64) {
        let (field, number) = (OwnedStr::new(STAMP), OwnedStr::new(fence.to_string().as_bytes()));
        hset(ctx, &key, argv.key(), &[field.as_str(), number.as_str()])?;
    }
    counters::count_for(lock, Count::Claims);
    Ok(Reply::Fields(key))
}

/// Sets fields as HSET does, if that can be propagated.
fn hset(ctx: Ctx, key: &Key, name: Str, fields: &[Str]) -> Result<(), NotPropagated> {
    ctx.replicate_strings(HSET, name, fields)?;
    for pair in fields.chunks_exact(2) {
        key.set_field(pair[0], pair[1]);
    }
    ctx.signal_modified(name);
    ctx.notify_hset(name);
    Ok(())
}

/// `FENCELOCK.WRITE resource fence field value [field value ...]`
fn write(ctx: Ctx, argv: &Argv) -> CommandResult {
    let fence = fence_of(argv.at(2))?;
    args::fields(argv.from(3))?;
    let stored = stored(ctx, argv)?;
    let lock = LockName { db: ctx.selected_db(), name: argv.at(1) };
    match Step::Update.judge(stored, fence) {
        Verdict::Stale => {
            counters::count_for(lock, Count::WritesStale);
            Ok(Reply::Integer(0))
        }
        Verdict::Unclaimed => {
            counters::count(Count::Unclaimed);
            let stored = stored.unwrap_or(NEVER_CLAIMED);
            Err(Reply::Error(format!(
                "UNCLAIMED fence {fence} has not claimed this resource, whose stamp is {stored}: claim, read, then write"
            )))
        }
        Verdict::Accepted => {
            hset(ctx, &ctx.open(argv.key()), argv.key(), argv.strings_from(3))?;
            counters::count_for(lock, Count::Writes);
            Ok(Reply::Integer(1))
        }
    }
}

fn fence_of(argument: &[u8]) -> Result<Fence, Reply> {
    let fence = args::fence(argument)?;
    let wall_us = clock::clocks().wall_us;
    if server::accepts(fence, Brought::ByClaim, wall_us) {
        return Ok(fence);
    }
    let ahead = Brought::ByClaim.ahead_in_words();
    let largest = server::largest_accepted(Brought::ByClaim, wall_us);
    Err(Reply::Error(format!(
        "ERR fence {fence} is more than {ahead} ahead of the clock: the largest accepted now is {largest}"
    )))
}

/// The stamp of the resource; `None` when it was never claimed.
fn stored(ctx: Ctx, argv: &Argv) -> Result<Option<i64>, Reply> {
    if !server::is_primary() {
        return Err(Reply::read_only());
    }
    let text = match ctx.hash_field(argv.key(), c"fence") {
        Hash::WrongType => return Err(Reply::Error(WRONG_TYPE.into())),
        Hash::NoField => return Ok(None),
        Hash::Field(text) => text,
    };
    match read_stamp(text.as_str().bytes()) {
        Some(stamp) => Ok(Some(stamp)),
        None => Err(Reply::Error(format!(
            "ERR the stored fence of this resource is not an integer up to {}: it was not written by CLAIM",
            Fence::MAX
        ))),
    }
}
