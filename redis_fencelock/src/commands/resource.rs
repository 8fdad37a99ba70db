//! Redis as the protected resource: a hash whose field `fence` is its stamp.
//!
//! Not the rule, which is `fence::resource`. Reads and writes go through the server's own commands, so replication,
//! events and memory limits are the server's too.
//! Invariant: a refused call changes nothing, and the stamp never goes down.

use fence::lock::args::{self, STAMP};
use fence::lock::queue::LockName;
use fence::resource::{Step, Verdict, read_stamp};
use fence::{Fence, FenceLimits, FenceRefused};

use crate::commands::lock::{Answer, Reply, Words};
use crate::counters::Count;
use crate::ffi::{Ctx, Hash};
use crate::lock::slot::WRONG_TYPE;
use crate::server::server;

/// How far ahead of the clock a caller's fence may be: one wrong call must not shut a resource for years.
const AHEAD_US: u64 = 24 * 3_600 * 1_000_000;

/// `FENCELOCK.CLAIM resource fence`
pub(crate) fn claim(ctx: Ctx, words: &Words) -> Reply {
    let fence = fence_of(words.at(2))?;
    let stored = stored(ctx, words)?;
    let lock = LockName { db: ctx.selected_db(), name: words.at(1) };
    if Step::Claim.judge(stored, fence) == Verdict::Stale {
        server().stats.count_for(lock, Count::ClaimsStale);
        return Ok(Answer::Null);
    }
    if stored != Some(fence.get() as i64) {
        ctx.call_hset_number(words.key, STAMP, fence.get()).map_err(Answer::Error)?;
    }
    server().stats.count_for(lock, Count::Claims);
    ctx.call_hgetall(words.key).map(Answer::Forwarded).ok_or_else(|| Answer::Error("ERR HGETALL failed".into()))
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
            ctx.call_hset(words.key, words.names_from(3)).map_err(Answer::Error)?;
            server().stats.count_for(lock, Count::Writes);
            Ok(Answer::Integer(1))
        }
    }
}

fn fence_of(word: &[u8]) -> Result<Fence, Answer> {
    let fence = args::fence(word)?;
    let limits = FenceLimits { max: Fence::MAX, max_ahead_us: AHEAD_US };
    limits.accept(fence.get() as i64, server().clocks().wall_us).map_err(|refused| match refused {
        FenceRefused::AheadOfClock(horizon) => Answer::Error(format!(
            "ERR fence {fence} is more than a day ahead of the clock: the largest accepted now is {horizon}"
        )),
        FenceRefused::NotPositive | FenceRefused::AboveMax(_) => {
            Answer::Error(format!("ERR fence {fence} is no fence"))
        }
    })
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
