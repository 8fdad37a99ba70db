//! The one encoding of a stored hold: in snapshots, in the append-only file and in the replication stream.
//!
//! Not a memory layout. It carries spans and the wall time at which it was written, so that the reader can place them on
//! its own clock.
//! Invariant: what `encode` wrote `decode` reads back; any other bytes are an error and never a panic.
//!
//! Version 1, integers little-endian: version u8, flags u8, fence u64, written u64, held u64, left i64, then longest hold
//! u64 and delay u64 if flagged, then the owner to the end.

use crate::fence::Fence;
use crate::lock::lease::{Hold, LONGEST, Lease, OWNER_MAX};

/// The version that is written.
pub const VERSION: u8 = 1;
/// The most bytes that `encode` writes.
pub const ENCODED_MAX: usize = 2 + 6 * 8 + OWNER_MAX;

const EPHEMERAL: u8 = 1;
const MAX_HOLD: u8 = 2;
const DELAY: u8 = 4;

/// A hold as it was when it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The bytes the client chose.
    pub owner: &'a [u8],
    fence: Fence,
    written_us: u64,
    held_us: u64,
    left_us: i64,
    max_hold_us: Option<u64>,
    delay_us: u64,
    ephemeral: bool,
}

/// How a record came here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Just now, from the server that wrote it: the spans hold as they stand, whatever the two wall clocks say.
    Stream,
    /// From a file: the wall time since it was written has passed. A clock that stepped back prolongs nothing.
    File,
}

/// The time of the reader or writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clocks {
    /// Microseconds on the clock of leases.
    pub steady_us: u64,
    /// Unix time in microseconds.
    pub wall_us: u64,
}

/// Why bytes are no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corrupt {
    /// Written by another version of this encoding, which is given.
    Version(u8),
    /// Fewer bytes than the fields need.
    Truncated,
    /// A flag that this version does not know.
    Flags(u8),
    /// A number that no server issues as a fence.
    Fence(u64),
    /// A span above the longest that exists, in microseconds.
    Span(u64),
    /// An owner of this many bytes.
    OwnerLength(usize),
}

/// Writes `hold` into `buffer` as of `clocks` and returns the bytes used.
pub fn encode<'b>(hold: &Hold, clocks: Clocks, buffer: &'b mut [u8; ENCODED_MAX]) -> &'b [u8] {
    let lease = &hold.lease;
    let max_hold = (lease.limit_us != u64::MAX).then(|| lease.limit_us.saturating_sub(lease.granted_us));
    let delay = (lease.delay_us != 0).then_some(lease.delay_us);
    let flags = if lease.ephemeral { EPHEMERAL } else { 0 }
        | if max_hold.is_some() { MAX_HOLD } else { 0 }
        | if delay.is_some() { DELAY } else { 0 };
    let left_us = lease.deadline_us.wrapping_sub(clocks.steady_us); // negative in two's complement once it has passed
    let held_us = clocks.steady_us.saturating_sub(lease.granted_us);

    let mut used = 0;
    let mut put = |bytes: &[u8]| {
        buffer[used..used + bytes.len()].copy_from_slice(bytes);
        used += bytes.len();
    };
    put(&[VERSION, flags]);
    for field in [lease.fence.get(), clocks.wall_us, held_us, left_us] {
        put(&field.to_le_bytes());
    }
    for field in [max_hold, delay].into_iter().flatten() {
        put(&field.to_le_bytes());
    }
    put(&hold.owner[..hold.owner.len().min(OWNER_MAX)]);
    &buffer[..used]
}

/// Reads a record. What could do harm is bounded here, because the bytes may come from anyone: the fence, the time left,
/// the spans, the owner. Times in the past are harmless.
pub fn decode(bytes: &[u8]) -> Result<Record<'_>, Corrupt> {
    let (&[version, flags], mut rest) = bytes.split_first_chunk().ok_or(Corrupt::Truncated)?;
    if version != VERSION {
        return Err(Corrupt::Version(version));
    }
    if flags & !(EPHEMERAL | MAX_HOLD | DELAY) != 0 {
        return Err(Corrupt::Flags(flags));
    }
    let fence = take(&mut rest)?;
    let written_us = take(&mut rest)?;
    let held_us = take(&mut rest)?;
    let left_us = take(&mut rest)? as i64;
    let max_hold_us = if flags & MAX_HOLD != 0 { Some(span(take(&mut rest)?)?) } else { None };
    let delay_us = if flags & DELAY != 0 { span(take(&mut rest)?)? } else { 0 };
    if left_us > 0 {
        span(left_us as u64)?;
    }
    if rest.is_empty() || rest.len() > OWNER_MAX {
        return Err(Corrupt::OwnerLength(rest.len()));
    }
    let fence = Fence::new(fence).ok_or(Corrupt::Fence(fence))?;
    let ephemeral = flags & EPHEMERAL != 0;
    Ok(Record { owner: rest, fence, written_us, held_us, left_us, max_hold_us, delay_us, ephemeral })
}

fn take(rest: &mut &[u8]) -> Result<u64, Corrupt> {
    let (field, after) = rest.split_first_chunk().ok_or(Corrupt::Truncated)?;
    *rest = after;
    Ok(u64::from_le_bytes(*field))
}

fn span(micros: u64) -> Result<u64, Corrupt> {
    if micros > LONGEST.as_micros() { Err(Corrupt::Span(micros)) } else { Ok(micros) }
}

impl Record<'_> {
    /// The fence of the hold.
    pub const fn fence(&self) -> Fence {
        self.fence
    }

    /// The lease on the reader's clock.
    pub fn lease(&self, clocks: Clocks, route: Route) -> Lease {
        let passed_us = match route {
            Route::Stream => 0,
            Route::File => clocks.wall_us.saturating_sub(self.written_us),
        };
        let written_us = clocks.steady_us.saturating_sub(passed_us);
        let granted_us = written_us.saturating_sub(self.held_us);
        Lease {
            fence: self.fence,
            granted_us,
            deadline_us: written_us.saturating_add_signed(self.left_us),
            limit_us: self.max_hold_us.map_or(u64::MAX, |hold| granted_us.saturating_add(hold)),
            delay_us: self.delay_us,
            ephemeral: self.ephemeral,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lease = Lease {
        fence: match Fence::new(1_764_000_000_000_033) {
            Some(fence) => fence,
            None => unreachable!(),
        },
        granted_us: 1_000_000,
        deadline_us: 31_000_000,
        limit_us: 61_000_000,
        delay_us: 5_000,
        ephemeral: true,
    };
    const PLAIN: Lease = Lease { limit_us: u64::MAX, delay_us: 0, ephemeral: false, ..LEASE };
    const WRITTEN: Clocks = Clocks { steady_us: 11_000_000, wall_us: 500_000_000 };

    fn encoded(lease: Lease) -> Vec<u8> {
        encode(&Hold { lease, owner: b"me" }, WRITTEN, &mut [0; ENCODED_MAX]).to_vec()
    }

    #[test]
    fn the_stream_carries_the_time_left_whatever_the_clocks_say() {
        for lease in [LEASE, PLAIN] {
            let bytes = encoded(lease);
            let record = decode(&bytes).unwrap();
            assert_eq!(record.owner, b"me");
            let reader = Clocks { steady_us: 11_000_000, wall_us: 0 };
            assert_eq!(record.lease(reader, Route::Stream), lease);
        }
    }

    #[test]
    fn a_file_counts_the_time_since_it_was_written() {
        let bytes = encoded(LEASE);
        let reader = Clocks { steady_us: 90_000_000, wall_us: 503_000_000 };
        let lease = decode(&bytes).unwrap().lease(reader, Route::File);
        assert_eq!(lease.deadline_us - reader.steady_us, 17_000_000);
        assert_eq!(reader.steady_us - lease.granted_us, 13_000_000);
        assert_eq!(lease.limit_us - lease.granted_us, 60_000_000);
    }

    #[test]
    fn a_wall_clock_that_stepped_back_prolongs_no_lease() {
        let bytes = encoded(PLAIN);
        let reader = Clocks { steady_us: 90_000_000, wall_us: 1 };
        let lease = decode(&bytes).unwrap().lease(reader, Route::File);
        assert_eq!(lease.deadline_us - reader.steady_us, 20_000_000);
    }

    #[test]
    fn a_lease_that_ended_before_it_was_written_has_ended_after() {
        let past = Lease { deadline_us: 10_000_000, ..LEASE };
        let bytes = encoded(past);
        let lease = decode(&bytes).unwrap().lease(WRITTEN, Route::Stream);
        assert_eq!(lease, past);
    }

    #[test]
    fn every_field_is_bounded() {
        let good = encoded(PLAIN);
        let with = |at: usize, field: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + field.len()].copy_from_slice(field);
            bytes
        };
        assert_eq!(decode(&with(0, &[2])), Err(Corrupt::Version(2)));
        assert_eq!(decode(&with(1, &[0x80])), Err(Corrupt::Flags(0x80)));
        assert_eq!(decode(&with(2, &0u64.to_le_bytes())), Err(Corrupt::Fence(0)));
        assert_eq!(decode(&with(2, &(1u64 << 53).to_le_bytes())), Err(Corrupt::Fence(1 << 53)));
        assert_eq!(decode(&with(26, &i64::MAX.to_le_bytes())), Err(Corrupt::Span(i64::MAX as u64)));
        for length in 0..34 {
            assert_eq!(decode(&good[..length]), Err(Corrupt::Truncated), "{length} bytes");
        }
        assert_eq!(decode(&good[..34]), Err(Corrupt::OwnerLength(0)));
        let long = [&good[..34], &[b'x'; OWNER_MAX + 1]].concat();
        assert_eq!(decode(&long), Err(Corrupt::OwnerLength(OWNER_MAX + 1)));
    }
}
