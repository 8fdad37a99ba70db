use super::*;

/// Takes a cell and fills it with its number.
fn take(pool: &mut Pool, size: usize) -> (u32, usize) {
    let (cell, at) = pool.allocate(size).expect("there are numbers left");
    assert_eq!(at, pool.at(cell));
    // SAFETY: the cell is as large.
    unsafe { at.write_bytes(cell as u8, size) };
    (cell, size)
}

fn is_intact(pool: &Pool, (cell, size): (u32, usize)) -> bool {
    // SAFETY: `take` wrote that many bytes.
    unsafe { std::slice::from_raw_parts(pool.at(cell).as_ptr(), size) }.iter().all(|&byte| byte == cell as u8)
}

#[test]
fn places_of_all_sizes_come_and_go_and_share_no_byte() {
    let (mut pool, mut taken, mut random) = (Pool::new(), Vec::new(), 1u64);
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    for step in 0..60_000 {
        // Grows first and shrinks then, so that pages fill up and become empty.
        if taken.is_empty() || next(100) < if step % 20_000 < 10_000 { 60 } else { 35 } {
            let size = if next(50) == 0 { next(20_000) } else { 40 + next(10) * 9 };
            taken.push(take(&mut pool, size));
        } else {
            let given = taken.swap_remove(next(taken.len()));
            assert!(is_intact(&pool, given));
            pool.release(given.0);
        }
        assert_eq!(pool.used, taken.len());
    }
    assert!(taken.iter().all(|&given| is_intact(&pool, given)));
    taken.iter().for_each(|&(cell, _)| pool.release(cell));
    assert!(pool.used == 0 && pool.allocated() <= IDLE_MAX * PAGE + LIST_KEPT * size_of::<Page>());
}

#[test]
fn a_lock_that_comes_and_goes_takes_no_new_page() {
    let mut pool = Pool::new();
    let (first, _) = take(&mut pool, 80);
    pool.release(first);
    let bytes = pool.allocated();
    for _ in 0..1_000 {
        assert_eq!(take(&mut pool, 80).0, first);
        pool.release(first);
    }
    assert_eq!(pool.allocated(), bytes);
}

#[test]
fn a_new_generation_shares_no_page_with_an_earlier_one_and_uses_its_empty_pages_again() {
    let mut pool = Pool::new();
    let earlier: Vec<u32> = (0..250).map(|_| take(&mut pool, 80).0).collect();
    assert_eq!(pool.begin_generation(), 1);
    pool.release(earlier[0]);
    let later: Vec<u32> = (0..250).map(|_| take(&mut pool, 80).0).collect();
    assert!(earlier[1..].iter().all(|&cell| pool.generation_of(cell) == 0));
    assert!(later.iter().all(|&cell| pool.generation_of(cell) == 1));
    let bytes = pool.allocated();
    earlier[1..].iter().for_each(|&cell| pool.release(cell));
    (0..200).for_each(|_| _ = take(&mut pool, 80));
    assert_eq!(pool.allocated(), bytes);
}

#[test]
fn memory_follows_what_is_in_use() {
    let mut pool = Pool::new();
    let cells: Vec<u32> = (0..100_000).map(|_| take(&mut pool, 87).0).collect();
    assert!(pool.allocated() < 100_000 * 90);
    cells[50_000..].iter().for_each(|&cell| pool.release(cell));
    assert!(pool.allocated() < 50_000 * 91);
    cells[..50_000].iter().for_each(|&cell| pool.release(cell));
    assert_eq!(pool.allocated(), 0);
}

#[test]
fn what_is_too_large_to_share_a_page_has_one_of_its_size() {
    let mut pool = Pool::new();
    let lists = pool.allocated();
    let (cell, _) = take(&mut pool, SHARED_MAX + 1);
    assert!(pool.bytes == Pool::rounded(SHARED_MAX + 1) && pool.allocated() > lists);
    pool.release(cell);
    assert_eq!(pool.bytes, 0);
}

#[test]
fn a_visit_in_steps_sees_every_place_once() {
    let mut pool = Pool::new();
    let mut expected: Vec<_> =
        (0..5_000).map(|i| take(&mut pool, if i % 7 == 0 { 3_000 } else { 40 + i % 64 }).0).collect();
    let (mut seen, mut from) = (Vec::new(), Some(0));
    while let Some(position) = from {
        from = pool.visit(position, 700, |at| seen.push(at));
    }
    let mut expected: Vec<_> = expected.drain(..).map(|cell| pool.at(cell)).collect();
    expected.sort_unstable();
    seen.sort_unstable();
    assert_eq!(seen, expected);
}
