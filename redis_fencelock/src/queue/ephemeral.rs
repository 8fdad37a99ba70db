//! Leases that end with their connection.
//!
//! Which they are is in `fence::lock::bonds`, kept in memory only: after a restart the lease survives, the bond does
//! not. Invariant: such a lease expires as it would by time, so its delay applies.

use std::cell::Cell;
use std::ops::ControlFlow::{Break, Continue};

use crate::clock;
use crate::cluster::{self, NOT_SERVED_RETRY_US};
use crate::ffi::main_thread::MainThread;
use crate::ffi::{Ctx, NotPropagated, OwnedStr};
use crate::lock::index::index;
use crate::lock::slot::Slot;
use crate::replication::Cause;
use crate::timer::alarm;

/// The ends of leases that were put off, because their key is not served or a write is not propagated.
static PUT_OFF: MainThread<PutOff> =
    MainThread::new(PutOff { due_us: Cell::new(None), from: Cell::new(0), next_us: Cell::new(None) });

struct PutOff {
    /// When to try again.
    due_us: Cell<Option<u64>>,
    /// Where to go on with that.
    from: Cell<u32>,
    /// When to try again once more those of this round that fail.
    next_us: Cell<Option<u64>>,
}

/// A connection has closed: its leases end in a moment, because nothing may be written now.
pub(crate) fn close(client: u64) {
    if index().borrow_mut().bonds.close(client) {
        alarm::arm_now();
    }
}

/// Leaves every lease to its deadline, which is what a new primary knows of it.
pub(crate) fn dissolve() {
    index().borrow_mut().bonds.dissolve();
}

/// Ends the leases whose connection has closed.
pub(crate) fn end_closed(ctx: Ctx) {
    let mut is_down = false;
    alarm::for_a_slice(|budget| {
        if is_down || *budget == 0 {
            return Break(());
        }
        let Some((cell, db)) = index().borrow_mut().bonds.next_closed() else { return Break(()) };
        *budget -= 1;
        match end(ctx, cell, db) {
            Ok(()) => index().borrow_mut().bonds.unbind(cell),
            Err(retry_us) if cluster::down_until().is_some() => {
                is_down = true;
                alarm::arm(retry_us);
            }
            Err(retry_us) => {
                index().borrow_mut().bonds.put_off(cell);
                put_off_until(retry_us);
            }
        }
        Continue(())
    });
    if !is_down && index().borrow_mut().bonds.next_closed().is_some() {
        alarm::arm_now();
    }
    end_put_off(ctx);
}

fn put_off_until(retry_us: u64) {
    let due_us = PUT_OFF.due_us.get().filter(|&due_us| due_us <= retry_us).unwrap_or(retry_us);
    PUT_OFF.due_us.set(Some(due_us));
    alarm::arm(due_us);
}

/// Tries again to end those leases whose end was put off.
fn end_put_off(ctx: Ctx) {
    let Some(due_us) = PUT_OFF.due_us.get() else { return };
    if clock::steady_us() < due_us {
        return alarm::arm(due_us);
    }
    let mut from = Some(PUT_OFF.from.get());
    alarm::for_a_slice(|budget| {
        let Some(start) = from.filter(|_| *budget > 0) else { return Break(()) };
        *budget -= 1;
        let next = index().borrow().bonds.next_put_off(start);
        from = next.map(|(cell, _)| cell + 1);
        if let Some((cell, db)) = next {
            match end(ctx, cell, db) {
                Ok(()) => index().borrow_mut().bonds.unbind(cell),
                Err(retry_us) => {
                    let earliest_us = PUT_OFF.next_us.get().map_or(retry_us, |next_us| next_us.min(retry_us));
                    PUT_OFF.next_us.set(Some(earliest_us));
                }
            }
        }
        Continue(())
    });
    PUT_OFF.from.set(from.unwrap_or(0));
    if from.is_some() {
        return alarm::arm_now();
    }
    PUT_OFF.due_us.set(PUT_OFF.next_us.take());
    alarm::arm_next(PUT_OFF.due_us.get());
}

/// Ends the lease in a cell, bound in a database, unless it has ended or moved. The error is when to try again.
fn end(ctx: Ctx, cell: u32, db: i32) -> Result<(), u64> {
    let (value, is_here) = {
        let index = index().borrow();
        let value = index.bound(cell);
        let is_here = value.is_in_keyspace() && !index.is_flushed(&value) && index.database(value.db()) == db;
        (value, is_here)
    };
    let clocks = clock::clocks();
    let lease = value.lease();
    if !is_here || !lease.is_live(clocks.steady_us) || !ctx.select_db(db) {
        return Ok(());
    }
    let name = OwnedStr::new(value.key());
    cluster::await_served_soon(ctx, name.as_str(), clocks.steady_us)?;
    match Slot::open(ctx, name.as_str(), Cause::Other) {
        Ok(slot) if slot.holds(&value) => slot
            .set_deadline(lease.expire(clocks.steady_us), clocks)
            .map_err(|NotPropagated| clocks.steady_us + NOT_SERVED_RETRY_US),
        _ => Ok(()),
    }
}
