//! The state of this server: its fences, its clock, its role, its settings.
//!
//! Not the keyspace and not the rule. Everything here belongs to the main thread.
//! Invariant: no fence is issued at or below one that this server has issued, loaded or been sent.

use std::cell::{Cell, OnceCell, RefCell};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fence::codec::{self, Clocks, Record, Route};
use fence::lease::{Hold, Millis, Now};
use fence::{Fence, FenceLimits, Issuer};
use redis_module::raw;

use crate::ffi::Ctx;
use crate::index::Index;
use crate::reaper::{self, Reaper};
use crate::value::Value;

/// How far past the clock a fence may be that a user's RESTORE brings: the skew of badly kept clocks, and no more.
pub(crate) const RESTORE_AHEAD_US: u64 = 3_600 * 1_000_000;

/// The longest lease unless configured: a day.
pub(crate) const DEFAULT_MAX_TTL: Millis = Millis(24 * 3_600 * 1_000);

/// State of the main thread in a place that all threads can name.
struct MainThread<T>(OnceCell<T>);

// SAFETY: the server calls commands, events, timers, loading and saving on its main thread alone. The one callback that
// runs elsewhere, the type's `free`, does not come here.
unsafe impl<T> Sync for MainThread<T> {}

static SERVER: MainThread<Server> = MainThread(OnceCell::new());

/// The state of this server.
pub(crate) fn server() -> &'static Server {
    SERVER.0.get_or_init(Server::new)
}

pub(crate) struct Server {
    origin: Instant,
    origin_us: u64,
    issuer: Cell<Issuer>,
    pub index: RefCell<Index>,
    pub reaper: Reaper,
    /// Whether fences follow the clock.
    pub fence_clock: Cell<bool>,
    pub max_ttl: Cell<Millis>,
    pub is_primary: Cell<bool>,
    pub in_cluster: Cell<bool>,
    /// What is loaded comes from the primary, just now.
    pub from_primary: Cell<bool>,
    /// A context for timers, good for the life of the process.
    pub detached: Cell<Ctx>,
}

/// Where a loaded value is stored.
pub(crate) struct Arrival<'a> {
    pub db: i32,
    pub key: &'a [u8],
}

impl Server {
    fn new() -> Server {
        let origin_us = wall_us();
        Server {
            origin: Instant::now(),
            origin_us,
            issuer: Cell::default(),
            index: RefCell::new(Index::new(origin_us)),
            reaper: Reaper::default(),
            fence_clock: Cell::new(true),
            max_ttl: Cell::new(DEFAULT_MAX_TTL),
            is_primary: Cell::new(true),
            in_cluster: Cell::new(false),
            from_primary: Cell::new(false),
            detached: Cell::new(Ctx(std::ptr::null_mut())),
        }
    }

    /// Microseconds on the monotonic clock, counted from the wall time at which the module was loaded. It never steps, and
    /// a moment before the start of the process has a number too.
    pub fn steady_us(&self) -> u64 {
        let passed = self.origin.elapsed();
        self.origin_us + passed.as_secs() * 1_000_000 + u64::from(passed.subsec_micros())
    }

    pub fn clocks(&self) -> Clocks {
        Clocks { steady_us: self.steady_us(), wall_us: wall_us() }
    }

    /// The moment of a grant.
    pub fn now(&self, clocks: Clocks) -> Now {
        Now { steady_us: clocks.steady_us, wall_us: if self.fence_clock.get() { clocks.wall_us } else { 0 } }
    }

    pub fn issuer(&self) -> Issuer {
        self.issuer.get()
    }

    pub fn set_issuer(&self, issuer: Issuer) {
        self.issuer.set(issuer);
    }

    /// Takes note of a fence that was issued elsewhere or earlier.
    pub fn observe(&self, last: u64) {
        let mut issuer = self.issuer.get();
        issuer.observe(last);
        self.issuer.set(issuer);
    }

    /// Makes the value of a record that the keyspace is about to store, and indexes it.
    pub fn take_in(&self, record: &[u8], arrival: Arrival) -> Result<Value, String> {
        let record = codec::decode(record).map_err(|corrupt| format!("{corrupt:?}"))?;
        if self.is_users_restore() {
            let limits = FenceLimits { max: Fence::MAX, max_ahead_us: RESTORE_AHEAD_US };
            let newest = wall_us().max(self.issuer().last());
            let fence = record.fence();
            limits
                .accept(fence.get() as i64, newest)
                .map_err(|_| format!("fence {fence} is more than an hour ahead of the clock"))?;
        }
        let route = if self.from_primary.get() { Route::Stream } else { Route::File };
        Ok(self.apply(&record, route, arrival))
    }

    /// Makes the value of a record that came by `route`, and indexes it.
    pub fn apply(&self, record: &Record, route: Route, arrival: Arrival) -> Value {
        self.observe(record.fence().get());
        self.add(&Hold { lease: record.lease(self.clocks(), route), owner: record.owner }, arrival)
    }

    /// Makes a value for the keyspace and indexes it.
    pub fn add(&self, hold: &Hold, arrival: Arrival) -> Value {
        let mut index = self.index.borrow_mut();
        let value = Value::create(hold, index.known_as(arrival.db), arrival.key);
        index.insert(value);
        drop(index);
        if self.is_primary.get() {
            reaper::arm(hold.lease.free_us());
        }
        value
    }

    /// Looks at a value again in a moment: it has just left its key.
    pub fn suspect(&self, value: Value) {
        if value.handle().is_some() {
            self.index.borrow_mut().suspect(value);
            reaper::arm_now();
        }
    }

    /// Whether a snapshot or an append-only file is being loaded.
    pub fn is_loading(&self) -> bool {
        let loading = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
        Ctx(std::ptr::null_mut()).flags() & loading != 0
    }

    fn is_users_restore(&self) -> bool {
        self.is_primary.get() && !self.is_loading()
    }
}

/// Unix time in microseconds; 0 before 1970.
fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1_000_000 + u64::from(since.subsec_micros())
}
