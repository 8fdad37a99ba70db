//! The one encoding of a stored hold: in snapshots, in the append-only file and in the replication stream.
//!
//! Not a memory layout. It carries spans, the wall time at which it was written and a reading of the issuer's monotonic
//! clock, so that the reader can place them on its own clock.
//! Invariant: what `encode` wrote `decode` reads back; any other bytes are an error and never a panic.
//!
//! Version 2, integers little-endian: version u8, flags u8, fence u64, written u64, held u64, left i64, incarnation u64,
//! reading u64, then longest hold u64 and delay u64 if flagged, then, if flagged, the length u16 of the fields and the
//! fields, then the owner to the end. A field is a tag u8, a length u8 and that many bytes.
//! Version 1 is the same without incarnation, reading and fields. It is still read, and no longer written.
//!
//! What a later version may add: the two highest flags, and fields with tags below 128, are ignored by a reader that does
//! not know them. All other flags and fields must be understood.

use crate::fence::Fence;
use crate::lock::ending::Ending;
use crate::lock::lease::{Hold, LONGEST, Lease, OWNER_MAX};

/// The version that is written.
pub const VERSION: u8 = 2;
/// The version that had neither the issuer's clock nor fields.
const FIRST_VERSION: u8 = 1;
/// The most bytes that `encode` writes: version and flags, eight numbers, the length of the fields, a field, the owner.
pub const ENCODED_MAX: usize = size_of::<([u8; 2], [[u8; 8]; 8], [u8; 2], [u8; ENDED_FIELD], [u8; OWNER_MAX])>();

const EPHEMERAL: u8 = 1;
const MAX_HOLD: u8 = 2;
const DELAY: u8 = 4;
const FIELDS: u8 = 8;
const KEEPS_EXPIRE: u8 = 16;
/// May be ignored.
const UNJUDGED: u8 = 64;
/// The flags above, and the two that may be ignored.
const KNOWN_FLAGS: u8 = 0b1101_1111;
/// Those of the first version: the first three.
const FIRST_KNOWN_FLAGS: u8 = 0b111;

/// The field with the number of the ending of the hold before this one.
const ENDED: u8 = 1;
const ENDED_FIELD: usize = 3;
/// Tags from here on must be understood.
const MUST_UNDERSTAND: u8 = 0x80;

/// A hold as it was when it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The bytes the client chose.
    pub owner: &'a [u8],
    /// What came along with the hold.
    pub notes: Notes,
    /// When it was written, on the clock of the issuer; `None` in version 1.
    pub issued: Option<Reading>,
    fence: Fence,
    written_us: u64,
    held_us: u64,
    left_us: i64,
    max_hold_us: Option<u64>,
    delay_us: u64,
    ephemeral: bool,
}

/// What a record carries beside the hold.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Notes {
    /// Why the hold that this one replaces ended.
    pub ended: Option<Ending>,
    /// The key keeps the time to live that a user has set on it. Without this a record removes it.
    pub keeps_expire: bool,
    /// The fence is further ahead than its server accepts: it was restored where nobody judged it, and raises none.
    pub unjudged: bool,
}

/// How a record came here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Just now, from the server that wrote it: the spans are exact, whatever the two wall clocks say.
    Stream,
    /// From a file: the wall time since it was written has passed. A clock that stepped back extends no lease.
    File,
    /// By DUMP and RESTORE, maybe to another host, whose wall clock may differ. An apparent age of up to
    /// [`TRAVEL_MAX_US`] is taken for that difference; an older dump was kept somewhere, as in a file.
    Travel,
}

/// The largest difference between two hosts' wall clocks that does not shorten a lease on its way: a minute.
pub const TRAVEL_MAX_US: u64 = 60_000_000;

/// The time of the reader or writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clocks {
    /// Microseconds on the monotonic clock, on which leases are measured.
    pub steady_us: u64,
    /// Unix time in microseconds.
    pub wall_us: u64,
}

/// A reading of the monotonic clock of an issuer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Which run of which server as a primary: a random number. Only readings of one incarnation compare.
    pub incarnation: u64,
    /// Microseconds on that clock.
    pub steady_us: u64,
}

/// The moment of writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The time of the writer.
    pub clocks: Clocks,
    /// The same moment on the clock of the issuer.
    pub issued: Reading,
}

impl Stamp {
    /// The moment at an issuer, which writes on its own clock.
    pub const fn of_issuer(incarnation: u64, clocks: Clocks) -> Stamp {
        Stamp { clocks, issued: Reading { incarnation, steady_us: clocks.steady_us } }
    }
}

/// Why bytes are not a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corrupt {
    /// Written by another version of this encoding, which is given.
    Version(u8),
    /// Fewer bytes than the fields need.
    Truncated,
    /// Flags that must be understood, and that this version does not know.
    Flags(u8),
    /// A field that must be understood, and that this version does not know.
    Field(u8),
    /// A number that no server issues as a fence.
    Fence(u64),
    /// A span above the longest that exists, in microseconds.
    Span(u64),
    /// An owner of this many bytes.
    OwnerLength(usize),
}

/// Writes `hold` into `buffer` as of `stamp` and returns the bytes used. A span is cut to the longest that `decode` takes:
/// a replica that reads late may have lengthened it.
pub fn encode<'b>(hold: &Hold, stamp: Stamp, notes: Notes, buffer: &'b mut [u8; ENCODED_MAX]) -> &'b [u8] {
    let lease = &hold.lease;
    let Stamp { clocks, issued } = stamp;
    let max_hold = (lease.limit_us != u64::MAX).then(|| longest(lease.limit_us.saturating_sub(lease.granted_us)));
    let delay = (lease.delay_us != 0).then(|| longest(lease.delay_us));
    let flags = [
        (lease.ephemeral, EPHEMERAL),
        (max_hold.is_some(), MAX_HOLD),
        (delay.is_some(), DELAY),
        (notes.ended.is_some(), FIELDS),
        (notes.keeps_expire, KEEPS_EXPIRE),
        (notes.unjudged, UNJUDGED),
    ];
    let flags = flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag)).sum();
    let left_us = match lease.deadline_us.checked_sub(clocks.steady_us) {
        Some(left_us) => longest(left_us),
        None => lease.deadline_us.wrapping_sub(clocks.steady_us), // negative in two's complement: it has passed
    };
    let held_us = clocks.steady_us.saturating_sub(lease.granted_us);

    let mut used = 0;
    let mut put = |bytes: &[u8]| {
        buffer[used..used + bytes.len()].copy_from_slice(bytes);
        used += bytes.len();
    };
    put(&[VERSION, flags]);
    for number in [lease.fence.get(), clocks.wall_us, held_us, left_us, issued.incarnation, issued.steady_us] {
        put(&number.to_le_bytes());
    }
    for number in [max_hold, delay].into_iter().flatten() {
        put(&number.to_le_bytes());
    }
    if let Some(ending) = notes.ended {
        put(&(ENDED_FIELD as u16).to_le_bytes());
        put(&[ENDED, 1, ending.number()]);
    }
    put(&hold.owner[..hold.owner.len().min(OWNER_MAX)]);
    &buffer[..used]
}

/// Reads a record. The bytes may come from anyone, so whatever could do harm is bounded: the fence, the time left, the
/// spans, the owner. Times in the past are harmless.
pub fn decode(bytes: &[u8]) -> Result<Record<'_>, Corrupt> {
    let (&[version, flags], mut rest) = bytes.split_first_chunk().ok_or(Corrupt::Truncated)?;
    let known = match version {
        VERSION => KNOWN_FLAGS,
        FIRST_VERSION => FIRST_KNOWN_FLAGS,
        _ => return Err(Corrupt::Version(version)),
    };
    if flags & !known != 0 {
        return Err(Corrupt::Flags(flags));
    }
    let fence = take(&mut rest)?;
    let written_us = take(&mut rest)?;
    let held_us = take(&mut rest)?;
    let left_us = take(&mut rest)? as i64;
    let issued = match version {
        FIRST_VERSION => None,
        _ => Some(Reading { incarnation: take(&mut rest)?, steady_us: take(&mut rest)? }),
    };
    let max_hold_us = if flags & MAX_HOLD != 0 { Some(span(take(&mut rest)?)?) } else { None };
    let delay_us = if flags & DELAY != 0 { span(take(&mut rest)?)? } else { 0 };
    let ended = if flags & FIELDS != 0 { ended(fields(&mut rest)?)? } else { None };
    span(left_us.max(0) as u64)?;
    if rest.is_empty() || rest.len() > OWNER_MAX {
        return Err(Corrupt::OwnerLength(rest.len()));
    }
    let fence = Fence::new(fence).ok_or(Corrupt::Fence(fence))?;
    let notes = Notes { ended, keeps_expire: flags & KEEPS_EXPIRE != 0, unjudged: flags & UNJUDGED != 0 };
    let ephemeral = flags & EPHEMERAL != 0;
    Ok(Record { owner: rest, notes, issued, fence, written_us, held_us, left_us, max_hold_us, delay_us, ephemeral })
}

/// Splits the fields off.
fn fields<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Corrupt> {
    let (length, after) = rest.split_first_chunk().ok_or(Corrupt::Truncated)?;
    let length = usize::from(u16::from_le_bytes(*length));
    let (fields, after) = after.split_at_checked(length).ok_or(Corrupt::Truncated)?;
    *rest = after;
    Ok(fields)
}

/// Why the hold before ended, if a field says so. The last of several such fields counts.
fn ended(fields: &[u8]) -> Result<Option<Ending>, Corrupt> {
    let mut ended = None;
    read_fields(fields, |tag, content| {
        if let (ENDED, &[number, ..]) = (tag, content) {
            ended = Some(Ending::numbered(number));
        }
    })?;
    Ok(ended)
}

/// Checks the fields after the last fence of a snapshot. There are none yet: those of a later version may be ignored, or are
/// an error.
pub fn read_snapshot_fields(fields: &[u8]) -> Result<(), Corrupt> {
    read_fields(fields, |_, _| ())
}

/// Passes each field whose tag may be ignored to `take`.
fn read_fields(mut fields: &[u8], mut take: impl FnMut(u8, &[u8])) -> Result<(), Corrupt> {
    while !fields.is_empty() {
        let (&[tag, length], after) = fields.split_first_chunk().ok_or(Corrupt::Truncated)?;
        let (content, after) = after.split_at_checked(usize::from(length)).ok_or(Corrupt::Truncated)?;
        fields = after;
        if tag >= MUST_UNDERSTAND {
            return Err(Corrupt::Field(tag));
        }
        take(tag, content);
    }
    Ok(())
}

fn take(rest: &mut &[u8]) -> Result<u64, Corrupt> {
    let (field, after) = rest.split_first_chunk().ok_or(Corrupt::Truncated)?;
    *rest = after;
    Ok(u64::from_le_bytes(*field))
}

fn longest(micros: u64) -> u64 {
    micros.min(LONGEST.as_micros())
}

fn span(micros: u64) -> Result<u64, Corrupt> {
    if micros > LONGEST.as_micros() { Err(Corrupt::Span(micros)) } else { Ok(micros) }
}

impl Record<'_> {
    /// The fence of the hold.
    pub const fn fence(&self) -> Fence {
        self.fence
    }

    /// Whether the lease had ended when this was written.
    pub const fn has_ended(&self) -> bool {
        self.left_us <= 0
    }

    /// The lease on the reader's clock.
    pub fn lease(&self, clocks: Clocks, route: Route) -> Lease {
        self.lease_written_at(self.written_us(clocks, route))
    }

    /// When it was written, on the reader's monotonic clock.
    pub fn written_us(&self, clocks: Clocks, route: Route) -> u64 {
        let age_us = clocks.wall_us.saturating_sub(self.written_us);
        let passed_us = match route {
            Route::Stream => 0,
            Route::File => age_us,
            Route::Travel => {
                if age_us <= TRAVEL_MAX_US {
                    0
                } else {
                    age_us
                }
            }
        };
        clocks.steady_us.saturating_sub(passed_us)
    }

    /// The lease, if the record was written at this time of the reader's monotonic clock.
    pub fn lease_written_at(&self, written_us: u64) -> Lease {
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
mod tests;
