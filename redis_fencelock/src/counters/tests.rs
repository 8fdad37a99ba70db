use super::*;

fn lock(name: &[u8]) -> LockName<'_> {
    LockName { db: 0, name }
}

#[test]
fn a_busy_name_stays_however_many_rare_ones_pass() {
    let stats = Stats::new();
    stats.set_names(8);
    for rare in 0..10_000u32 {
        stats.count_for(lock(b"busy"), Count::Grants);
        stats.count_for(lock(&rare.to_le_bytes()), Count::Grants);
    }
    let busy = stats.of_name(lock(b"busy")).expect("the busy name is in the table");
    assert_eq!(POSITION_OF[Count::Grants as usize].map(|place| busy.counts[place]), Some(10_000));
    assert_eq!(stats.get(Count::Grants as usize), 20_000);
}

#[test]
fn the_busiest_names_come_first_and_idle_ones_not_at_all() {
    let stats = Stats::new();
    stats.set_names(64);
    for (name, busy, waits) in [(&b"a"[..], 2, 0), (b"b", 1, 2), (b"c", 0, 0), (b"d", 0, 2), (b"e", 1, 0)] {
        stats.count_for(lock(name), Count::Grants);
        (0..busy).for_each(|_| stats.count_for(lock(name), Count::Busy));
        (0..waits).for_each(|_| stats.count_for(lock(name), Count::Waits));
    }
    let top = |most, field: &str, waiting: fn(LockName) -> usize| -> Vec<Vec<u8>> {
        let field = NAME_FIELDS.iter().position(|&name| name == field).unwrap();
        stats.top(most, field, waiting).into_iter().map(|stats| stats.name.into()).collect()
    };
    let nobody = |_: LockName| 0;
    assert_eq!(NAME_FIELDS[HOW_BUSY], "contended");
    assert_eq!(top(10, "contended", nobody), [b"b", b"a", b"d", b"e"]);
    assert_eq!(top(2, "contended", nobody), [b"b", b"a"]);
    assert_eq!(top(10, "busy", nobody), [b"a", b"b", b"e"]);
    assert_eq!(top(10, "grants", nobody).len(), 5);
    assert_eq!(top(10, "waiters", |lock| usize::from(lock.name == b"c")), [b"c"]);
    assert!(top(10, "late-releases", nobody).is_empty());
}

#[test]
fn a_table_of_no_names_counts_the_server_alone() {
    let stats = Stats::new();
    stats.set_names(0);
    stats.count_for(lock(b"k"), Count::Busy);
    assert!(stats.of_name(lock(b"k")).is_none());
    assert_eq!(stats.get(Count::Busy as usize), 1);
}
