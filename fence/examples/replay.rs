//! Runs a sequence of operations on this crate alone, as a real server would: the reference for tests of real servers.
//!
//! Reads lines from standard input and answers each with one or more lines. Time moves by `advance` alone, and by
//! `STEP_US` with every operation, so that whatever fell due is done before the next one.
//!
//!     start WALL_US clock|count LAST         the clock, whether fences follow it, the last issued fence
//!     advance MS                             stop ELAPSED_US [CONNECTION=reply ...] for each moment at which something ends,
//!                                            or `tie` and no more: two locks are handed over at once, in either order
//!     call CONNECTION COMMAND words ...      reply, or `waits`; then the stop a step later
//!     close CONNECTION                       the stop a step later
//!     row claim|update|write|delete|insert|claim-or-insert|upsert KEY FENCE
//!     row plain KEY FENCE ...                a plain UPDATE in a transaction that declares these fences
//!     row look KEY                           the stored fence
//!     guard NAME FENCE
//!
//! Not a server and not a rule: it parses, asks the production functions, keeps what they return and prints it.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use fence::life::ReadIn;
use fence::lock::args::{self, BadArgument};
use fence::lock::awaits::{self, Awaits, Found, Judge, Stored};
use fence::lock::ending::Ending;
use fence::lock::lease::{self, Acquired, Denied, Extended, Hold, Lease, Now, State, Stolen, Terms};
use fence::lock::queue::{LockName, Queues, Ticket};
use fence::resource::{GuardVerdict, NEVER_CLAIMED, PlainVerdict, Step, Verdict, judge_plain, read_stamp};
use fence::{Brought, Fence, FenceLimits, Issuer};

/// How long every operation takes: longer than a tick of the wheel, so that nothing that is due is left over.
const STEP_US: u64 = 4_000;
/// Where the clock of leases stands at first.
const ORIGIN_US: u64 = 1_000_000_000;
const MAX_TTL: lease::Millis = lease::Millis(24 * 3_600 * 1_000);

type Bytes = Vec<u8>;

struct Waiter {
    connection: u32,
    owner: Bytes,
    terms: Terms,
    until_us: u64,
}

struct World {
    steady_us: u64,
    wall_us: u64,
    counts_alone: bool,
    issuer: Issuer,
    locks: BTreeMap<Bytes, (Lease, Bytes)>,
    queues: Queues<Waiter>,
    /// The deadlines of those who wait, for the next moment at which something ends.
    waits: BTreeMap<u32, (u64, Bytes)>,
    /// Connections that await the end of a hold.
    awaits: Awaits<u32>,
    /// Until when, and their places.
    awaiting: BTreeMap<u32, (u64, Ticket)>,
    bound: BTreeMap<Fence, (u32, Bytes)>,
    hashes: BTreeMap<Bytes, BTreeMap<Bytes, Bytes>>,
    rows: BTreeMap<String, i64>,
    guards: BTreeMap<String, i64>,
    /// Locks handed over at this stop.
    grants: usize,
    /// Replies to connections that waited.
    told: Vec<(u32, String)>,
}

fn main() {
    let mut world = World::new(0, Issuer::default(), true);
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["start", wall_us, fences, last] => {
                let mut issuer = Issuer::default();
                issuer.observe(last.parse().unwrap());
                world = World::new(wall_us.parse().unwrap(), issuer, fences == "count");
                writeln!(out, "started").unwrap();
            }
            ["advance", ms] => {
                let to_us = world.steady_us + ms.parse::<u64>().unwrap() * 1_000;
                world.advance(to_us, &mut out);
                writeln!(out, "done").unwrap();
            }
            ["call", connection, ref command @ ..] => {
                let command: Vec<&[u8]> = command.iter().map(|word| word.as_bytes()).collect();
                let reply = world.call(connection.parse().unwrap(), &command).unwrap_or_else(|error| error);
                writeln!(out, "{reply}").unwrap();
                world.advance(world.steady_us + STEP_US, &mut out);
                writeln!(out, "done").unwrap();
            }
            ["close", connection] => {
                world.close(connection.parse().unwrap());
                world.advance(world.steady_us + STEP_US, &mut out);
                writeln!(out, "done").unwrap();
            }
            ["row", act, key, ref fences @ ..] => writeln!(out, "{}", world.row(act, key, fences)).unwrap(),
            ["guard", name, fence] => writeln!(out, "{}", world.guard(name, fence)).unwrap(),
            _ => panic!("cannot read {line:?}"),
        }
        out.flush().unwrap();
    }
}

impl World {
    fn new(wall_us: u64, issuer: Issuer, counts_alone: bool) -> World {
        World {
            steady_us: ORIGIN_US,
            wall_us,
            counts_alone,
            issuer,
            locks: BTreeMap::new(),
            queues: Queues::new(ORIGIN_US),
            waits: BTreeMap::new(),
            awaits: Awaits::new(ORIGIN_US),
            awaiting: BTreeMap::new(),
            bound: BTreeMap::new(),
            hashes: BTreeMap::new(),
            rows: BTreeMap::new(),
            guards: BTreeMap::new(),
            grants: 0,
            told: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        Now { steady_us: self.steady_us, wall_us: if self.counts_alone { 0 } else { self.unix_us() } }
    }

    fn unix_us(&self) -> u64 {
        self.wall_us + self.steady_us - ORIGIN_US
    }

    /// Goes on to `to_us`, with a stop after each moment at which something ends.
    fn advance(&mut self, to_us: u64, out: &mut impl Write) {
        loop {
            let mut stop_us = self.next_end_us().map_or(u64::MAX, |end_us| end_us + STEP_US);
            if stop_us - STEP_US > to_us {
                stop_us = to_us;
            }
            // Whatever else ends shortly before the stop is due at it as well.
            while let Some(end_us) = self.ends().filter(|&end_us| end_us <= stop_us && end_us + STEP_US > stop_us).max()
            {
                stop_us = end_us + STEP_US;
            }
            self.steady_us = stop_us;
            self.grants = 0;
            self.do_what_is_due();
            if self.grants > 1 {
                return writeln!(out, "tie").unwrap();
            }
            let told: Vec<String> =
                self.told.drain(..).map(|(connection, reply)| format!(" {connection}={reply}")).collect();
            writeln!(out, "stop {}{}", stop_us - ORIGIN_US, told.concat()).unwrap();
            if stop_us >= to_us {
                return;
            }
        }
    }

    /// The moments, after now, at which a wait, a lease or a delay ends.
    fn ends(&self) -> impl Iterator<Item = u64> {
        let leases = self.locks.values().flat_map(|(lease, _)| [lease.deadline_us, lease.free_us()]);
        let waits = self.waits.values().map(|&(until_us, _)| until_us);
        let waits = waits.chain(self.awaiting.values().map(|&(until_us, _)| until_us));
        leases.chain(waits).filter(|&end_us| end_us > self.steady_us)
    }

    fn next_end_us(&self) -> Option<u64> {
        self.ends().min()
    }

    /// As a server's timer: first the waits that are over, then the locks that are free.
    fn do_what_is_due(&mut self) {
        let mut budget = usize::MAX;
        while let Some(waiter) = self.queues.pop_expired(self.steady_us, &mut budget) {
            self.tell(waiter.connection, "nil".into());
        }
        for key in self.waits.values().map(|(_, key)| key.clone()).collect::<Vec<_>>() {
            self.settle(&key);
        }
        let now_us = self.steady_us;
        let over = self.locks.iter().filter(|(_, (lease, _))| !lease.is_live(now_us));
        for (key, lease) in over.map(|(key, &(lease, _))| (key.clone(), lease)).collect::<Vec<_>>() {
            self.end(&key, lease.fence, lease.ending(now_us));
        }
        self.locks.retain(|_, (lease, _)| lease.state(now_us) != State::Free);
        // Last: null is the answer of a hold that has not ended.
        while let Some(connection) = self.awaits.pop_expired(now_us, &mut budget) {
            self.tell(connection, "nil".into());
        }
    }

    /// The hold of `fence` has ended.
    fn end(&mut self, key: &[u8], fence: Fence, ending: Ending) {
        for connection in self.awaits.end(lock(key), fence) {
            self.tell(connection, ending.word().into());
        }
    }

    fn tell(&mut self, connection: u32, reply: String) {
        self.waits.remove(&connection);
        self.awaiting.remove(&connection);
        self.told.push((connection, reply));
    }

    /// Hands the lock to the head of its queue if it is free.
    fn settle(&mut self, key: &[u8]) {
        let state = self.locks.get(key).map_or(State::Free, |(lease, _)| lease.state(self.steady_us));
        if state == State::Free {
            self.serve(key);
        }
    }

    fn serve(&mut self, key: &[u8]) -> bool {
        let Some(ticket) = self.queues.head(lock(key)).map(|(ticket, _)| ticket) else { return false };
        let waiter = self.queues.leave(ticket).unwrap();
        let now = self.now();
        let lease = lease::grant(waiter.terms, &mut self.issuer, now).unwrap();
        self.store(key, lease, &waiter.owner, waiter.connection);
        self.tell(waiter.connection, lease.fence.to_string());
        self.grants += 1;
        true
    }

    fn store(&mut self, key: &[u8], lease: Lease, owner: &[u8], connection: u32) {
        if lease.ephemeral {
            self.bound.insert(lease.fence, (connection, key.into()));
        }
        if let Some((before, _)) = self.locks.insert(key.into(), (lease, owner.into())) {
            self.end(key, before.fence, before.ending(self.steady_us));
        }
    }

    fn call(&mut self, connection: u32, words: &[&[u8]]) -> Result<String, String> {
        let bad = |bad: BadArgument| format!("ERR {bad}");
        let stored = words.get(1).and_then(|&key| self.locks.get(key).cloned());
        let hold = stored.as_ref().map(|(lease, owner)| Hold { lease: *lease, owner });
        let now_us = self.steady_us;
        match *words {
            [b"FENCELOCK.ACQUIRE", key, owner, ttl, ref options @ ..] => {
                let request = args::acquire(owner, ttl, options, MAX_TTL).map_err(bad)?;
                Ok(self.acquire(connection, key, request))
            }
            [b"FENCELOCK.EXTEND", key, owner, ttl, ref options @ ..] => {
                let request = args::extend(owner, ttl, options, MAX_TTL).map_err(bad)?;
                let extended = lease::extend(hold, request.caller, request.extension, now_us);
                let Ok(Extended::Moved(lease) | Extended::Kept(lease)) = extended else { return Ok("0".into()) };
                self.locks.insert(key.into(), (lease, owner.into()));
                Ok(lease.left(now_us).0.to_string())
            }
            [b"FENCELOCK.STEAL", key, owner, ttl, ref options @ ..] => {
                let takeover = args::steal(owner, ttl, options, MAX_TTL).map_err(bad)?;
                let now = self.now();
                match lease::steal(hold, takeover, &mut self.issuer, now) {
                    Ok(Stolen::Granted(lease)) => {
                        if let Some(before) = hold {
                            self.end(key, before.lease.fence, before.lease.ending_by_steal(now_us));
                        }
                        self.store(key, lease, owner, connection);
                        return Ok(lease.fence.to_string());
                    }
                    Ok(Stolen::Delayed(lease)) => {
                        self.end(key, lease.fence, Ending::Stolen);
                        self.locks.get_mut(key).unwrap().0 = lease;
                    }
                    Err(_) => {}
                }
                Ok("nil".into())
            }
            [b"FENCELOCK.RELEASE", key, owner, ref options @ ..] => {
                let args::Release { caller, queued } = args::release(owner, options).map_err(bad)?;
                let gone = if queued { self.queues.leave_all_of(lock(key), owner) } else { Vec::new() };
                let left_queue = !gone.is_empty();
                gone.into_iter().for_each(|waiter| self.tell(waiter.connection, "nil".into()));
                if lease::release(hold, caller, now_us).is_err() {
                    return Ok(u8::from(left_queue).to_string());
                }
                if !self.serve(key)
                    && let Some((lease, _)) = self.locks.remove(key)
                {
                    self.end(key, lease.fence, lease.ending(now_us));
                }
                Ok("1".into())
            }
            [b"FENCELOCK.CHECK", _, fence] => {
                let fence = args::fence(fence).map_err(bad)?;
                Ok(u8::from(hold.is_some_and(|hold| hold.lease.is_live_hold_of(fence, now_us))).to_string())
            }
            [b"FENCELOCK.AWAIT", key, fence, ms] => {
                let args::Await { fence, wait } = args::await_end(fence, ms, MAX_TTL).map_err(bad)?;
                let stored = hold.map(|hold| Stored { lease: hold.lease, is_over: false });
                let last = self.issuer.last();
                match awaits::find(stored, fence, last, Judge::Clock(now_us)) {
                    Found::Over => return Ok(Ending::Unknown.word().into()),
                    Found::Ahead => return Err(format!("ERR fence {fence} is above {last}, the last one issued")),
                    Found::Live => {}
                }
                let until_us = now_us + wait.as_micros();
                let ticket = self.awaits.join(lock(key), fence, false, until_us, connection).unwrap();
                self.awaiting.insert(connection, (until_us, ticket));
                Ok("waits".into())
            }
            [b"FENCELOCK.INSPECT", key] => Ok(hold.map_or("nil".into(), |hold| self.inspect(key, hold))),
            [b"FENCELOCK.RAISE", fence] => {
                let fence = args::fence(fence).map_err(bad)?;
                if !self.issuer.accepts(fence, Brought::ByRaise, self.unix_us()) {
                    let ahead = Brought::ByRaise.ahead_in_words();
                    return Err(format!("ERR fence {fence} is more than {ahead} ahead of the clock"));
                }
                self.issuer.observe(fence.get());
                Ok(self.issuer.last().to_string())
            }
            [b"DEL", key] => {
                let hash = self.hashes.remove(key).is_some();
                let lock = self.locks.remove(key);
                if let Some((lease, _)) = &lock {
                    self.end(key, lease.fence, Ending::Deleted);
                }
                Ok(u8::from(lock.is_some() || hash).to_string())
            }
            [b"HSET", resource, b"fence", text] => {
                let fields = self.hashes.entry(resource.into()).or_default();
                Ok(u8::from(fields.insert(b"fence".into(), text.into()).is_none()).to_string())
            }
            [b"FENCELOCK.CLAIM", resource, fence] => {
                let fence = self.hash_fence(fence)?;
                if Step::Claim.judge(self.stamp(resource)?, fence) == Verdict::Stale {
                    return Ok("nil".into());
                }
                let fields = self.hashes.entry(resource.into()).or_default();
                fields.insert(args::STAMP.into(), fence.to_string().into());
                let told =
                    fields.iter().map(|(name, value)| format!("{} {}", name.escape_ascii(), value.escape_ascii()));
                Ok(told.collect::<Vec<_>>().join(" "))
            }
            [b"FENCELOCK.WRITE", resource, fence, ref fields @ ..] => {
                let fence = self.hash_fence(fence)?;
                args::fields(fields).map_err(bad)?;
                match Step::Update.judge(self.stamp(resource)?, fence) {
                    Verdict::Stale => Ok("0".into()),
                    Verdict::Unclaimed => Err("UNCLAIMED".into()),
                    Verdict::Accepted => {
                        let stored = self.hashes.entry(resource.into()).or_default();
                        stored.extend(fields.chunks(2).map(|pair| (pair[0].into(), pair[1].into())));
                        Ok("1".into())
                    }
                }
            }
            _ => panic!("no such command"),
        }
    }

    fn acquire(&mut self, connection: u32, key: &[u8], request: args::Acquire) -> String {
        if self.queues.waiting(lock(key)) > 0 {
            self.settle(key);
        }
        let args::Acquire { request, wait } = request;
        let others_wait = self.queues.waiting(lock(key)) > 0;
        let stored = self.locks.get(key).cloned();
        let hold = stored.as_ref().map(|(lease, owner)| Hold { lease: *lease, owner });
        let now = self.now();
        match lease::acquire(hold, others_wait, request, &mut self.issuer, now) {
            Ok(Acquired::Granted(lease)) => {
                self.store(key, lease, request.owner, connection);
                lease.fence.to_string()
            }
            Ok(Acquired::Again(lease)) => {
                if lease.ephemeral {
                    self.bound.insert(lease.fence, (connection, key.into()));
                }
                lease.fence.to_string()
            }
            Err(Denied::FencesUsedUp) => format!("ERR all fences up to {} are issued", Fence::MAX),
            Err(_) => {
                if let Some(wait) = wait {
                    let until_us = self.steady_us + wait.as_micros();
                    let owner = request.owner.to_vec();
                    let waiter = Waiter { connection, owner, terms: request.terms, until_us };
                    self.enqueue(key, request.retry, waiter);
                    return "waits".into();
                }
                if let Some(place) = request.retry.then(|| self.queues.place_of(lock(key), request.owner)).flatten() {
                    let before = self.queues.leave(place).unwrap();
                    self.tell(before.connection, "nil".into());
                }
                "nil".into()
            }
        }
    }

    fn enqueue(&mut self, key: &[u8], retry: bool, waiter: Waiter) {
        let (connection, until_us, owner) = (waiter.connection, waiter.until_us, waiter.owner.clone());
        let not_queued = match retry {
            false => Some(waiter),
            true => match self.queues.take_over(lock(key), &owner, until_us, waiter) {
                Ok((_, before)) => {
                    self.tell(before.connection, "nil".into());
                    None
                }
                Err(waiter) => Some(waiter),
            },
        };
        if let Some(waiter) = not_queued {
            self.queues.join(lock(key), &owner, until_us, waiter).unwrap();
        }
        self.waits.insert(connection, (until_us, key.into()));
    }

    fn inspect(&self, key: &[u8], hold: Hold) -> String {
        let (lease, now_us) = (hold.lease, self.steady_us);
        let state = match lease.state(now_us) {
            State::Free => return "nil".into(),
            State::Held => "held",
            State::Delay => "delay",
        };
        let left = lease.max_hold_left(now_us).map_or("nil".into(), |left| left.0.to_string());
        let waiters = self.queues.waiting(lock(key));
        format!(
            "owner {} fence {} ttl-ms {} held-ms {} maxhold-left-ms {left} waiters {waiters} state {state}",
            hold.owner.escape_ascii(),
            lease.fence,
            lease.left(now_us).0,
            lease.held_us(now_us) / 1_000,
        )
    }

    /// The connection is gone: it waits no more, and its ephemeral leases expire.
    fn close(&mut self, connection: u32) {
        if let Some((_, ticket)) = self.awaiting.remove(&connection) {
            self.awaits.leave(ticket);
        }
        if let Some((_, key)) = self.waits.remove(&connection) {
            let mut others = Vec::new();
            // Queues know owners, not connections: take all out and put the others back in their order.
            while let Some(ticket) = self.queues.head(lock(&key)).map(|(ticket, _)| ticket) {
                others.push(self.queues.leave(ticket).unwrap());
            }
            for waiter in others.into_iter().filter(|waiter| waiter.connection != connection) {
                let (owner, until_us) = (waiter.owner.clone(), waiter.until_us);
                self.queues.join(lock(&key), &owner, until_us, waiter).unwrap();
            }
        }
        for (fence, (of, key)) in std::mem::take(&mut self.bound) {
            if of != connection {
                self.bound.insert(fence, (of, key));
            } else if let Some((lease, _)) =
                self.locks.get_mut(&key).filter(|(lease, _)| lease.is_live_hold_of(fence, self.steady_us))
            {
                *lease = lease.expire(self.steady_us);
            }
        }
    }

    fn accepted(&self, number: i64) -> Option<Fence> {
        FenceLimits { max: Fence::MAX, max_ahead_us: Brought::ByClaim.ahead_us() }.accept(number, self.unix_us()).ok()
    }

    fn hash_fence(&self, word: &[u8]) -> Result<Fence, String> {
        let fence = args::fence(word).map_err(|bad| format!("ERR {bad}"))?;
        let accepted = self.issuer.accepts(fence, Brought::ByClaim, self.unix_us()).then_some(fence);
        let ahead = Brought::ByClaim.ahead_in_words();
        accepted.ok_or_else(|| format!("ERR fence {fence} is more than {ahead} ahead of the clock"))
    }

    fn stamp(&self, resource: &[u8]) -> Result<Option<i64>, String> {
        let Some(text) = self.hashes.get(resource).and_then(|fields| fields.get(args::STAMP)) else { return Ok(None) };
        read_stamp(text).map(Some).ok_or_else(|| "ERR the stored fence".into())
    }

    /// What a row of a protected table answers, in one word: `t`, `f`, or the code of the error.
    fn row(&mut self, act: &str, key: &str, fences: &[&str]) -> String {
        let stored = self.rows.get(key).copied();
        let number = |word: &&str| word.parse::<i64>().unwrap();
        match act {
            "insert" => {
                let free = stored.is_none();
                self.rows.entry(key.into()).or_insert(0);
                return if free { "t" } else { "23505" }.into();
            }
            "look" => return stored.map_or("none".into(), |stored| stored.to_string()),
            "plain" => {
                return plain(stored, fences.iter().map(number).map(|number| Fence::new(number as u64).unwrap()));
            }
            _ => {}
        }
        let Some(fence) = self.accepted(number(&fences[0])) else { return "LF005".into() };
        // A row that is not there has no fence that could refuse one.
        let inserts = matches!(act, "claim-or-insert" | "upsert");
        let Some(stored) = stored.or(inserts.then_some(NEVER_CLAIMED)) else { return "P0002".into() };
        let step = match act {
            "claim" | "claim-or-insert" => Step::Claim,
            "write" | "upsert" => Step::Write,
            "update" | "delete" => Step::Update,
            _ => panic!("no such act"),
        };
        match step.judge(Some(stored), fence) {
            Verdict::Stale => return "f".into(),
            Verdict::Unclaimed => return "LF002".into(),
            Verdict::Accepted => {}
        }
        if act == "delete" {
            self.rows.remove(key);
        } else {
            self.rows.insert(key.into(), fence.get() as i64);
        }
        "t".into()
    }

    fn guard(&mut self, name: &str, fence: &str) -> String {
        let Some(fence) = self.accepted(fence.parse().unwrap()) else { return "LF005".into() };
        match GuardVerdict::of(self.guards.get(name).copied(), fence, ReadIn::Unsaid) {
            GuardVerdict::Stale(_) => return "LF001".into(),
            GuardVerdict::Outlived => return "LF006".into(),
            GuardVerdict::Duplicate => return "LF007".into(),
            GuardVerdict::Shared => {}
            GuardVerdict::Alone => {
                self.guards.insert(name.into(), fence.get() as i64);
            }
        }
        "t".into()
    }
}

/// A plain UPDATE of a row of a protected table.
fn plain(stored: Option<i64>, in_use: impl Iterator<Item = Fence>) -> String {
    // No row, no trigger: nothing is written and nothing is refused.
    let Some(stored) = stored else { return "f".into() };
    match judge_plain(Some(stored), in_use) {
        PlainVerdict::Accepted => "t",
        PlainVerdict::NoFence => "LF003",
        PlainVerdict::Stale(_) => "LF001",
        PlainVerdict::Unclaimed(_) => "LF002",
    }
    .into()
}

fn lock(name: &[u8]) -> LockName<'_> {
    LockName { db: 0, name }
}
