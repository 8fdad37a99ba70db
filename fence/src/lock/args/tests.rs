use super::*;

const DAY: Millis = Millis(86_400_000);

#[test]
fn only_canonical_integers_are_numbers() {
    for word in ["1.5", "1e3", "0x10", "", " 5", "5 ", "+5", "-5", "05", "99999999999999999999", "5\n", "٥"] {
        assert_eq!(canonical(word.as_bytes()), None, "{word:?}");
    }
    assert_eq!(canonical(b"0"), Some(0));
    assert_eq!(canonical(b"18446744073709551615"), Some(u64::MAX));
    assert_eq!(canonical(b"18446744073709551616"), None);
    assert_eq!(canonical(b"100000000000000000000000000000"), None);
}

#[test]
fn a_ttl_out_of_range_is_named_with_its_range() {
    for word in ["0", "86400001", "-1", "9223372036854775807"] {
        let error = acquire(b"me", word.as_bytes(), &[], DAY).unwrap_err();
        assert_eq!(error.to_string(), "ttl-ms must be an integer from 1 to 86400000");
    }
    assert!(acquire(b"me", b"86400000", &[], DAY).is_ok());
}

#[test]
fn no_setting_allows_more_than_ten_years() {
    let error = acquire(b"me", b"9999999999999", &[], Millis(u64::MAX)).unwrap_err();
    assert_eq!(error, BadArgument::Number { name: "ttl-ms", min: 1, max: LONGEST.0 });
}

#[test]
fn an_owner_has_1_to_512_bytes() {
    assert_eq!(release(b"", &[]), Err(BadArgument::Length { name: "owner", max: OWNER_MAX, bytes: 0 }));
    assert_eq!(release(&[0; 513], &[]), Err(BadArgument::Length { name: "owner", max: OWNER_MAX, bytes: 513 }));
    assert!(release(&[0; 512], &[]).is_ok());
}

#[test]
fn there_is_no_wait_for_ever() {
    let error = acquire(b"me", b"10", &[b"WAIT", b"0"], DAY).unwrap_err();
    let said = "WAIT must be an integer from 1 to 86400000; omit WAIT to be answered at once";
    assert_eq!(error.to_string(), said);
    for word in ["00", "-1", "86400001"] {
        let error = acquire(b"me", b"10", &[b"WAIT", word.as_bytes()], DAY).unwrap_err();
        assert_eq!(error.to_string(), "WAIT must be an integer from 1 to 86400000");
    }
}

#[test]
fn a_release_leaves_the_queue_when_asked_and_not_beside_a_fence() {
    assert_eq!(release(b"me", &[]).map(|release| release.queued), Ok(false));
    assert_eq!(release(b"me", &[b"queued"]).map(|release| release.queued), Ok(true));
    let twice = release(b"me", &[b"QUEUED", b"queued"]).unwrap_err();
    assert_eq!(twice.to_string(), "syntax error: option QUEUED is given twice");
    for options in [[&b"FENCE"[..], b"33", b"QUEUED"], [b"QUEUED", b"FENCE", b"33"]] {
        let both = release(b"me", &options).unwrap_err();
        assert_eq!(both.to_string(), "syntax error: options FENCE and QUEUED exclude each other");
    }
}

#[test]
fn options_come_in_any_order_and_case_but_once() {
    let request =
        acquire(b"me", b"10", &[b"delay", b"5", b"retry", b"MaxHold", b"20", b"Ephemeral", b"WAIT", b"7"], DAY)
            .unwrap();
    let Acquire { request: Request { terms, retry, .. }, wait } = request;
    assert_eq!((terms.max_hold, terms.delay, wait, retry), (Some(Millis(20)), Some(Millis(5)), Some(Millis(7)), true));
    assert!(terms.ephemeral);
    let twice = acquire(b"me", b"10", &[b"DELAY", b"5", b"DELAY", b"5"], DAY).unwrap_err();
    assert_eq!(twice.to_string(), "syntax error: option DELAY is given twice");
    let bare = acquire(b"me", b"10", &[b"DELAY"], DAY).unwrap_err();
    assert_eq!(bare.to_string(), "syntax error: option DELAY has no value");
    let unknown = acquire(b"me", b"10", &[b"FO\x00O"], DAY).unwrap_err();
    assert_eq!(unknown.to_string(), "syntax error: unknown option 'FO\\x00O'");
}

#[test]
fn fields_come_in_pairs_and_leave_the_stamp_alone() {
    assert!(fields(&[b"a", b"1", b"b", b"fence"]).is_ok());
    assert_eq!(fields(&[]), Err(BadArgument::OddFields(0)));
    assert_eq!(fields(&[b"a", b"1", b"b"]), Err(BadArgument::OddFields(3)));
    assert_eq!(fields(&[b"a", b"1", b"fence", b"9"]), Err(BadArgument::StampField));
}

#[test]
fn a_list_of_busy_locks_has_a_length_and_an_order() {
    const COUNTERS: &[&str] = &["grants", "busy"];
    assert_eq!(top(b"10", &[], COUNTERS), Ok(Top { most: 10, by: None }));
    assert_eq!(top(b"1000", &[b"by", b"Busy"], COUNTERS), Ok(Top { most: 1_000, by: Some(1) }));
    for word in [&b"0"[..], b"1001", b"-1", b"01", b""] {
        assert_eq!(top(word, &[], COUNTERS).unwrap_err().to_string(), "n must be an integer from 1 to 1000");
    }
    for (options, said) in [
        (&[&b"BY"[..]][..], "syntax error: option BY has no value"),
        (&[b"BY", b"x"], "counter must be one of grants, busy"),
        (&[b"BY", b"busy", b"by", b"busy"], "syntax error: option BY is given twice"),
        (&[b"busy"], "syntax error: unknown option 'busy'"),
    ] {
        assert_eq!(top(b"1", options, COUNTERS).unwrap_err().to_string(), said);
    }
}

#[test]
fn a_steal_takes_a_fence_and_terms_and_never_waits() {
    let read = steal(b"me", b"10", &[b"delay", b"5", b"Fence", b"33", b"MAXHOLD", b"20"], DAY).unwrap();
    let terms = Terms { ttl: Millis(10), max_hold: Some(Millis(20)), delay: Some(Millis(5)), ephemeral: false };
    assert_eq!(read, Takeover { owner: b"me", terms, from: Fence::new(33) });
    assert_eq!(steal(b"me", b"10", &[], DAY).map(|read| read.from), Ok(None));
    for word in [&b"WAIT"[..], b"RETRY", b"EPHEMERAL", b"GT"] {
        assert_eq!(steal(b"me", b"10", &[word, b"5"], DAY), Err(BadArgument::UnknownOption(word)));
    }
    assert_eq!(steal(b"me", b"10", &[b"FENCE"], DAY), Err(BadArgument::NoValue("FENCE")));
    assert_eq!(steal(b"me", b"10", &[b"DELAY", b"5", b"DELAY", b"5"], DAY), Err(BadArgument::Repeated("DELAY")));
}

#[test]
fn an_extension_only_lengthens_when_asked() {
    let only_longer =
        |options: &[&'static [u8]]| extend(b"me", b"10", options, DAY).map(|read| read.extension.only_longer);
    assert_eq!((only_longer(&[]), only_longer(&[b"FENCE", b"33"])), (Ok(false), Ok(false)));
    assert_eq!((only_longer(&[b"gt"]), only_longer(&[b"GT", b"FENCE", b"33"])), (Ok(true), Ok(true)));
    assert_eq!(only_longer(&[b"GT", b"gt"]), Err(BadArgument::Repeated("GT")));
}

#[test]
fn a_fence_option_is_a_fence() {
    let release_of = release(b"me", &[b"FENCE", b"33"]).unwrap();
    assert_eq!(release_of.caller.fence.map(Fence::get), Some(33));
    let extension = extend(b"me", b"10", &[b"fence", b"33"], DAY).unwrap();
    assert_eq!((extension.caller.fence.map(Fence::get), extension.extension.ttl), (Some(33), Millis(10)));
    assert_eq!(extend(b"me", b"10", &[], DAY).unwrap().caller.fence, None);
    assert_eq!(extend(b"me", b"10", &[b"WAIT", b"33"], DAY), Err(BadArgument::UnknownOption(b"WAIT")));
    for word in [&b"0"[..], b"9007199254740992", b"-1", b"33.0"] {
        let error = release(b"me", &[b"FENCE", word]).unwrap_err();
        assert_eq!(error.to_string(), "fence must be an integer from 1 to 9007199254740991");
    }
}

#[test]
fn an_await_names_a_fence_and_a_time() {
    let read = await_end(b"33", b"500", DAY);
    assert_eq!(read, Ok(Await { fence: Fence::new(33).unwrap(), wait: Millis(500) }));
    assert_eq!(
        await_end(b"0", b"500", DAY).unwrap_err().to_string(),
        "fence must be an integer from 1 to 9007199254740991"
    );
    for word in [&b"0"[..], b"86400001", b"x"] {
        assert_eq!(await_end(b"33", word, DAY).unwrap_err().to_string(), "ms must be an integer from 1 to 86400000");
    }
}
