//! The codec: any bytes are read or refused; what was read is written back the same, and placed on any sane clock.

use fence::lock::codec::{Clocks, ENCODED_MAX, Route, decode, encode};
use fence::lock::lease::{Hold, LONGEST};

use crate::input::Input;

/// Later than any real clock, and far enough from both ends for every span.
const MIDDLE_US: u64 = 1 << 62;
const DELAY: u8 = 4;

/// Two clocks, then the bytes of a record.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (Some(steady_us), Some(wall_us)) = (input.number(), input.number()) else { return };
    let Ok(record) = decode(input.0) else { return };
    let owner = record.owner;
    let clocks = Clocks { steady_us: steady_us % MIDDLE_US, wall_us };
    for route in [Route::Stream, Route::File] {
        let lease = record.lease(clocks, route);
        assert!(lease.left(clocks.steady_us) <= LONGEST);
        assert!(lease.max_hold_left(clocks.steady_us).is_none_or(|left| left <= LONGEST));
        assert!(lease.deadline_us <= lease.free_us());
        let mut buffer = [0; ENCODED_MAX];
        let written = encode(&Hold { lease, owner }, clocks, &mut buffer);
        let again = decode(written).expect("what was encoded decodes");
        assert_eq!((again.owner, again.lease(clocks, Route::Stream)), (owner, lease));
        assert_eq!(again.lease(clocks, Route::File), lease);
    }
    same_bytes(input.0);
}

/// At the moment at which it was written a record is written as the same bytes.
fn same_bytes(bytes: &[u8]) {
    let Ok(record) = decode(bytes) else { return };
    let field = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (written_us, held_us, left_us) = (field(10), field(18), field(26) as i64);
    let delay_of_0 =
        bytes[1] & DELAY != 0 && record.lease(Clocks { steady_us: 0, wall_us: 0 }, Route::Stream).delay_us == 0;
    if held_us > MIDDLE_US || left_us.unsigned_abs() > MIDDLE_US || delay_of_0 {
        return;
    }
    let clocks = Clocks { steady_us: MIDDLE_US, wall_us: written_us };
    let lease = record.lease(clocks, Route::File);
    assert_eq!(encode(&Hold { lease, owner: record.owner }, clocks, &mut [0; ENCODED_MAX]), bytes);
}
