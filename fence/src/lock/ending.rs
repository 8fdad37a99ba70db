//! Why a hold ended: the words that `_END` carries, and their numbers in a record.
//!
//! Not what ends it. The set is open: a word or a number that a reader does not know is [`Ending::Unknown`].
//! Invariant: words and numbers never change their meaning, because files keep them.

/// Why a hold ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ending {
    /// The reason is not known here.
    Unknown,
    /// Its holder released it.
    Released,
    /// Its deadline passed, or its connection closed.
    Expired,
    /// It reached its longest hold.
    MaxHold,
    /// Somebody else took the lock over.
    Stolen,
    /// The key was deleted, renamed or moved.
    Deleted,
    /// The database was flushed.
    Flushed,
    /// The server needed the memory.
    Evicted,
    /// Its slot went to another server.
    Moved,
}

/// Every ending. Its index is its number.
const ENDINGS: [(Ending, &str); 9] = [
    (Ending::Unknown, "ended"),
    (Ending::Released, "released"),
    (Ending::Expired, "expired"),
    (Ending::MaxHold, "maxhold"),
    (Ending::Stolen, "stolen"),
    (Ending::Deleted, "deleted"),
    (Ending::Flushed, "flushed"),
    (Ending::Evicted, "evicted"),
    (Ending::Moved, "moved"),
];

impl Ending {
    /// Its number in a record.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Its word.
    pub const fn word(self) -> &'static str {
        ENDINGS[self as usize].1
    }

    /// The ending with this number.
    pub fn numbered(number: u8) -> Ending {
        ENDINGS.get(usize::from(number)).map_or(Ending::Unknown, |&(ending, _)| ending)
    }

    /// The ending that this word names.
    pub fn named(word: &[u8]) -> Ending {
        let known = ENDINGS.iter().find(|(_, known)| known.as_bytes() == word);
        known.map_or(Ending::Unknown, |&(ending, _)| ending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_is_found_by_its_number_and_by_its_word() {
        for (number, (ending, word)) in (0u8..).zip(ENDINGS) {
            assert_eq!((ending.number(), ending.word()), (number, word));
            assert_eq!((Ending::numbered(number), Ending::named(word.as_bytes())), (ending, ending));
        }
    }

    #[test]
    fn what_a_newer_version_says_is_an_ending_of_unknown_reason() {
        assert_eq!((Ending::numbered(9), Ending::numbered(255)), (Ending::Unknown, Ending::Unknown));
        assert_eq!((Ending::named(b"later"), Ending::named(b"")), (Ending::Unknown, Ending::Unknown));
    }

    #[test]
    fn the_numbers_are_those_that_files_have() {
        let numbers = [Ending::Released, Ending::Expired, Ending::MaxHold, Ending::Stolen].map(Ending::number);
        assert_eq!(numbers, [1, 2, 3, 4]);
    }
}
