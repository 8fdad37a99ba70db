//! The one encoding of a stored hold: in snapshots, in the append-only file and in the replication stream.
//!
//! Not a memory layout. It carries spans, the wall time at which it was written and the reading of the issuer's clock of
//! leases, so that the reader can place them on its own clock.
//! Invariant: what `encode` wrote `decode` reads back; any other bytes are an error and never a panic.
//!
//! Version 2, integers little-endian: version u8, flags u8, fence u64, written u64, held u64, left i64, incarnation u64,
//! reading u64, then longest hold u64 and delay u64 if flagged, then, if flagged, the length u16 of the fields and the
//! fields, then the owner to the end. A field is a tag u8, a length u8 and that many bytes.
//! Version 1 is the same without incarnation, reading and fields. It is read and no longer written.
//!
//! What a later version adds: of the flags, the two highest bits may be ignored by who does not know them, and the others
//! must be understood. Of the tags, those below 128 may be ignored.

use crate::fence::Fence;
use crate::lock::ending::Ending;
use crate::lock::lease::{Hold, LONGEST, Lease, OWNER_MAX};

/// The version that is written.
pub const VERSION: u8 = 2;
/// The version that had neither the issuer's clock nor fields.
const FIRST_VERSION: u8 = 1;
/// The most bytes that `encode` writes.
pub const ENCODED_MAX: usize = 2 + 8 * 8 + size_of::<u16>() + ENDED_FIELD + OWNER_MAX;

const EPHEMERAL: u8 = 1;
const MAX_HOLD: u8 = 2;
const DELAY: u8 = 4;
const FIELDS: u8 = 8;
const KEEPS_EXPIRE: u8 = 16;
const IGNORABLE_FLAGS: u8 = 0xc0;

/// The field that says why the hold before this one ended: the number of an ending.
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
    /// The clock of leases on which it was written; `None` in version 1.
    pub issued: Option<Reading>,
    fence: Fence,
    written_us: u64,
    held_us: u64,
    left_us: i64,
    max_hold_us: Option<u64>,
    delay_us: u64,
    ephemeral: bool,
}

/// What a record says beside the hold.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Notes {
    /// Why the hold that this one replaces ended.
    pub ended: Option<Ending>,
    /// The time to live that a user set on the key stays. Without this a record takes it away.
    pub keeps_expire: bool,
}

/// How a record came here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Just now, from the server that wrote it: the spans hold as they stand, whatever the two wall clocks say.
    Stream,
    /// From a file: the wall time since it was written has passed. A clock that stepped back prolongs nothing.
    File,
    /// By DUMP and RESTORE, maybe to another host: the two wall clocks may differ. Up to [`TRAVEL_MAX_US`] of apparent age
    /// are taken for that, and nothing has passed; a dump that is older was kept somewhere, as in a file.
    Travel,
}

/// The largest difference of two hosts' wall clocks for which a lease does not get shorter when it travels: a minute.
pub const TRAVEL_MAX_US: u64 = 60 * 1_000_000;

/// The time of the reader or writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clocks {
    /// Microseconds on the clock of leases.
    pub steady_us: u64,
    /// Unix time in microseconds.
    pub wall_us: u64,
}

/// A reading of the clock of leases of an issuer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Which run of which server as a primary: a number drawn at random. Readings compare within one alone.
    pub incarnation: u64,
    /// Microseconds on that clock.
    pub steady_us: u64,
}

/// The moment of writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The time of the writer.
    pub clocks: Clocks,
    /// The same moment on the issuer's clock of leases.
    pub issued: Reading,
}

impl Stamp {
    /// The moment at an issuer, which writes on its own clock.
    pub const fn of_issuer(incarnation: u64, clocks: Clocks) -> Stamp {
        Stamp { clocks, issued: Reading { incarnation, steady_us: clocks.steady_us } }
    }
}

/// Why bytes are no record.
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
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = flag(lease.ephemeral, EPHEMERAL)
        | flag(max_hold.is_some(), MAX_HOLD)
        | flag(delay.is_some(), DELAY)
        | flag(notes.ended.is_some(), FIELDS)
        | flag(notes.keeps_expire, KEEPS_EXPIRE);
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

/// Reads a record. What could do harm is bounded here, because the bytes may come from anyone: the fence, the time left,
/// the spans, the owner. Times in the past are harmless.
pub fn decode(bytes: &[u8]) -> Result<Record<'_>, Corrupt> {
    let (&[version, flags], mut rest) = bytes.split_first_chunk().ok_or(Corrupt::Truncated)?;
    let known = match version {
        VERSION => EPHEMERAL | MAX_HOLD | DELAY | FIELDS | KEEPS_EXPIRE | IGNORABLE_FLAGS,
        FIRST_VERSION => EPHEMERAL | MAX_HOLD | DELAY,
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
    if left_us > 0 {
        span(left_us as u64)?;
    }
    if rest.is_empty() || rest.len() > OWNER_MAX {
        return Err(Corrupt::OwnerLength(rest.len()));
    }
    let fence = Fence::new(fence).ok_or(Corrupt::Fence(fence))?;
    let notes = Notes { ended, keeps_expire: flags & KEEPS_EXPIRE != 0 };
    let ephemeral = flags & EPHEMERAL != 0;
    Ok(Record { owner: rest, notes, issued, fence, written_us, held_us, left_us, max_hold_us, delay_us, ephemeral })
}

/// Cuts the fields off.
fn fields<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Corrupt> {
    let (length, after) = rest.split_first_chunk().ok_or(Corrupt::Truncated)?;
    let length = usize::from(u16::from_le_bytes(*length));
    let (fields, after) = after.split_at_checked(length).ok_or(Corrupt::Truncated)?;
    *rest = after;
    Ok(fields)
}

/// Why the hold before ended, if a field says so. Of a field that comes twice the last counts.
fn ended(fields: &[u8]) -> Result<Option<Ending>, Corrupt> {
    let mut ended = None;
    read_fields(fields, |tag, content| {
        if let (ENDED, &[number, ..]) = (tag, content) {
            ended = Some(Ending::numbered(number));
        }
    })?;
    Ok(ended)
}

/// Reads the fields beside the last fence of a snapshot. There are none yet: those of a later version may be ignored, or
/// are an error.
pub fn read_snapshot_fields(fields: &[u8]) -> Result<(), Corrupt> {
    read_fields(fields, |_, _| ())
}

/// Calls `take` with each tag that may be ignored.
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

    /// When it was written, on the reader's clock of leases.
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

    /// The lease, if the record was written at this time of the reader's clock of leases.
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
    const ISSUED: Reading = Reading { incarnation: 77, steady_us: 12_000_000 };
    const ENDED: Notes = Notes { ended: Some(Ending::Stolen), keeps_expire: false };
    /// Where the owner of a plain lease begins.
    const OWNER_AT: usize = 50;

    fn noted(lease: Lease, notes: Notes) -> Vec<u8> {
        let stamp = Stamp { clocks: WRITTEN, issued: ISSUED };
        encode(&Hold { lease, owner: b"me" }, stamp, notes, &mut [0; ENCODED_MAX]).to_vec()
    }

    fn encoded(lease: Lease) -> Vec<u8> {
        noted(lease, Notes::default())
    }

    /// The same hold as version 1 wrote it.
    fn of_version_1(bytes: &[u8]) -> Vec<u8> {
        [&[1], &bytes[1..34], &bytes[50..]].concat()
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
    fn a_lease_that_travels_between_clocks_that_differ_keeps_its_time_and_an_old_dump_does_not() {
        let long = Lease { deadline_us: 31_000_000 + TRAVEL_MAX_US, ..PLAIN };
        let bytes = encoded(long);
        let left_s = |age_us: i64| {
            let reader = Clocks { steady_us: 900_000_000, wall_us: WRITTEN.wall_us.saturating_add_signed(age_us) };
            (decode(&bytes).unwrap().lease(reader, Route::Travel).deadline_us - reader.steady_us) / 1_000_000
        };
        let minute_us = TRAVEL_MAX_US as i64;
        assert_eq!([0, -minute_us, minute_us, -9 * minute_us].map(left_s), [80, 80, 80, 80]);
        assert_eq!(left_s(minute_us + 1_000_000), 80 - 61);
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
    fn a_span_that_a_late_reader_has_lengthened_is_written_as_the_longest() {
        let longest_us = LONGEST.as_micros();
        let delayed = Lease { delay_us: longest_us, ..LEASE }.ended_by(WRITTEN.steady_us);
        assert!(delayed.delay_us > longest_us);
        let far_us = WRITTEN.steady_us + longest_us + 1;
        for lease in [delayed, Lease { deadline_us: far_us, limit_us: far_us + 1, delay_us: u64::MAX, ..LEASE }] {
            let bytes = encoded(lease);
            let read = decode(&bytes).unwrap().lease(WRITTEN, Route::Stream);
            let deadline_us = lease.deadline_us.min(WRITTEN.steady_us + longest_us);
            assert_eq!((read.deadline_us, read.delay_us), (deadline_us, longest_us));
        }
    }

    #[test]
    fn what_came_along_is_read_back() {
        for notes in [Notes::default(), ENDED, Notes { keeps_expire: true, ..ENDED }] {
            for lease in [LEASE, PLAIN] {
                let bytes = noted(lease, notes);
                let record = decode(&bytes).unwrap();
                assert_eq!((record.owner, record.notes, record.issued), (&b"me"[..], notes, Some(ISSUED)));
                assert_eq!(record.lease(WRITTEN, Route::Stream), lease);
            }
        }
    }

    #[test]
    fn version_1_is_read() {
        for lease in [LEASE, PLAIN] {
            let bytes = of_version_1(&encoded(lease));
            let record = decode(&bytes).unwrap();
            assert_eq!((record.owner, record.notes, record.issued), (&b"me"[..], Notes::default(), None));
            assert_eq!(record.lease(WRITTEN, Route::Stream), lease);
        }
        let mut flagged = of_version_1(&encoded(PLAIN));
        flagged[1] = KEEPS_EXPIRE;
        assert_eq!(decode(&flagged), Err(Corrupt::Flags(KEEPS_EXPIRE)));
    }

    #[test]
    fn what_a_later_version_adds_is_ignored_or_refused_as_it_says() {
        let with = |flags: u8, fields: &[u8]| {
            let good = encoded(PLAIN);
            let length = (fields.len() as u16).to_le_bytes();
            [&[VERSION, flags], &good[2..OWNER_AT], &length, fields, b"me"].concat()
        };
        let ended = |bytes: &[u8]| decode(bytes).map(|record| record.notes.ended);
        assert_eq!(decode(&with(0x20, b"")), Err(Corrupt::Flags(0x20)));
        assert_eq!(ended(&with(FIELDS | 0xc0, &[9, 2, 1, 1])), Ok(None));
        assert_eq!(ended(&with(FIELDS, &[9, 0, super::ENDED, 1, 4, 0x7f, 1, 1])), Ok(Some(Ending::Stolen)));
        // A longer one of a later version begins as it does today.
        assert_eq!(ended(&with(FIELDS, &[super::ENDED, 3, 1, 8, 8])), Ok(Some(Ending::Released)));
        assert_eq!(ended(&with(FIELDS, &[super::ENDED, 0])), Ok(None));
        assert_eq!(ended(&with(FIELDS, &[super::ENDED, 1, 200])), Ok(Some(Ending::Unknown)));
        assert_eq!(ended(&with(FIELDS, b"")), Ok(None));
        assert_eq!(ended(&with(FIELDS, &[0x80, 0])), Err(Corrupt::Field(0x80)));
        assert_eq!(ended(&with(FIELDS, &[super::ENDED, 1, 4, 0xff, 1, 1])), Err(Corrupt::Field(0xff)));
        for cut in [&[9][..], &[9, 1], &[super::ENDED, 2, 1]] {
            assert_eq!(ended(&with(FIELDS, cut)), Err(Corrupt::Truncated), "{cut:?}");
        }
    }

    #[test]
    fn every_field_is_bounded() {
        let good = encoded(PLAIN);
        let with = |at: usize, field: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + field.len()].copy_from_slice(field);
            bytes
        };
        assert_eq!(decode(&with(0, &[0])), Err(Corrupt::Version(0)));
        assert_eq!(decode(&with(0, &[3])), Err(Corrupt::Version(3)));
        assert_eq!(decode(&with(2, &0u64.to_le_bytes())), Err(Corrupt::Fence(0)));
        assert_eq!(decode(&with(2, &(1u64 << 53).to_le_bytes())), Err(Corrupt::Fence(1 << 53)));
        assert_eq!(decode(&with(26, &i64::MAX.to_le_bytes())), Err(Corrupt::Span(i64::MAX as u64)));
        for length in 0..OWNER_AT {
            assert_eq!(decode(&good[..length]), Err(Corrupt::Truncated), "{length} bytes");
        }
        assert_eq!(decode(&good[..OWNER_AT]), Err(Corrupt::OwnerLength(0)));
        let long = [&good[..OWNER_AT], &[b'x'; OWNER_MAX + 1]].concat();
        assert_eq!(decode(&long), Err(Corrupt::OwnerLength(OWNER_MAX + 1)));
    }
}
