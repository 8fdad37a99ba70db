//! The life of a server in which a claim counts: from a start, a promotion or the loss of its shared memory to the next.
//!
//! A server that is promoted, restored or crashed can have lost its last commits. A claim that is still there may then be
//! older than a write that is not, so whoever relies on it claims and reads again. The numbers of transactions distinguish
//! lives; a row keeps the lower half of its writer's. Invariant: what an earlier life has written is never taken for what
//! this one has, as long as fewer than 2^32 transactions came after it.

/// Lower numbers mark what no transaction of its own has written.
const FIRST_OF_A_TRANSACTION: u32 = 3;

/// Whether the transaction of this number, of which only the lower half is known, belongs to the life in which `first` was
/// the first number. `next` is the first that is not given out yet.
pub fn is_of_this_life(written_by: u32, first: u64, next: u64) -> bool {
    if written_by < FIRST_OF_A_TRANSACTION {
        return false;
    }
    // The next number is nobody's yet: its lower half stands for the number of an epoch before.
    let age = u64::from((next as u32).wrapping_sub(written_by).wrapping_sub(1)) + 1;
    next.checked_sub(age).is_some_and(|number| number >= first)
}

#[cfg(test)]
mod tests {
    use super::is_of_this_life;

    const EPOCH: u64 = 1 << 32;

    #[test]
    fn what_was_written_since_the_first_number_is_of_this_life() {
        for epoch in [0, EPOCH, 7 * EPOCH] {
            let (first, next) = (epoch + 1_000, epoch + 2_000);
            assert!(is_of_this_life(1_000, first, next));
            assert!(is_of_this_life(1_999, first, next));
            assert!(!is_of_this_life(999, first, next));
            assert!(!is_of_this_life(3, first, next));
        }
    }

    #[test]
    fn a_life_may_go_over_the_end_of_the_lower_half() {
        let (first, next) = (EPOCH - 10, EPOCH + 10);
        assert!(is_of_this_life(u32::MAX, first, next));
        assert!(is_of_this_life(u32::MAX - 9, first, next));
        assert!(is_of_this_life(9, first, next));
        assert!(!is_of_this_life(u32::MAX - 10, first, next));
        assert!(!is_of_this_life(10, first, next), "nearly an epoch old");
    }

    #[test]
    fn what_no_transaction_of_its_own_wrote_is_of_no_life() {
        for mark in 0..3 {
            assert!(!is_of_this_life(mark, 0, 5 * EPOCH));
        }
        assert!(!is_of_this_life(900, 0, 800), "no such number was given out in the first epoch");
    }
}
