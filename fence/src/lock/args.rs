//! Arguments of the commands: bytes become a typed request or an error, once.
//!
//! Not a tokenizer: the caller splits the command. Keys and owners stay bytes.
//! Invariant: every error names the argument and its range, and was found before anything changed.

use std::fmt;

use crate::fence::Fence;
use crate::lock::lease::{Caller, Extension, LONGEST, Millis, OWNER_MAX, Request, Takeover, Terms};

/// A request to acquire a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acquire<'a> {
    /// Who asks, and for what.
    pub request: Request<'a>,
    /// How long to wait; `None` replies at once.
    pub wait: Option<Millis>,
}

/// A request to extend a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extend<'a> {
    /// Who asks.
    pub caller: Caller<'a>,
    /// For what.
    pub extension: Extension,
}

/// A request to release a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release<'a> {
    /// Who asks.
    pub caller: Caller<'a>,
    /// Whether the owner leaves the queue as well: its caller gave up and cannot know how far the call had come.
    pub queued: bool,
}

/// A request to list the busiest locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Top {
    /// How many at most.
    pub most: usize,
    /// The counter to sort by, as its index; `None` leaves it to the command.
    pub by: Option<usize>,
}

/// A request to be answered when a hold has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Await {
    /// The hold.
    pub fence: Fence,
    /// How long to wait for its end.
    pub wait: Millis,
}

/// What is wrong with an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadArgument<'a> {
    /// Not an integer in canonical form within the range.
    Number {
        /// The argument.
        name: &'static str,
        /// Its smallest value.
        min: u64,
        /// Its largest value.
        max: u64,
    },
    /// A name or an owner of so many bytes.
    Length {
        /// The argument.
        name: &'static str,
        /// How many bytes it may have.
        max: usize,
        /// How many it has.
        bytes: usize,
    },
    /// Not an option of the command.
    UnknownOption(&'a [u8]),
    /// An option that is given twice.
    Repeated(&'static str),
    /// An option without its value.
    NoValue(&'static str),
    /// Two options that exclude each other.
    Exclusive(&'static str, &'static str),
    /// A wait of 0.
    NoWait {
        /// The argument.
        name: &'static str,
        /// The longest wait.
        max: u64,
    },
    /// Not one of these words.
    NoneOf {
        /// The argument.
        name: &'static str,
        /// The words.
        words: &'static [&'static str],
    },
    /// Not pairs of a field and a value, but this many arguments.
    OddFields(usize),
    /// A write to the field that holds the stamp.
    StampField,
}

/// How many bytes of an unknown option an error repeats.
const SHOWN_MAX: usize = 32;

impl fmt::Display for BadArgument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BadArgument::Number { name, min, max } => write!(f, "{name} must be an integer from {min} to {max}"),
            BadArgument::Length { name, max, bytes } => write!(f, "{name} must have 1 to {max} bytes, not {bytes}"),
            BadArgument::UnknownOption(word) => {
                let shown = &word[..word.len().min(SHOWN_MAX)];
                write!(f, "syntax error: unknown option '{}'", shown.escape_ascii())
            }
            BadArgument::Repeated(name) => write!(f, "syntax error: option {name} is given twice"),
            BadArgument::NoValue(name) => write!(f, "syntax error: option {name} has no value"),
            BadArgument::Exclusive(one, other) => {
                write!(f, "syntax error: options {one} and {other} exclude each other")
            }
            // To other commands and libraries 0 means "forever", or "do not wait".
            BadArgument::NoWait { name, max } => {
                write!(f, "{name} must be an integer from 1 to {max}; omit {name} to be answered at once")
            }
            BadArgument::NoneOf { name, words } => write!(f, "{name} must be one of {}", words.join(", ")),
            BadArgument::OddFields(count) => write!(f, "field and value must come in pairs, not as {count} arguments"),
            BadArgument::StampField => write!(f, "field must not be 'fence': CLAIM alone writes the stamp"),
        }
    }
}

/// Reads `owner ttl-ms [WAIT ms] [RETRY] [MAXHOLD ms] [DELAY ms] [EPHEMERAL]`.
pub fn acquire<'a>(
    owner: &'a [u8],
    ttl: &'a [u8],
    options: &[&'a [u8]],
    max_ttl: Millis,
) -> Result<Acquire<'a>, BadArgument<'a>> {
    let owner = self::owner(owner)?;
    let ttl = span("ttl-ms", canonical(ttl), max_ttl)?;
    let (mut wait, mut retry, mut max_hold, mut delay, mut ephemeral) = (None, None, None, None, None);
    let mut options = Options(options);
    while let Some(word) = options.next() {
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        if is("WAIT") {
            once("WAIT", &mut wait, self::wait("WAIT", canonical(options.value("WAIT")?), max_ttl)?)?;
        } else if is("RETRY") {
            once("RETRY", &mut retry, ())?;
        } else if is("MAXHOLD") {
            once("MAXHOLD", &mut max_hold, span("MAXHOLD", canonical(options.value("MAXHOLD")?), max_ttl)?)?;
        } else if is("DELAY") {
            once("DELAY", &mut delay, span("DELAY", canonical(options.value("DELAY")?), max_ttl)?)?;
        } else if is("EPHEMERAL") {
            once("EPHEMERAL", &mut ephemeral, ())?;
        } else {
            return Err(BadArgument::UnknownOption(word));
        }
    }
    let terms = Terms { ttl, max_hold, delay, ephemeral: ephemeral.is_some() };
    Ok(Acquire { request: Request { owner, terms, retry: retry.is_some() }, wait })
}

/// Reads `owner ttl-ms [FENCE fence] [GT]`.
pub fn extend<'a>(
    owner: &'a [u8],
    ttl: &'a [u8],
    options: &[&'a [u8]],
    max_ttl: Millis,
) -> Result<Extend<'a>, BadArgument<'a>> {
    let owner = self::owner(owner)?;
    let ttl = span("ttl-ms", canonical(ttl), max_ttl)?;
    let (mut fenced, mut only_longer) = (None, None);
    let mut options = Options(options);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"FENCE") {
            once("FENCE", &mut fenced, fence(options.value("FENCE")?)?)?;
        } else if word.eq_ignore_ascii_case(b"GT") {
            once("GT", &mut only_longer, ())?;
        } else {
            return Err(BadArgument::UnknownOption(word));
        }
    }
    let extension = Extension { ttl, only_longer: only_longer.is_some() };
    Ok(Extend { caller: Caller { owner, fence: fenced }, extension })
}

/// Reads `owner ttl-ms [FENCE fence] [MAXHOLD ms] [DELAY ms]`.
pub fn steal<'a>(
    owner: &'a [u8],
    ttl: &'a [u8],
    options: &[&'a [u8]],
    max_ttl: Millis,
) -> Result<Takeover<'a>, BadArgument<'a>> {
    let owner = self::owner(owner)?;
    let ttl = span("ttl-ms", canonical(ttl), max_ttl)?;
    let (mut from, mut max_hold, mut delay) = (None, None, None);
    let mut options = Options(options);
    while let Some(word) = options.next() {
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        if is("FENCE") {
            once("FENCE", &mut from, fence(options.value("FENCE")?)?)?;
        } else if is("MAXHOLD") {
            once("MAXHOLD", &mut max_hold, span("MAXHOLD", canonical(options.value("MAXHOLD")?), max_ttl)?)?;
        } else if is("DELAY") {
            once("DELAY", &mut delay, span("DELAY", canonical(options.value("DELAY")?), max_ttl)?)?;
        } else {
            return Err(BadArgument::UnknownOption(word));
        }
    }
    Ok(Takeover { owner, terms: Terms { ttl, max_hold, delay, ephemeral: false }, from })
}

/// Reads `owner [FENCE fence | QUEUED]`.
pub fn release<'a>(owner: &'a [u8], options: &[&'a [u8]]) -> Result<Release<'a>, BadArgument<'a>> {
    let owner = self::owner(owner)?;
    let (mut fenced, mut queued) = (None, None);
    let mut options = Options(options);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"FENCE") {
            once("FENCE", &mut fenced, fence(options.value("FENCE")?)?)?;
        } else if word.eq_ignore_ascii_case(b"QUEUED") {
            once("QUEUED", &mut queued, ())?;
        } else {
            return Err(BadArgument::UnknownOption(word));
        }
    }
    // A caller that knows its fence has had its reply, and is not in a queue.
    if fenced.is_some() && queued.is_some() {
        return Err(BadArgument::Exclusive("FENCE", "QUEUED"));
    }
    Ok(Release { caller: Caller { owner, fence: fenced }, queued: queued.is_some() })
}

/// Reads `fence ms`.
pub fn await_end<'a>(word: &[u8], wait: &[u8], max_ttl: Millis) -> Result<Await, BadArgument<'a>> {
    Ok(Await { fence: fence(word)?, wait: span("ms", canonical(wait), max_ttl)? })
}

/// The longest list of busy locks. With the longest names the reply has a few megabytes.
pub const TOP_MAX: u64 = 1_000;

/// Reads `n [BY counter]`, where the counter is one of `counters`.
pub fn top<'a>(
    most: &'a [u8],
    options: &[&'a [u8]],
    counters: &'static [&'static str],
) -> Result<Top, BadArgument<'a>> {
    let bad = BadArgument::Number { name: "n", min: 1, max: TOP_MAX };
    let most = canonical(most).filter(|most| (1..=TOP_MAX).contains(most)).ok_or(bad)?;
    let mut by = None;
    let mut options = Options(options);
    while let Some(word) = options.next() {
        if !word.eq_ignore_ascii_case(b"BY") {
            return Err(BadArgument::UnknownOption(word));
        }
        let counter = options.value("BY")?;
        let at = counters.iter().position(|name| counter.eq_ignore_ascii_case(name.as_bytes()));
        once("BY", &mut by, at.ok_or(BadArgument::NoneOf { name: "counter", words: counters })?)?;
    }
    Ok(Top { most: most as usize, by })
}

/// Checks `field value [field value ...]` of a write to a hash: the arguments after the fence.
pub fn fields<'a>(fields: &[&'a [u8]]) -> Result<(), BadArgument<'a>> {
    if fields.is_empty() || !fields.len().is_multiple_of(2) {
        return Err(BadArgument::OddFields(fields.len()));
    }
    if fields.iter().step_by(2).any(|&field| field == STAMP) {
        return Err(BadArgument::StampField);
    }
    Ok(())
}

/// The field of a hash that holds its stamp.
pub const STAMP: &[u8] = b"fence";

/// Reads a fence.
pub fn fence(word: &[u8]) -> Result<Fence, BadArgument<'static>> {
    fence_number(canonical(word))
}

/// Checks a fence; `None` is not a number at all.
pub fn fence_number(number: Option<u64>) -> Result<Fence, BadArgument<'static>> {
    number.and_then(Fence::new).ok_or(BadArgument::Number { name: "fence", min: 1, max: Fence::MAX })
}

/// A number with fewer digits than this is below 2^64.
const DIGITS_OF_ANY: usize = 20;

/// Reads an unsigned integer in canonical form: no sign, space, fraction, exponent, hex or leading zero.
pub fn canonical(word: &[u8]) -> Option<u64> {
    if word.is_empty() || (word[0] == b'0' && word.len() > 1) {
        return None;
    }
    let digit = |digit: u8| digit.is_ascii_digit().then(|| u64::from(digit - b'0'));
    if word.len() < DIGITS_OF_ANY {
        return word.iter().try_fold(0, |number, &byte| Some(number * 10 + digit(byte)?));
    }
    word.iter().try_fold(0u64, |number, &byte| number.checked_mul(10)?.checked_add(digit(byte)?))
}

/// Checks an owner.
pub fn owner<'a>(owner: &[u8]) -> Result<&[u8], BadArgument<'a>> {
    length("owner", owner, OWNER_MAX)
}

/// Checks the length of a name.
pub fn length<'b, 'a>(name: &'static str, word: &'b [u8], max: usize) -> Result<&'b [u8], BadArgument<'a>> {
    let bytes = word.len();
    if bytes == 0 || bytes > max { Err(BadArgument::Length { name, max, bytes }) } else { Ok(word) }
}

/// Checks a span in milliseconds; `None` is not a number at all.
pub fn span<'a>(name: &'static str, ms: Option<u64>, max: Millis) -> Result<Millis, BadArgument<'a>> {
    let max = max.min(LONGEST).0;
    ms.filter(|ms| (1..=max).contains(ms)).map(Millis).ok_or(BadArgument::Number { name, min: 1, max })
}

/// Checks a wait in milliseconds; `None` is not a number at all.
pub fn wait<'a>(name: &'static str, ms: Option<u64>, max: Millis) -> Result<Millis, BadArgument<'a>> {
    if ms == Some(0) {
        return Err(BadArgument::NoWait { name, max: max.min(LONGEST).0 });
    }
    span(name, ms, max)
}

fn once<'a, T>(name: &'static str, option: &mut Option<T>, value: T) -> Result<(), BadArgument<'a>> {
    match option.replace(value) {
        None => Ok(()),
        Some(_) => Err(BadArgument::Repeated(name)),
    }
}

/// The arguments after the fixed ones.
struct Options<'w, 'a>(&'w [&'a [u8]]);

impl<'a> Options<'_, 'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let (word, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(word)
    }

    fn value(&mut self, name: &'static str) -> Result<&'a [u8], BadArgument<'a>> {
        self.next().ok_or(BadArgument::NoValue(name))
    }
}

#[cfg(test)]
mod tests;
