//! The arguments of the functions of leases: what the module takes as words of a command, as values of SQL.
//!
//! Invariant: every error names the argument and its range, and is found before anything is read or locked.

use crate::errors::Refused;
use crate::server::call::{Arguments, Call};
use crate::server::text::Bytes;
use crate::settings;
use fence::Fence;
use fence::lock::args::{self, BadArgument};
use fence::lock::lease::{Caller, Extension, Millis, Request, Terms};

/// The longest name: an entry of the table's index must fit a third of a page.
const MAX_NAME_BYTES: usize = 1024;

/// A request to acquire a lock.
pub(crate) struct Acquire<'c> {
    pub(crate) lock: Bytes<'c>,
    pub(crate) owner: Bytes<'c>,
    terms: Terms,
    pub(crate) wait: Option<Millis>,
    retry: bool,
}

impl<'c> Acquire<'c> {
    /// `(lock, owner, ttl_ms, wait_ms, retry, maxhold_ms, delay_ms)`
    pub(crate) fn read(call: &'c Call) -> Result<Acquire<'c>, Refused> {
        let mut given = call.arguments();
        let (lock, owner, ttl) = (lock(&mut given)?, owner(&mut given)?, ttl(&mut given)?);
        let wait = given.number().map(wait).transpose()?;
        let retry = given.truth().ok_or(Refused::NullArgument("retry"))?;
        let max_hold = given.number().map(|ms| span("maxhold_ms", ms)).transpose()?;
        let delay = given.number().map(|ms| span("delay_ms", ms)).transpose()?;
        let terms = Terms { ttl, max_hold, delay, ephemeral: false };
        Ok(Acquire { lock, owner, terms, wait, retry })
    }

    /// `(lock, owner, ttl_ms, wait_ms, fence)`, of which the fence is the answer's.
    pub(crate) fn read_waiting(call: &'c Call) -> Result<Acquire<'c>, Refused> {
        let mut given = call.arguments();
        let (lock, owner, ttl) = (lock(&mut given)?, owner(&mut given)?, ttl(&mut given)?);
        let wait = wait(given.number().ok_or(Refused::NullArgument("wait_ms"))?)?;
        let terms = Terms { ttl, max_hold: None, delay: None, ephemeral: false };
        Ok(Acquire { lock, owner, terms, wait: Some(wait), retry: false })
    }

    pub(crate) fn request(&self) -> Request<'c> {
        Request { owner: self.owner.bytes(), terms: self.terms, retry: self.retry }
    }
}

/// A request of somebody who has acquired a lock.
pub(crate) struct Held<'c> {
    pub(crate) lock: Bytes<'c>,
    pub(crate) owner: Bytes<'c>,
    fence: Option<Fence>,
}

impl<'c> Held<'c> {
    /// `(lock, owner, ttl_ms[, fence])`
    pub(crate) fn read_extending(call: &'c Call) -> Result<(Held<'c>, Extension), Refused> {
        let mut given = call.arguments();
        let (lock, owner, ttl) = (lock(&mut given)?, owner(&mut given)?, ttl(&mut given)?);
        let fence = overloaded_fence(&mut given)?;
        Ok((Held { lock, owner, fence }, Extension { ttl, only_longer: false }))
    }

    /// `(lock, owner[, fence])`
    pub(crate) fn read_releasing(call: &'c Call) -> Result<Held<'c>, Refused> {
        let mut given = call.arguments();
        let (lock, owner) = (lock(&mut given)?, owner(&mut given)?);
        let fence = overloaded_fence(&mut given)?;
        Ok(Held { lock, owner, fence })
    }

    pub(crate) fn caller(&self) -> Caller<'c> {
        Caller { owner: self.owner.bytes(), fence: self.fence }
    }
}

/// The name of a lock.
pub(crate) fn lock<'c>(given: &mut Arguments<'c>) -> Result<Bytes<'c>, Refused> {
    let lock = given.bytes().ok_or(Refused::NullArgument("lock"))?;
    args::length("lock", lock.bytes(), MAX_NAME_BYTES).map_err(Refused::Argument)?;
    Ok(lock)
}

/// A fence that the caller names.
pub(crate) fn fence(given: &mut Arguments, name: &'static str) -> Result<Fence, Refused> {
    let number = given.number().ok_or(Refused::NullArgument(name))?;
    let bad = BadArgument::Number { name, min: 1, max: Fence::MAX };
    u64::try_from(number).ok().and_then(Fence::new).ok_or(Refused::Argument(bad))
}

fn owner<'c>(given: &mut Arguments<'c>) -> Result<Bytes<'c>, Refused> {
    let owner = given.bytes().ok_or(Refused::NullArgument("owner"))?;
    args::owner(owner.bytes()).map_err(Refused::Argument)?;
    Ok(owner)
}

fn ttl(given: &mut Arguments) -> Result<Millis, Refused> {
    span("ttl_ms", given.number().ok_or(Refused::NullArgument("ttl_ms"))?)
}

fn wait(ms: i64) -> Result<Millis, Refused> {
    args::wait("wait_ms", u64::try_from(ms).ok(), settings::max_ttl()).map_err(Refused::Argument)
}

fn span(name: &'static str, ms: i64) -> Result<Millis, Refused> {
    args::span(name, u64::try_from(ms).ok(), settings::max_ttl()).map_err(Refused::Argument)
}

/// The last argument of an overload that has it. NULL is not taken for the other one, which is satisfied with the owner.
fn overloaded_fence(given: &mut Arguments) -> Result<Option<Fence>, Refused> {
    if given.has_more() { fence(given, "fence").map(Some) } else { Ok(None) }
}
