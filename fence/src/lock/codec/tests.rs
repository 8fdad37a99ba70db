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
const ENDED: Notes = Notes { ended: Some(Ending::Stolen), keeps_expire: false, unjudged: false };
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
fn a_record_says_whether_its_lease_had_ended() {
    for (left_us, has_ended) in [(1, false), (0, true), (-1, true)] {
        let deadline_us = WRITTEN.steady_us.saturating_add_signed(left_us);
        assert_eq!(decode(&encoded(Lease { deadline_us, ..PLAIN })).unwrap().has_ended(), has_ended, "{left_us}");
    }
}

#[test]
fn what_came_along_is_read_back() {
    for notes in [Notes::default(), ENDED, Notes { keeps_expire: true, ..ENDED }, Notes { unjudged: true, ..ENDED }] {
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
fn the_fields_of_a_snapshot_may_be_ignored_or_must_be_understood() {
    assert_eq!(read_snapshot_fields(b""), Ok(()));
    assert_eq!(read_snapshot_fields(&[9, 2, 1, 1, 0x7f, 0]), Ok(()));
    assert_eq!(read_snapshot_fields(&[9, 0, 0x80, 0]), Err(Corrupt::Field(0x80)));
    assert_eq!(read_snapshot_fields(&[9, 2, 1]), Err(Corrupt::Truncated));
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
    let longest_us = LONGEST.as_micros();
    for (flags, at) in [(0, 26), (MAX_HOLD, OWNER_AT), (DELAY, OWNER_AT)] {
        let with_span = |micros: u64| [&[VERSION, flags], &good[2..at], &micros.to_le_bytes(), &good[at..]].concat();
        let with_span = |micros| if at == 26 { with(at, &u64::to_le_bytes(micros)) } else { with_span(micros) };
        assert!(decode(&with_span(longest_us)).is_ok(), "{flags}");
        assert_eq!(decode(&with_span(longest_us + 1)), Err(Corrupt::Span(longest_us + 1)), "{flags}");
    }
    for length in 0..OWNER_AT {
        assert_eq!(decode(&good[..length]), Err(Corrupt::Truncated), "{length} bytes");
    }
    assert_eq!(decode(&good[..OWNER_AT]), Err(Corrupt::OwnerLength(0)));
    let longest = [&good[..OWNER_AT], &[b'x'; OWNER_MAX]].concat();
    assert_eq!(decode(&longest).unwrap().owner.len(), OWNER_MAX);
    let long = [&good[..OWNER_AT], &[b'x'; OWNER_MAX + 1]].concat();
    assert_eq!(decode(&long), Err(Corrupt::OwnerLength(OWNER_MAX + 1)));
}
