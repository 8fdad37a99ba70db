//! Which fence a grant gets: above the last one that was issued in this database, above the last one of the lock, and at
//! least the clock.
//!
//! The last one is a sequence. No rollback takes it back, and it is logged before the commit of the grant, so a grant that is
//! there after a crash has a number that is there too. Invariant: it is read and set under a lock of its own.

use crate::errors::Refused;
use crate::lease::store::Store;
use crate::server::locks::{LockMode, NamedLock, Purpose};
use crate::server::rights::AsOwner;
use fence::{Fence, Issuer};

/// Has `issue` issue a fence. The last one of the lock is noted first; one that nobody can have admitted is refused.
pub(crate) fn with_issuer<T>(
    store: &Store,
    last_of_lock: Option<Fence>,
    wall_us: u64,
    issue: impl FnOnce(&mut Issuer) -> T,
) -> Result<T, Refused> {
    let sequence = store.sequence();
    let _owner = AsOwner::of(sequence.oid());
    let turn = NamedLock::of_hash(Purpose::Fences, 0);
    turn.take(LockMode::Alone);
    let mut issuer = Issuer::default();
    issuer.observe(sequence.last());
    let last = issuer.last();
    if last_of_lock.is_some_and(|fence| !issuer.observe_stored(fence, wall_us)) {
        turn.release(LockMode::Alone);
        return Err(Refused::StoredFenceAhead);
    }
    let answer = issue(&mut issuer);
    if issuer.last() > last {
        sequence.set(issuer.last() as i64);
    }
    turn.release(LockMode::Alone);
    Ok(answer)
}
