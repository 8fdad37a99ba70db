//! The life of this server: which versions of rows it has written since it was started, promoted or lost its shared memory.
//!
//! The rule is in `fence`; here is where a life begins. The first number of a life is the next one when a session first asks,
//! after recovery; a transaction that is older and still runs is of this life too, and lowers it. It is the same for all
//! databases and sessions. Invariant: no number of an earlier life is one of this. Where there is no shared memory each
//! session keeps its own, which is later and so refuses more.

use crate::errors::Refused;
use crate::server::call::{Call, Reply};
use crate::server::log;
use crate::server::segment::{self, Segment};
use crate::server::session::{self, MainThread};
use crate::server::types;
use crate::settings;
use fence::life::{ReadIn, Token};
use pg_forms::text;
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicI64, AtomicU64};

/// No transaction has this number. A version whose table access method keeps none has it, too.
const NO_TRANSACTION: u32 = 0;
const UNKNOWN: u64 = 0;

/// All zeros is a life that has not begun. The number in its name is that of the layout.
#[repr(C)]
struct Life {
    first: AtomicU64,
    /// Whatever `first` is, no number below this is of this life: the first that was not given out when an operator began it.
    floor: AtomicU64,
    token: AtomicU64,
    /// When a session first asked, in the server's own time.
    began_at: AtomicI64,
}

// SAFETY: all zeros is a value, each number by itself.
unsafe impl Segment for Life {
    const NAME: &'static CStr = c"pg_fence life 2";
}

/// Where there is no shared memory.
static OWN: Life = Life {
    first: AtomicU64::new(UNKNOWN),
    floor: AtomicU64::new(UNKNOWN),
    token: AtomicU64::new(UNKNOWN),
    began_at: AtomicI64::new(0),
};
static LIFE: MainThread<Cell<Option<&'static Life>>> = MainThread(Cell::new(None));
/// Whether a version of another life was met since this was cleared.
static OUTLIVED: MainThread<Cell<bool>> = MainThread(Cell::new(false));

/// Begins the life as early as can be: when a session loads the library. Called once.
pub(crate) fn loaded() {
    if session::is_in_transaction() && !session::is_parallel_worker() {
        begin();
    }
}

/// The first number of this life, which begins now if it has not. To be called before a claim writes its version.
pub(crate) fn begin() -> u64 {
    let life = life();
    let (first, floor) = (life.first.load(Acquire), life.floor.load(Acquire));
    let number = match session::transaction() {
        Some(own) if own < first || first == UNKNOWN => lower(own),
        None if first == UNKNOWN => lower(session::next_transaction()),
        _ => first,
    };
    number.max(floor)
}

/// Whether a version was written in this life.
pub(crate) fn has(written_by: u32) -> bool {
    if !settings::checks_life() || written_by == NO_TRANSACTION {
        return true;
    }
    let first = begin();
    fence::life::is_of_this_life(written_by, first, session::next_transaction())
}

/// When this life began, as far as a session has seen it, as error texts give it.
pub(crate) fn since() -> CString {
    session::time_text(life().began_at.load(Acquire))
}

/// `fence_life()`: the token of this life, to be read in the first guarded transaction of a hold and passed in each later one.
pub(crate) fn fence_life(_call: &Call) -> Result<Reply, Refused> {
    begin();
    Ok(Reply::from(types::text_datum(token()?.to_string().as_bytes())))
}

/// In which life the caller of a guard has read, as it says. Errors: the text is not a token.
pub(crate) fn read_in(given: &CStr) -> Result<ReadIn, Refused> {
    if !settings::checks_life() {
        return Ok(ReadIn::Unsaid);
    }
    ReadIn::of(given.to_bytes(), token()?).ok_or_else(|| Refused::NotALife { given: given.to_owned() })
}

/// `fence_new_life()`: begins another life, in which no claim and no token of before counts. Logged. Answers its token.
pub(crate) fn fence_new_life(_call: &Call) -> Result<Reply, Refused> {
    begin();
    let life = life();
    if std::ptr::eq(life, &OWN) {
        return Err(Refused::NoSharedLife);
    }
    let token = new_token()?;
    life.token.store(token.get(), Release);
    life.began_at.store(session::now(), Release);
    let floor = session::next_transaction();
    life.floor.fetch_max(floor, AcqRel);
    log::log_line(text![
        "pg_fence: fence_new_life() began another life: no claim from before transaction ",
        floor,
        " counts"
    ]);
    Ok(Reply::from(types::text_datum(token.to_string().as_bytes())))
}

/// The token of this life, which whoever asks first makes.
fn token() -> Result<Token, Refused> {
    let life = life();
    if let Some(token) = Token::new(life.token.load(Acquire)) {
        return Ok(token);
    }
    let new = new_token()?;
    match life.token.compare_exchange(UNKNOWN, new.get(), AcqRel, Acquire) {
        Ok(_) => Ok(new),
        Err(other) => Ok(Token::new(other).unwrap_or(new)),
    }
}

fn new_token() -> Result<Token, Refused> {
    Token::new(session::random().unwrap_or(UNKNOWN)).ok_or(Refused::Server { function: "pg_strong_random", code: 0 })
}

/// `in_life(written_by xid)`, the condition of statements that rely on a claim: whether a version was written in this life.
pub(crate) fn in_life(call: &Call) -> Result<Reply, Refused> {
    let has = has(call.arguments().transaction().unwrap_or(NO_TRANSACTION));
    if !has {
        OUTLIVED.set(true);
    }
    Ok(Reply::from(has))
}

/// Learns whether a statement that is run meanwhile meets a version of another life.
pub(crate) struct Outlived(bool);

impl Outlived {
    /// Begins to look.
    pub(crate) fn watch() -> Outlived {
        Outlived(OUTLIVED.replace(false))
    }

    /// Whether it has met one.
    pub(crate) fn is_met(&self) -> bool {
        OUTLIVED.get()
    }
}

impl Drop for Outlived {
    fn drop(&mut self) {
        OUTLIVED.set(self.0);
    }
}

/// Before the end of recovery no life has begun, and nothing is of it.
fn lower(number: u64) -> u64 {
    if session::is_in_recovery() {
        return u64::MAX;
    }
    let life = life();
    let _ = life.began_at.compare_exchange(0, session::now(), AcqRel, Acquire);
    let lower = |first| (first == UNKNOWN || number < first).then_some(number);
    match life.first.fetch_update(AcqRel, Acquire, lower) {
        Ok(_) => number,
        Err(first) => first,
    }
}

fn life() -> &'static Life {
    if let Some(life) = LIFE.get() {
        return life;
    }
    let shared = session::unless_refused(segment::small::<Life>).flatten();
    if shared.is_none() {
        log::log_line(text![
            "pg_fence cannot have its shared memory, so this session takes no claim for one of this life of the server that ",
            "was made before it"
        ]);
    }
    let life = shared.unwrap_or(&OWN);
    LIFE.set(Some(life));
    life
}
