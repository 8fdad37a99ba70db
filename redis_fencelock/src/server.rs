//! The state of this server: its fences, its clock, its role, its settings.
//!
//! Not the keyspace and not the rule. Everything here belongs to the main thread.
//! Invariant: no fence is issued at or below one that this server has issued, loaded or been sent.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::c_int;
use std::rc::Rc;

use fence::cluster::Refusals;
use fence::lock::codec::{self, Clocks, Reading, Record, Route, Stamp};
use fence::lock::follow::Follower;
use fence::lock::lease::{Hold, Lease, Millis, Now};
use fence::lock::lost::LostHolds;
use fence::lock::queue::{LockName, Queues};
use fence::{Brought, Fence, Issuer};
use redis_module::raw;

use crate::cluster;
use crate::config::Warned;
use crate::counters::Stats;
use crate::ffi::{Ctx, OwnName};
use crate::lock::index::Index;
use crate::lock::value::Value;
use crate::queue::waiters::Waiter;
use crate::timer::reaper::{self, Reaper};

/// The longest lease unless configured: a day.
pub(crate) const DEFAULT_MAX_TTL: Millis = Millis(24 * 3_600 * 1_000);

/// The most waiters of one lock unless configured: more than a server has connections by default, tenfold.
pub(crate) const DEFAULT_MAX_WAITERS: u64 = 100_000;

/// State of the main thread in a place that all threads can name.
struct MainThread<T>(OnceCell<T>);

// SAFETY: the server calls commands, events, timers, loading and saving on its main thread, or on a thread that holds the
// server's lock, so one at a time. The one callback that runs beside them, the type's `free`, comes here on the main
// thread alone: see `Value::leave_keyspace`.
unsafe impl<T> Sync for MainThread<T> {}

static SERVER: MainThread<Server> = MainThread(OnceCell::new());

/// The state of this server.
pub(crate) fn server() -> &'static Server {
    SERVER.0.get_or_init(Server::new)
}

pub(crate) struct Server {
    /// What is added to the monotonic clock.
    offset_us: Cell<u64>,
    /// How much of that makes the clock of a replica go with its primary's.
    ahead_us: Cell<i64>,
    /// The clocks of the primaries that this server has followed.
    pub follower: RefCell<Follower>,
    /// The clock of the primary that this server followed before it became one, and the same moment on its own.
    predecessor: Cell<Option<(Reading, u64)>>,
    /// Replicas were not told yet whose clock it is now.
    pub clock_is_new: Cell<bool>,
    /// What is added to that for the Unix time: how far the wall clock has stepped since.
    stepped_us: Cell<i64>,
    /// The clock of leases.
    steady_clock: c_int,
    /// How far it is ahead of the next one, by the sleep of the machine.
    slept_us: Cell<u64>,
    /// The cheap monotonic clock, or the other where there is none.
    rough_clock: c_int,
    issuer: Cell<Issuer>,
    /// The number of this run: see `codec::Reading`.
    pub incarnation: Cell<u64>,
    pub index: RefCell<Index>,
    pub reaper: Reaper,
    pub queues: RefCell<Queues<Rc<Waiter>>>,
    /// Every blocked client, by its handle, until the server has let go of it.
    pub blocked: RefCell<HashMap<usize, Rc<Waiter>>>,
    /// Waiters whose wait is over, to be unblocked when fewer are on their way.
    pub to_unblock: RefCell<VecDeque<Rc<Waiter>>>,
    /// How many were unblocked whose reply the server has not written yet: it writes all of them in one go.
    pub on_their_way: Cell<usize>,
    /// Grants on their way to a client that waited.
    pub undelivered: RefCell<BTreeMap<Fence, Rc<Waiter>>>,
    /// Clients that were gone before their reply, and the grant that was on its way.
    pub unanswered: RefCell<Vec<(Rc<Waiter>, Option<Fence>)>>,
    pub stats: Stats,
    pub lost_holds: RefCell<LostHolds>,
    pub warned: Cell<Warned>,
    /// The lock that left its key last, and not by our own doing: it may turn out to be evicted.
    pub last_unlinked: RefCell<Option<(i32, Box<[u8]>)>>,
    /// Whether fences follow the clock.
    pub fence_clock: Cell<bool>,
    /// Whether snapshots and rewritten append-only files carry the last issued fence.
    pub save_last_fence: Cell<bool>,
    pub max_ttl: Cell<Millis>,
    /// The most waiters of one lock.
    pub max_waiters: Cell<u64>,
    pub is_primary: Cell<bool>,
    pub in_cluster: Cell<bool>,
    pub refusals: RefCell<Refusals>,
    /// Somebody may want to be told of what is written: see `replication`.
    pub is_heard: Cell<bool>,
    /// When to look whether that is still so.
    pub listeners_due_us: Cell<u64>,
    /// When replicas are to be sent the clock.
    pub clock_due_us: Cell<u64>,
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
        let origin_us = clock_us(CLOCK_REALTIME);
        let or_monotonic = |clock| if clock_us(clock) == 0 { CLOCK_MONOTONIC } else { clock };
        let steady_clock = or_monotonic(CLOCK_BOOTTIME);
        Server {
            steady_clock,
            offset_us: Cell::new(origin_us.saturating_sub(clock_us(steady_clock))),
            ahead_us: Cell::new(0),
            follower: RefCell::default(),
            predecessor: Cell::default(),
            clock_is_new: Cell::new(false),
            stepped_us: Cell::new(0),
            rough_clock: or_monotonic(CLOCK_MONOTONIC_COARSE),
            slept_us: Cell::new(slept_us(steady_clock)),
            issuer: Cell::default(),
            incarnation: Cell::default(),
            index: RefCell::new(Index::new(origin_us)),
            reaper: Reaper::default(),
            queues: RefCell::new(Queues::new(origin_us)),
            blocked: RefCell::default(),
            to_unblock: RefCell::default(),
            on_their_way: Cell::new(0),
            undelivered: RefCell::default(),
            unanswered: RefCell::default(),
            stats: Stats::new(),
            lost_holds: RefCell::default(),
            warned: Cell::default(),
            last_unlinked: RefCell::default(),
            fence_clock: Cell::new(true),
            save_last_fence: Cell::new(true),
            max_ttl: Cell::new(DEFAULT_MAX_TTL),
            max_waiters: Cell::new(DEFAULT_MAX_WAITERS),
            is_primary: Cell::new(true),
            in_cluster: Cell::new(false),
            refusals: RefCell::default(),
            is_heard: Cell::new(true),
            listeners_due_us: Cell::new(0),
            clock_due_us: Cell::new(0),
            from_primary: Cell::new(false),
            detached: Cell::new(Ctx(std::ptr::null_mut())),
        }
    }

    /// The clock of leases: microseconds on the monotonic clock, counted from the wall time at which the module was loaded, so
    /// that a moment before the start of the process has a number too. On a primary it never steps. A replica moves its own
    /// when it knows better how late its primary's stream is.
    pub fn steady_us(&self) -> u64 {
        self.offset_us.get().wrapping_add(clock_us(self.steady_clock))
    }

    /// The same as it was at the last tick of the kernel, usually some milliseconds ago: cheap, and never ahead. After the
    /// machine has slept it is behind by that time until the next run of the server's cron.
    pub fn rough_us(&self) -> u64 {
        self.offset_us.get().wrapping_add(clock_us(self.rough_clock) + self.slept_us.get())
    }

    /// Both clocks by one reading. A step of the wall clock is in it after the next run of the server's cron.
    pub fn clocks(&self) -> Clocks {
        let steady_us = self.steady_us();
        Clocks { steady_us, wall_us: steady_us.saturating_add_signed(self.stepped_us.get()) }
    }

    /// Both clocks by two readings, for what is written to a file or read from one: no cron runs meanwhile.
    pub fn exact_clocks(&self) -> Clocks {
        Clocks { steady_us: self.steady_us(), wall_us: clock_us(CLOCK_REALTIME) }
    }

    /// The moment of writing a record.
    pub fn stamp(&self, clocks: Clocks) -> Stamp {
        let followed = (!self.is_primary.get()).then(|| self.follower.borrow().reading(clocks.steady_us)).flatten();
        let issuer = Stamp::of_issuer(self.incarnation.get(), clocks);
        followed.map_or(issuer, |issued| Stamp { issued, ..issuer })
    }

    /// Begins to issue: with a number and a clock of its own, which goes on from where it is.
    pub fn become_issuer(&self, incarnation: u64) {
        let now_us = self.steady_us();
        let before = self.follower.borrow_mut().become_issuer(incarnation, now_us);
        self.incarnation.set(incarnation);
        self.predecessor.set(before.map(|before| (before, now_us)));
        self.clock_is_new.set(true);
    }

    /// What the predecessor's clock reads when this server's reads `now_us`.
    pub fn predecessor(&self, now_us: u64) -> Option<Reading> {
        let (before, then_us) = self.predecessor.get()?;
        let steady_us = before.steady_us.wrapping_add(now_us.wrapping_sub(then_us));
        Some(Reading { steady_us, ..before })
    }

    /// Takes note of what a primary read on its clock, and of what it knows of its predecessor's.
    pub fn receive(&self, reading: Reading, before: Option<Reading>) {
        let ahead_us = self.ahead_us.get();
        let local_us = self.steady_us().wrapping_sub(ahead_us as u64);
        let more_us = self.follower.borrow_mut().receive(reading, before, local_us, ahead_us) - ahead_us;
        self.ahead_us.set(ahead_us + more_us);
        self.offset_us.set(self.offset_us.get().wrapping_add(more_us as u64));
        // The wall clock stays where it is.
        self.stepped_us.set(self.stepped_us.get().saturating_sub(more_us));
    }

    /// Called by the server's cron: follows a step of the wall clock, and a sleep of the machine. Without them all clocks run
    /// at the same rate.
    pub fn follow_clocks(&self) {
        self.slept_us.set(slept_us(self.steady_clock));
        let before_us = self.steady_us();
        let wall_us = clock_us(CLOCK_REALTIME);
        let after_us = self.steady_us();
        let [most_us, least_us] = [before_us, after_us].map(|steady_us| wall_us as i64 - steady_us as i64);
        self.stepped_us.set(self.stepped_us.get().clamp(least_us, most_us));
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

    /// After a load and a promotion: grants may have been lost that this server does not know of. The clock has passed them;
    /// a count has not.
    pub fn skip_lost_fences(&self) {
        if !self.fence_clock.get() && self.is_primary.get() {
            let mut issuer = self.issuer.get();
            issuer.skip();
            self.issuer.set(issuer);
        }
    }

    /// Makes the value of a record that the keyspace is about to store, and indexes it.
    pub fn take_in(&self, record: &[u8], arrival: Arrival) -> Result<Value, String> {
        let record = codec::decode(record).map_err(|corrupt| format!("{corrupt:?}"))?;
        if self.is_loading() {
            let route = if self.from_primary.get() { Route::Stream } else { Route::File };
            return Ok(self.apply(&record, route, arrival));
        }
        if !self.is_primary.get() {
            // Whoever comes from the link was judged by its primary, whose own record follows. Anybody else is a client of a
            // replica that lets clients write, and must not raise the fences of a primary to be.
            return Ok(self.place(&record, Route::Travel, arrival));
        }
        let fence = record.fence();
        // A server that counts without the clock must not be lifted to its height by one dump.
        let accepted = self.issuer().accepts(fence, Brought::ByRestore, self.now(self.clocks()).wall_us);
        if !accepted && !self.imports(&arrival) {
            return Err(format!("fence {fence} is more than a day ahead of the clock"));
        }
        self.reaper.send_later(arrival.db, arrival.key);
        Ok(self.apply(&record, Route::Travel, arrival))
    }

    /// Whether a key that is restored comes from the server that still serves its slot, and is not a user's: a user is sent
    /// there.
    fn imports(&self, arrival: &Arrival) -> bool {
        let (ctx, name) = (self.detached.get(), OwnName::new(arrival.key));
        self.in_cluster.get() && ctx.select_db(arrival.db) && cluster::is_elsewhere(ctx, name.0)
    }

    /// Makes the value of a record that came by `route`, and indexes it.
    pub fn apply(&self, record: &Record, route: Route, arrival: Arrival) -> Value {
        self.observe(record.fence().get());
        self.place(record, route, arrival)
    }

    fn place(&self, record: &Record, route: Route, arrival: Arrival) -> Value {
        self.add(&Hold { lease: self.lease(record, route), owner: record.owner }, arrival)
    }

    /// The lease of a record on this server's clock. An end that its issuer has seen has come, however late the stream is
    /// taken to be: who reads the lock then is not told again.
    fn lease(&self, record: &Record, route: Route) -> Lease {
        let lease = self.lease_by_its_clock(record, route);
        if route == Route::Stream && record.has_ended() { lease.ended_by(self.steady_us()) } else { lease }
    }

    fn lease_by_its_clock(&self, record: &Record, route: Route) -> Lease {
        let issued = record.issued.filter(|_| route != Route::Travel);
        match issued {
            Some(reading) if route == Route::Stream && !self.is_primary.get() => {
                let knows = self.follower.borrow().knows(reading.incarnation);
                if !knows {
                    self.receive(reading, None);
                }
                self.follower.borrow().lease(record, self.exact_clocks())
            }
            Some(reading) if route == Route::File => {
                let written_us = record.written_us(self.exact_clocks(), route);
                self.follower.borrow_mut().read_in_file(reading, written_us);
                record.lease_written_at(written_us)
            }
            _ => record.lease(self.exact_clocks(), route),
        }
    }

    /// Makes a value for the keyspace and indexes it.
    pub fn add(&self, hold: &Hold, arrival: Arrival) -> Value {
        // By its deadline even when that has passed: then the reaper looks at once.
        let value = self.index.borrow_mut().add(hold, arrival.db, arrival.key);
        if self.is_primary.get() {
            reaper::arm(hold.lease.deadline_us);
        }
        value
    }

    /// Takes note of a value that leaves its key. Nothing may be written now, so it is looked at in a moment.
    pub fn unlinked(&self, value: Value, lock: LockName) {
        if value.is_in_wheel() {
            let mut index = self.index.borrow_mut();
            index.unbind(value);
            index.suspect(value);
            drop(index);
            *self.last_unlinked.borrow_mut() = Some((lock.db, lock.name.into()));
            reaper::arm_now();
        }
        if !self.queues.borrow().is_empty() {
            self.look_at(lock, self.steady_us());
        }
    }

    /// Has the queue of a lock looked at when `due_us` has come.
    pub fn look_at(&self, lock: LockName, due_us: u64) {
        self.queues.borrow_mut().recheck_at(lock, due_us);
        reaper::arm(due_us);
    }

    /// Whether a snapshot or an append-only file is being loaded.
    pub fn is_loading(&self) -> bool {
        let loading = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
        Ctx(std::ptr::null_mut()).flags() & loading != 0
    }
}

const CLOCK_REALTIME: c_int = 0;
const CLOCK_MONOTONIC: c_int = 1;
const CLOCK_MONOTONIC_COARSE: c_int = 6;
/// Goes on while the machine sleeps, as the leases of its clients do. It costs the same and has no coarse form.
const CLOCK_BOOTTIME: c_int = 7;

/// How far the clock of leases is ahead of the one that stands still while the machine sleeps; rather less than more.
fn slept_us(steady_clock: c_int) -> u64 {
    let steady_us = clock_us(steady_clock);
    steady_us.saturating_sub(clock_us(CLOCK_MONOTONIC))
}

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}

const _: () = assert!(size_of::<usize>() == 8 && size_of::<Timespec>() == 16);

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
}

/// A clock of the system in microseconds; 0 before its epoch, and where there is no such clock. The library's types cost as much again as the clock.
fn clock_us(clock: c_int) -> u64 {
    let mut time = Timespec { seconds: 0, nanos: 0 };
    // SAFETY: on the 64-bit systems that the servers run on a timespec is two integers of 64 bits.
    unsafe { clock_gettime(clock, &mut time) };
    time.seconds.max(0) as u64 * 1_000_000 + time.nanos as u64 / 1_000
}
