//! The life of a server in which a claim counts: from a start, a promotion or the loss of its shared memory to the next.
//!
//! A server that is promoted, restored or crashed can have lost its last commits. A claim that is still there may then be
//! older than a write that is not, so whoever relies on it claims and reads again. The numbers of transactions distinguish
//! lives; a row keeps the lower half of its writer's. Invariant: what an earlier life has written is never taken for what
//! this one has, as long as fewer than 2^32 transactions came after it.
//!
//! A guard has no row that the caller has written, so its caller keeps the token of the life in which it read.

use std::fmt;

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

/// What distinguishes a life from every other one: a random number. Callers keep it as a text of 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(u64);

impl Token {
    /// None of 0, which stands for a life that has not begun.
    pub fn new(number: u64) -> Option<Token> {
        (number != 0).then_some(Token(number))
    }

    /// As the server keeps it.
    pub fn get(self) -> u64 {
        self.0
    }

    /// A token as it was written; `None` of every other text.
    fn read(text: &[u8]) -> Option<Token> {
        const HEX: u32 = 16;
        let token = Token::new(u64::from_str_radix(str::from_utf8(text).ok()?, HEX).ok()?)?;
        (token.to_string().as_bytes() == text).then_some(token)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// In which life a caller has read what it is about to rely on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReadIn {
    /// It relies on nothing that it read in an earlier transaction, or does not say.
    Unsaid,
    /// In this one.
    ThisLife,
    /// In another, of this server or of another.
    AnotherLife,
}

impl ReadIn {
    /// What a caller says: nothing, or the token that it was given. `None` when it is the text of no token.
    pub fn of(given: &[u8], this: Token) -> Option<ReadIn> {
        if given.is_empty() {
            return Some(ReadIn::Unsaid);
        }
        Token::read(given).map(|token| if token == this { ReadIn::ThisLife } else { ReadIn::AnotherLife })
    }
}

#[cfg(test)]
mod tests {
    use super::{ReadIn, Token, is_of_this_life};

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
        assert!(is_of_this_life(3, 3, 10), "the first that a transaction can have");
        assert!(!is_of_this_life(900, 0, 800), "no such number was given out in the first epoch");
    }

    #[test]
    fn a_token_is_known_again_and_no_other_text_is_one() {
        assert_eq!(Token::new(0), None);
        for number in [1, 0xabc, u64::MAX] {
            let token = Token::new(number).unwrap();
            let text = token.to_string();
            assert_eq!((token.get(), text.len()), (number, 16));
            assert_eq!(ReadIn::of(text.as_bytes(), token), Some(ReadIn::ThisLife));
            assert_eq!(ReadIn::of(text.as_bytes(), Token::new(2).unwrap()), Some(ReadIn::AnotherLife));
            assert_eq!(ReadIn::of(b"", token), Some(ReadIn::Unsaid));
            for other in
                ["abc", "0000000000000000", "000000000000abc ", "0000000000000ABC", "+000000000000abc", "\u{e4}"]
            {
                assert_eq!(ReadIn::of(other.as_bytes(), token), None, "{other}");
            }
        }
    }
}
