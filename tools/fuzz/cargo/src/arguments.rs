//! Arguments: the words of a call, one a line, against a second reading of the same contract.

use std::collections::BTreeMap;

use fence::Fence;
use fence::lock::args::{self, BadArgument};
use fence::lock::lease::{LONGEST, Millis, OWNER_MAX, Takeover, Terms};
use fence::resource::read_stamp;

const MAX_TTL: Millis = Millis(86_400_000);

/// The first line names the command.
pub fn run(data: &[u8]) {
    let words: Vec<&[u8]> = data.split(|&byte| byte == b'\n').collect();
    match words[..] {
        [b"acquire", owner, ttl, ref options @ ..] => acquire(owner, ttl, options, MAX_TTL),
        [b"acquire-longest", owner, ttl, ref options @ ..] => acquire(owner, ttl, options, Millis(u64::MAX)),
        [b"extend", owner, ttl, ref options @ ..] => {
            let read = told(args::extend(owner, ttl, options, MAX_TTL));
            let plain = owner_of(owner).zip(span(ttl, MAX_TTL)).zip(extend_options(options));
            let read = read.map(|read| {
                let args::Extend { caller, extension } = read;
                ((caller.owner, extension.ttl), (caller.fence, extension.only_longer))
            });
            assert_eq!(read, plain);
        }
        [b"steal", owner, ttl, ref options @ ..] => steal(owner, ttl, options),
        [b"await", word, ms] => {
            let read = told(args::await_end(word, ms, MAX_TTL)).map(|read| (read.fence, read.wait));
            assert_eq!(read, fence(word).zip(span(ms, MAX_TTL)));
        }
        [b"release", owner, ref options @ ..] => {
            let read = told(args::release(owner, options));
            let queued = matches!(options, [name] if name.eq_ignore_ascii_case(b"QUEUED"));
            let plain = owner_of(owner).zip(if queued { Some(None) } else { fence_option(options) });
            assert_eq!(read.map(|read| (read.caller.owner, read.caller.fence)), plain);
            assert_eq!(read.is_some_and(|read| read.queued), plain.is_some() && queued);
        }
        [b"top", most, ref options @ ..] => {
            const COUNTERS: &[&str] = &["grants", "longest-wait-ms"];
            let named = |word: &[u8]| COUNTERS.iter().position(|name| name.as_bytes() == word.to_ascii_lowercase());
            let by = match *options {
                [] => Some(None),
                [name, counter] if name.eq_ignore_ascii_case(b"BY") => named(counter).map(Some),
                _ => None,
            };
            let plain = number(most).filter(|&most| most > 0 && most <= args::TOP_MAX).zip(by);
            assert_eq!(told(args::top(most, options, COUNTERS)).map(|top| (top.most as u64, top.by)), plain);
        }
        [b"fields", ref fields @ ..] => {
            let plain = fields.chunks(2).all(|pair| pair.len() == 2 && pair[0] != b"fence") && !fields.is_empty();
            assert_eq!(told(args::fields(fields)).is_some(), plain);
        }
        [b"fence", word] => {
            assert_eq!(told(args::fence(word)), fence(word));
            assert_eq!(read_stamp(word), number(word).filter(|&stamp| stamp <= Fence::MAX).map(|stamp| stamp as i64));
        }
        _ => {}
    }
}

fn acquire(owner: &[u8], ttl: &[u8], options: &[&[u8]], max_ttl: Millis) {
    let read = told(args::acquire(owner, ttl, options, max_ttl));
    let plain = owner_of(owner).zip(span(ttl, max_ttl)).zip(acquire_options(options, max_ttl));
    let Some(read) = read else { return assert_eq!(plain, None) };
    let ((owner, ttl), options) = plain.expect("it was read");
    let value = |name: &str| options.get(name).copied().flatten();
    assert_eq!((read.request.owner, read.wait), (owner, value("WAIT")));
    assert_eq!(read.request.retry, options.contains_key("RETRY"));
    let ephemeral = options.contains_key("EPHEMERAL");
    assert_eq!(read.request.terms, Terms { ttl, max_hold: value("MAXHOLD"), delay: value("DELAY"), ephemeral });
}

/// As an acquisition, but for a fence, which may be anywhere among the options.
fn steal(owner: &[u8], ttl: &[u8], options: &[&[u8]]) {
    let read = told(args::steal(owner, ttl, options, MAX_TTL));
    let mut others = options.to_vec();
    let mut fences = Vec::new();
    let mut at = 0;
    while let Some(name) = others.get(at) {
        match others.get(at + 1) {
            Some(&value) if name.eq_ignore_ascii_case(b"FENCE") => {
                fences.push(fence(value));
                others.drain(at..at + 2);
            }
            _ => at += 2,
        }
    }
    let from = match fences[..] {
        [] => Some(None),
        [fence] => fence.map(Some),
        _ => None,
    };
    let terms = acquire_options(&others, MAX_TTL)
        .filter(|options| options.keys().all(|name| name == "MAXHOLD" || name == "DELAY"))
        .zip(span(ttl, MAX_TTL));
    let plain = owner_of(owner).zip(terms).zip(from).map(|((owner, (options, ttl)), from)| {
        let value = |name: &str| options.get(name).copied().flatten();
        let terms = Terms { ttl, max_hold: value("MAXHOLD"), delay: value("DELAY"), ephemeral: false };
        Takeover { owner, terms, from }
    });
    assert_eq!(read, plain);
}

/// What was read. A refusal must be one line of plain text, whatever the words were.
fn told<T>(read: Result<T, BadArgument>) -> Option<T> {
    read.map_err(|bad| {
        let line = bad.to_string();
        assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && line.len() < 250, "{line:?}");
    })
    .ok()
}

fn owner_of(owner: &[u8]) -> Option<&[u8]> {
    (1..=OWNER_MAX).contains(&owner.len()).then_some(owner)
}

/// A number that is written as Rust writes it.
fn number(word: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == word).then_some(number)
}

fn span(word: &[u8], max: Millis) -> Option<Millis> {
    number(word).filter(|&ms| ms > 0 && ms <= max.0 && ms <= LONGEST.0).map(Millis)
}

fn fence(word: &[u8]) -> Option<Fence> {
    Fence::new(number(word)?)
}

fn fence_option(options: &[&[u8]]) -> Option<Option<Fence>> {
    match options {
        [] => Some(None),
        [name, value] if name.eq_ignore_ascii_case(b"FENCE") => Some(Some(fence(value)?)),
        _ => None,
    }
}

/// The fence and whether GT is there, each at most once.
fn extend_options(options: &[&[u8]]) -> Option<(Option<Fence>, bool)> {
    match options {
        [] => Some((None, false)),
        [name, value, rest @ ..] if name.eq_ignore_ascii_case(b"FENCE") => {
            let (None, longer) = extend_options(rest)? else { return None };
            Some((Some(fence(value)?), longer))
        }
        [name, rest @ ..] if name.eq_ignore_ascii_case(b"GT") => {
            let (fence, false) = extend_options(rest)? else { return None };
            Some((fence, true))
        }
        _ => None,
    }
}

/// The options by their names, each once, with the value of those that have one.
fn acquire_options(mut words: &[&[u8]], max_ttl: Millis) -> Option<BTreeMap<String, Option<Millis>>> {
    let mut options = BTreeMap::new();
    while let [name, rest @ ..] = words {
        let name = String::from_utf8(name.to_ascii_uppercase()).ok()?;
        let value = match (name.as_str(), rest) {
            ("RETRY" | "EPHEMERAL", _) => None,
            ("WAIT" | "MAXHOLD" | "DELAY", [value, ..]) => Some(span(value, max_ttl)?),
            _ => return None,
        };
        words = &rest[usize::from(value.is_some())..];
        if options.insert(name, value).is_some() {
            return None;
        }
    }
    Some(options)
}
