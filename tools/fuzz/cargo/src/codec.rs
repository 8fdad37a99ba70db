//! The codec: any bytes are read or refused; what was read is written back the same, and placed on any sane clock.

use fence::lock::codec::{Clocks, ENCODED_MAX, Notes, Reading, Record, Route, Stamp, VERSION, decode, encode};
use fence::lock::lease::{Hold, LONGEST, Lease};

use crate::input::Input;

/// Later than any real clock, and far enough from both ends for every span.
const MIDDLE_US: u64 = 1 << 62;
const DELAY: u8 = 4;
const FIELDS: u8 = 8;
const IGNORABLE: u8 = 0xc0;
/// Where the owner, the terms or the fields begin.
const FIXED: usize = 50;

/// Two clocks, then the bytes of a record.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (Some(steady_us), Some(wall_us)) = (input.number(), input.number()) else { return };
    let Ok(record) = decode(input.0) else { return };
    let clocks = Clocks { steady_us: steady_us % MIDDLE_US, wall_us };
    for route in [Route::Stream, Route::File, Route::Travel] {
        let lease = record.lease(clocks, route);
        assert!(lease.left(clocks.steady_us) <= LONGEST);
        assert!(lease.max_hold_left(clocks.steady_us).is_none_or(|left| left <= LONGEST));
        assert!(lease.deadline_us <= lease.free_us());
        let mut buffer = [0; ENCODED_MAX];
        let written = encoded(&record, lease, clocks, &mut buffer);
        let again = decode(written).expect("what was encoded decodes");
        assert_eq!((again.owner, again.notes, again.issued), (record.owner, record.notes, Some(issued(&record))));
        assert_eq!(again.lease(clocks, Route::Stream), lease);
        assert_eq!(again.lease(clocks, Route::File), lease);
    }
    same_bytes(input.0, &record);
}

fn encoded<'b>(record: &Record, lease: Lease, clocks: Clocks, buffer: &'b mut [u8; ENCODED_MAX]) -> &'b [u8] {
    let stamp = Stamp { clocks, issued: issued(record) };
    encode(&Hold { lease, owner: record.owner }, stamp, record.notes, buffer)
}

fn issued(record: &Record) -> Reading {
    record.issued.unwrap_or(Reading { incarnation: 1, steady_us: 2 })
}

/// At the moment at which it was written a record is written as the same bytes: but for what is another way to say
/// nothing, and for what this version reads over.
fn same_bytes(bytes: &[u8], record: &Record) {
    let field = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (version, flags) = (bytes[0], bytes[1]);
    let (written_us, held_us, left_us) = (field(10), field(18), field(26) as i64);
    let is_old = version != VERSION;
    let delay_of_0 =
        flags & DELAY != 0 && record.lease(Clocks { steady_us: 0, wall_us: 0 }, Route::Stream).delay_us == 0;
    let reads_over = flags & (IGNORABLE | FIELDS) != 0;
    if held_us > MIDDLE_US || left_us.unsigned_abs() > MIDDLE_US || delay_of_0 || reads_over {
        return;
    }
    let clocks = Clocks { steady_us: MIDDLE_US, wall_us: written_us };
    let lease = record.lease(clocks, Route::File);
    let mut buffer = [0; ENCODED_MAX];
    let written = encoded(record, lease, clocks, &mut buffer);
    let mut after = written[1..].to_vec();
    if is_old {
        // Version 1 has no reading of the issuer's clock.
        assert_eq!(record.notes, Notes::default());
        after.drain(33..FIXED - 1);
    }
    assert_eq!(bytes[1..], after);
}
