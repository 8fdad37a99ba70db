//! Model check: two clients, one lock, one resource, and a Redis that restarts or fails over and may lose its last writes.
//!
//! Clients stall for any time, lose replies, repeat calls and give up. The resource is a row, or is guarded as a whole.
//! The rules that run are the production functions of this crate, and a lock goes to a replica or a file and back through
//! its codec; the model adds only the world around them. `Rule` holds what others do instead: each broken rule must be
//! caught.

use fence::life::ReadIn;
use fence::lock::codec::{self, Clocks, ENCODED_MAX, Notes, Route, decode, encode};
use fence::lock::lease::{
    self, Acquired, Caller, Extended, Extension, Hold, Lease, Millis, Now, Request, Stolen, Takeover, Terms,
};
use fence::resource::{Bearer, GuardVerdict, Owned, Step, Verdict};
use fence::{Fence, Issuer};
use stateright::{Checker, Model, Property};

const CLIENTS: usize = 2;
/// One step of the clock is a millisecond, and a lease lasts two.
const STEP_US: u64 = 1_000;
const TTL: Millis = Millis(2);
const STEPS: u64 = 4;
const GRANTS: usize = 3;
/// Extensions of one run: one is enough to change the order of ends.
const EXTENSIONS: usize = 1;
/// Writes of one run behind guards, where a client makes more than one.
const WRITES: u8 = 3;
/// Where the two clocks stand at first: far enough from 0 that a server may lag, and apart from each other.
const STEADY_US: u64 = 5_000;
const WALL_US: u64 = 10_000;
/// More than the wall clock can have advanced since the first grant.
const LAG_US: u64 = (STEPS + 2) * STEP_US;
const OWNERS: [&[u8]; CLIENTS] = [b"a", b"b"];

/// How the parts play together.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// As this crate has it.
    ClaimFirst,
    /// The fence is checked at the write only.
    WriteOnly,
    /// The fence is fetched by a second call, after the lock was granted.
    FenceAfterAcquire,
    /// Fences count 1, 2, 3 and a fail-over may lose the count.
    NoClock,
    /// Fences count without the clock, and a server that may have lost grants leaves numbers out.
    NoClockSkips,
    /// Whoever releases releases, whoever holds.
    ReleaseWithoutOwner,
    /// An extension of a lease that has ended brings it back.
    ExtendRevives,
    /// The lock is set first and its expiry by a second call.
    ExpiryLater,
    /// The lock is set although no fence can be issued.
    LockWithoutFence,
    /// A guard checks and stamps, and does not wait for those who are inside.
    GuardWithoutWait,
    /// As this crate has it, at a resource that keeps the owner of its fence.
    OwnersKept,
    /// As this crate has it, with clients that take over the hold that they have seen.
    Steals,
    /// They take the lock over whoever holds it by then.
    StealsFromAnybody,
    /// The thief goes on with the fence of the holder.
    StealsTheFence,
}

/// What clients do with the resource.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    /// Claim, read and update a row, or write it blind.
    Row,
    /// Read and write in a transaction that begins with a guard.
    Guard,
    /// The same in one transaction after the other, as long as the client believes that it has the lock.
    Guards,
}

/// What happens to Redis, once, at any time.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Nothing,
    /// A replica takes over that may lack the last writes.
    FailOver,
    /// A replica takes over that has every write.
    HandOver,
    /// It starts again from a file that may lack the last writes.
    Restart,
}

#[derive(Clone, Copy)]
struct System {
    rule: Rule,
    of: Use,
    fate: Fate,
    /// The clock of the server that takes over or starts again lags by this much.
    lag_us: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Redis {
    issuer: Issuer,
    lock: Option<(Lease, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    Idle,
    /// The server granted the lock and the reply was lost.
    Unsure,
    /// It has the lock, as far as it knows, and has read nothing yet.
    Holds {
        fence: Option<Fence>,
    },
    /// It has read the value of this version.
    HasRead {
        fence: Fence,
        version: u8,
    },
    /// It has written and the reply was lost: whether this version is its own it does not know.
    HasWritten {
        fence: Fence,
        version: u8,
    },
    /// It is in a guarded transaction and has read the value of this version. The stamp goes back if it rolls back.
    Inside {
        fence: Fence,
        version: u8,
        stamp_before: Option<Stamp>,
    },
    GaveUp,
    /// It has seen who holds the lock, and is about to take it over.
    Watches {
        fence: Fence,
    },
}

/// What is stored at the resource: the fence, and for the model whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stamp {
    fence: i64,
    client: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    wall_us: u64,
    redis: Redis,
    /// What the replica or the file has.
    copy: Redis,
    /// When the file was written. A replica places a lease on its clock as it comes.
    copied_at: u64,
    /// Its fate has come.
    over: bool,
    clients: [Client; CLIENTS],
    stored: Option<Stamp>,
    version: u8,
    grants: usize,
    extensions: usize,
    last_fence: u64,
    broken: Broken,
}

/// What must never happen, noted where it happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Broken {
    lost_update: bool,
    stamp_shared: bool,
    fence_repeated: bool,
    refusal_changed_something: bool,
    lock_for_ever: bool,
    lease_taken_away: bool,
    holder_refused: bool,
    successor_robbed: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Tick,
    Acquire {
        client: usize,
        reply_lost: bool,
    },
    Retry(usize),
    Watch(usize),
    Steal(usize),
    FetchFence(usize),
    SetExpiry(usize),
    Extend(usize),
    Read(usize),
    Write {
        client: usize,
        reply_lost: bool,
    },
    WriteAgain(usize),
    WriteBlind(usize),
    Enter(usize),
    Commit(usize),
    RollBack(usize),
    Release(usize),
    GiveUp(usize),
    /// Every write so far is at the replica or in the file.
    Copy,
    /// What comes next has the state of the copy, a step later.
    Fate,
}

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut issuer = Issuer::default();
        if self.rule == Rule::LockWithoutFence {
            issuer.observe(Fence::MAX);
        }
        let redis = Redis { issuer, lock: None };
        vec![State {
            now: 0,
            wall_us: WALL_US,
            redis,
            copy: redis,
            copied_at: 0,
            over: false,
            clients: [Client::Idle; CLIENTS],
            stored: None,
            version: 0,
            grants: 0,
            extensions: 0,
            last_fence: 0,
            broken: Broken::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What is broken has been seen; a repeated fence goes on, to show what it leads to. Where owners are kept it leads to
        // refused holders alone.
        let Broken { fence_repeated, stamp_shared, holder_refused, .. } = state.broken;
        let holder_refused = holder_refused && self.rule == Rule::OwnersKept;
        if state.broken != (Broken { fence_repeated, stamp_shared, holder_refused, ..Broken::default() }) {
            return;
        }
        if state.now < STEPS {
            actions.push(Action::Tick);
        }
        for client in 0..CLIENTS {
            self.client_actions(state, client, actions);
        }
        if self.fate != Fate::Nothing && !state.over {
            actions.extend([Action::Copy, Action::Fate]);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Tick => {
                state.now += 1;
                state.wall_us += STEP_US;
            }
            Action::Acquire { client, reply_lost } => self.acquire(&mut state, client, false, reply_lost),
            Action::Retry(client) => self.acquire(&mut state, client, true, false),
            Action::Watch(client) => watch(&mut state, client),
            Action::Steal(client) => self.steal(&mut state, client),
            Action::FetchFence(client) => fetch_fence(&mut state, client),
            Action::SetExpiry(client) => set_expiry(&mut state, client),
            Action::Extend(client) => self.extend(&mut state, client),
            Action::Read(client) => self.read(&mut state, client),
            Action::Write { client, reply_lost } => self.write(&mut state, client, reply_lost),
            Action::WriteAgain(client) => self.write_again(&mut state, client),
            Action::WriteBlind(client) => self.write_blind(&mut state, client),
            Action::Enter(client) => self.enter(&mut state, client),
            Action::Commit(client) => self.commit(&mut state, client),
            Action::RollBack(client) => roll_back(&mut state, client),
            Action::Release(client) => self.release(&mut state, client),
            Action::GiveUp(client) => state.clients[client] = Client::GaveUp,
            Action::Copy => {
                state.copied_at = if self.fate == Fate::Restart { state.now } else { 0 };
                state.copy = state.redis;
            }
            Action::Fate => self.meet_fate(&mut state),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(LOST_UPDATE, |_, s: &State| !s.broken.lost_update),
            Property::always(STAMP_SHARED, |_, s: &State| !s.broken.stamp_shared),
            Property::always(REPEATED, |_, s: &State| !s.broken.fence_repeated),
            Property::always(CHANGED, |_, s: &State| !s.broken.refusal_changed_something),
            Property::always(FOR_EVER, |_, s: &State| !s.broken.lock_for_ever),
            Property::always(TAKEN_AWAY, |_, s: &State| !s.broken.lease_taken_away),
            Property::always(HOLDER_REFUSED, |_, s: &State| !s.broken.holder_refused),
            Property::always(ROBBED, |_, s: &State| !s.broken.successor_robbed),
            Property::sometimes("two clients believe that they hold the lock", |_, s: &State| {
                s.clients.iter().all(|client| client.fence().is_some())
            }),
            Property::sometimes("both clients wrote", |_, s: &State| s.version >= 2),
            Property::sometimes("a client does not know whether it has the lock", |_, s: &State| {
                s.clients.contains(&Client::Unsure) && s.now > 0
            }),
            Property::sometimes("a stale holder is refused", |_, s: &State| {
                s.clients.iter().any(|client| {
                    client.fence().is_some_and(|fence| Step::Update.judge(s.fence(), fence) == Verdict::Stale)
                })
            }),
        ];
        match self.of {
            Use::Row => {
                properties.push(Property::sometimes("a lost write is repeated after a newer claim", |_, s: &State| {
                    s.clients.iter().any(|client| match *client {
                        Client::HasWritten { fence, .. } => Step::Update.judge(s.fence(), fence) == Verdict::Stale,
                        _ => false,
                    })
                }))
            }
            Use::Guard | Use::Guards => {
                properties.push(Property::sometimes("a newer holder waits for a transaction", |_, s: &State| {
                    s.is_inside()
                        && s.clients.iter().any(|client| match *client {
                            Client::Holds { fence: Some(fence) } => {
                                GuardVerdict::of(s.fence(), fence, ReadIn::Unsaid) == GuardVerdict::Alone
                            }
                            _ => false,
                        })
                }))
            }
        }
        if self.steals() {
            properties.push(Property::sometimes("a holder is robbed and does not know", |_, s: &State| {
                s.now == 0 && s.clients.iter().all(|client| client.fence().is_some())
            }));
        }
        if self.fate != Fate::Nothing {
            properties.push(Property::sometimes("a lease lives on after its server", |_, s: &State| {
                s.over
                    && s.redis.lock.is_some_and(|(lease, _)| {
                        lease.granted_us < s.steady_us() - STEP_US && lease.is_live(s.steady_us())
                    })
            }));
        }
        properties
    }
}

impl System {
    fn client_actions(&self, state: &State, client: usize, actions: &mut Vec<Action>) {
        let more = state.grants < GRANTS;
        if self.steals() && state.clients[client] == Client::Idle && more {
            actions.push(Action::Watch(client));
        }
        match state.clients[client] {
            Client::Watches { .. } => actions.push(Action::Steal(client)),
            Client::Idle if more => {
                actions.push(Action::Acquire { client, reply_lost: false });
                actions.push(Action::Acquire { client, reply_lost: true });
            }
            Client::Unsure => {
                actions.push(Action::GiveUp(client));
                if more {
                    actions.push(Action::Retry(client));
                }
            }
            Client::Holds { fence: None } => {
                actions.push(if self.rule == Rule::ExpiryLater {
                    Action::SetExpiry(client)
                } else {
                    Action::FetchFence(client)
                });
                actions.push(Action::GiveUp(client));
            }
            Client::Holds { .. } => {
                actions.extend([Action::Release(client), Action::GiveUp(client)]);
                match self.of {
                    Use::Row => actions.extend([Action::Read(client), Action::WriteBlind(client)]),
                    Use::Guards if state.version >= WRITES => {}
                    Use::Guard | Use::Guards => actions.push(Action::Enter(client)),
                }
            }
            Client::HasRead { .. } => actions.extend([
                Action::Write { client, reply_lost: false },
                Action::Write { client, reply_lost: true },
                Action::Release(client),
            ]),
            Client::HasWritten { .. } => actions.extend([Action::WriteAgain(client), Action::Release(client)]),
            Client::Inside { .. } => actions.extend([Action::Commit(client), Action::RollBack(client)]),
            Client::Idle | Client::GaveUp => {}
        }
        if state.clients[client].fence().is_some() && state.extensions < EXTENSIONS {
            actions.push(Action::Extend(client));
        }
    }

    fn now(&self, state: &State) -> Now {
        let wall_us = if matches!(self.rule, Rule::NoClock | Rule::NoClockSkips) { 0 } else { state.wall_us };
        Now { steady_us: state.steady_us(), wall_us }
    }

    fn acquire(&self, state: &mut State, client: usize, retry: bool, reply_lost: bool) {
        let terms = Terms { ttl: TTL, max_hold: None, delay: None, ephemeral: false };
        let request = Request { owner: OWNERS[client], terms, retry };
        let before = state.redis;
        let now = self.now(state);
        match lease::acquire(before.hold().as_ref().copied(), false, request, &mut state.redis.issuer, now) {
            Ok(Acquired::Granted(lease)) => {
                note_end_of_other(state, client);
                state.grants += 1;
                state.broken.fence_repeated |= lease.fence.get() <= state.last_fence;
                state.last_fence = state.last_fence.max(lease.fence.get());
                let deadline_us = if self.rule == Rule::ExpiryLater { u64::MAX } else { lease.deadline_us };
                state.redis.lock = Some((Lease { deadline_us, ..lease }, client));
                let two_calls = matches!(self.rule, Rule::FenceAfterAcquire | Rule::ExpiryLater);
                let fence = (!two_calls).then_some(lease.fence);
                state.clients[client] = if reply_lost { Client::Unsure } else { Client::Holds { fence } };
            }
            Ok(Acquired::Again(lease)) => {
                state.clients[client] = Client::Holds { fence: Some(lease.fence) };
            }
            Err(_) => {
                if self.rule == Rule::LockWithoutFence && state.redis.lock.is_none() {
                    let fence = Fence::new(Fence::MAX).unwrap();
                    state.redis.lock = Some((Lease::grant(fence, terms, now.steady_us), client));
                }
                state.broken.refusal_changed_something |= state.redis != before;
                if retry {
                    state.clients[client] = Client::Idle;
                }
            }
        }
        if self.rule == Rule::ExpiryLater && state.clients[client] == Client::Unsure {
            state.clients[client] = Client::GaveUp;
        }
        note_lock_for_ever(state);
    }

    fn steals(&self) -> bool {
        matches!(self.rule, Rule::Steals | Rule::StealsFromAnybody | Rule::StealsTheFence)
    }

    fn steal(&self, state: &mut State, client: usize) {
        let Client::Watches { fence: seen } = state.clients[client] else { return };
        let terms = Terms { ttl: TTL, max_hold: None, delay: None, ephemeral: false };
        let from = (self.rule != Rule::StealsFromAnybody).then_some(seen);
        let (before, now) = (state.redis, self.now(state));
        let takeover = Takeover { owner: OWNERS[client], terms, from };
        match lease::steal(before.hold(), takeover, &mut state.redis.issuer, now) {
            Ok(Stolen::Granted(lease)) => {
                let robbed = before.lock.filter(|(lease, _)| lease.is_live(now.steady_us));
                state.broken.successor_robbed |= robbed.is_some_and(|(lease, _)| lease.fence != seen);
                state.grants += 1;
                let fence = if self.rule == Rule::StealsTheFence { seen } else { lease.fence };
                state.broken.fence_repeated |= fence.get() <= state.last_fence;
                state.last_fence = state.last_fence.max(fence.get());
                state.redis.lock = Some((Lease { fence, ..lease }, client));
                state.clients[client] = Client::Holds { fence: Some(fence) };
            }
            Ok(Stolen::Delayed(_)) => panic!("no lease of the model has a delay"),
            Err(_) => {
                state.broken.refusal_changed_something |= state.redis != before;
                state.clients[client] = Client::Idle;
            }
        }
    }

    fn extend(&self, state: &mut State, client: usize) {
        let caller = Caller { owner: OWNERS[client], fence: None };
        let now_us = state.steady_us();
        let before = state.redis;
        state.extensions += 1;
        let mut current = before.hold();
        if self.rule == Rule::ExtendRevives {
            current = current.map(|hold| Hold { lease: Lease { deadline_us: u64::MAX, ..hold.lease }, ..hold });
            if current.is_none() {
                // The lock was freed meanwhile: a set-again brings it back, with the old fence.
                let lease = state.clients[client].fence().map(|fence| {
                    let terms = Terms { ttl: TTL, max_hold: None, delay: None, ephemeral: false };
                    Lease::grant(fence, terms, now_us)
                });
                state.redis.lock = lease.map(|lease| (lease, client));
                state.broken.lease_taken_away |= lease.is_some();
                return;
            }
        }
        match lease::extend(current, caller, Extension { ttl: TTL, only_longer: false }, now_us) {
            Ok(Extended::Moved(lease) | Extended::Kept(lease)) => {
                let ended = before.lock.is_some_and(|(lease, _)| !lease.is_live(now_us));
                state.broken.lease_taken_away |= ended;
                state.redis.lock = Some((lease, client));
            }
            Err(_) => state.broken.refusal_changed_something |= state.redis != before,
        }
    }

    fn release(&self, state: &mut State, client: usize) {
        let caller = Caller { owner: OWNERS[client], fence: None };
        let current = state.redis.hold();
        let caller = match (self.rule, current) {
            (Rule::ReleaseWithoutOwner, Some(hold)) => Caller { owner: hold.owner, fence: None },
            _ => caller,
        };
        let before = state.redis;
        match lease::release(current, caller, state.steady_us()) {
            Ok(_) => {
                state.broken.lease_taken_away |= before.lock.is_some_and(|(_, holder)| holder != client);
                state.redis.lock = None;
            }
            Err(_) => state.broken.refusal_changed_something |= state.redis != before,
        }
        state.clients[client] = Client::Idle;
    }

    fn read(&self, state: &mut State, client: usize) {
        let Client::Holds { fence: Some(fence) } = state.clients[client] else { return };
        if self.rule != Rule::WriteOnly {
            if !self.admits(Step::Claim, state, fence, client) {
                note_refused_holder(state, client);
                state.clients[client] = Client::Idle;
                return;
            }
            state.stamp(fence, client);
        }
        state.clients[client] = Client::HasRead { fence, version: state.version };
    }

    fn write(&self, state: &mut State, client: usize, reply_lost: bool) {
        let Client::HasRead { fence, version } = state.clients[client] else { return };
        let step = if self.rule == Rule::WriteOnly { Step::Write } else { Step::Update };
        let mut written = version;
        if self.admits(step, state, fence, client) {
            state.stamp(fence, client);
            state.put(version);
            written = state.version;
        } else {
            note_refused_holder(state, client);
        }
        state.clients[client] = if reply_lost { Client::HasWritten { fence, version: written } } else { Client::Idle };
    }

    /// Begins a guarded transaction and reads. Nothing happens while it has to wait.
    fn enter(&self, state: &mut State, client: usize) {
        let Client::Holds { fence: Some(fence) } = state.clients[client] else { return };
        let (version, stamp_before) = (state.version, state.stored);
        match self.enters(state, fence, client) {
            GuardVerdict::Shared if state.is_stamping() => return,
            GuardVerdict::Alone if state.is_inside() && self.rule != Rule::GuardWithoutWait => return,
            GuardVerdict::Shared => state.note_shared(fence, client),
            GuardVerdict::Alone => state.stamp(fence, client),
            GuardVerdict::Outlived => return,
            GuardVerdict::Stale(_) | GuardVerdict::Duplicate => {
                // While a newer holder's stamp may still be rolled back, the answer has to wait.
                if !state.is_stamping() {
                    note_refused_holder(state, client);
                    state.clients[client] = Client::Idle;
                }
                return;
            }
        }
        state.clients[client] = Client::Inside { fence, version, stamp_before };
    }

    /// A write that depends on nothing read.
    fn write_blind(&self, state: &mut State, client: usize) {
        let Client::Holds { fence: Some(fence) } = state.clients[client] else { return };
        if self.admits(Step::Write, state, fence, client) {
            state.stamp(fence, client);
            state.put(state.version);
        }
        state.clients[client] = Client::Idle;
    }

    /// The same write once more. If the first was accepted, this one changes nothing: unless another write came between.
    fn write_again(&self, state: &mut State, client: usize) {
        let Client::HasWritten { fence, version } = state.clients[client] else { return };
        if self.admits(Step::Update, state, fence, client) {
            state.broken.lost_update |= version != state.version;
        }
        state.clients[client] = Client::Idle;
    }

    /// Whether the resource admits a step of this client with this fence.
    fn admits(&self, step: Step, state: &State, fence: Fence, client: usize) -> bool {
        let (stored, bearer) = self.owned(state, fence, client);
        step.judge_owned(stored, bearer) == Ok(Verdict::Accepted)
    }

    /// How the resource as a whole admits a transaction of this client with this fence.
    fn enters(&self, state: &State, fence: Fence, client: usize) -> GuardVerdict {
        let (stored, bearer) = self.owned(state, fence, client);
        GuardVerdict::of_owned(stored, bearer, ReadIn::Unsaid)
    }

    /// The stamp and the client as the resource sees them: where it keeps no owners, nobody says whose a fence is.
    fn owned(&self, state: &State, fence: Fence, client: usize) -> (Owned<'static>, Bearer<'static>) {
        let owner = |client: usize| (self.rule == Rule::OwnersKept).then_some(OWNERS[client]);
        let stored = state.stored.and_then(|stamp| owner(stamp.client));
        (Owned { fence: state.fence(), owner: stored }, Bearer { fence, owner: owner(client) })
    }

    fn commit(&self, state: &mut State, client: usize) {
        let Client::Inside { fence, version, .. } = state.clients[client] else { return };
        state.put(version);
        state.clients[client] =
            if self.of == Use::Guards { Client::Holds { fence: Some(fence) } } else { Client::Idle };
    }

    fn meet_fate(&self, state: &mut State) {
        if self.fate == Fate::HandOver {
            state.copy = state.redis;
        }
        let written = match self.fate {
            Fate::Restart => Clocks {
                steady_us: STEADY_US + state.copied_at * STEP_US,
                wall_us: WALL_US + state.copied_at * STEP_US,
            },
            _ => state.clocks(),
        };
        let route = if self.fate == Fate::Restart { Route::File } else { Route::Stream };
        let arrival = match self.fate {
            Fate::Restart => {
                state.wall_us = (state.wall_us + STEP_US).saturating_sub(self.lag_us);
                state.now += 1;
                state.clocks()
            }
            // A replica has placed it on its clock as it came.
            _ => written,
        };
        state.redis = state.copy.carried(written, route, arrival);
        if self.rule == Rule::NoClockSkips {
            state.redis.issuer.skip();
        }
        if self.fate != Fate::Restart {
            state.wall_us = (state.wall_us + STEP_US).saturating_sub(self.lag_us);
            state.now += 1;
        }
        (state.copy, state.copied_at, state.over) = (Redis::default(), 0, true);
    }
}

impl State {
    fn steady_us(&self) -> u64 {
        STEADY_US + self.now * STEP_US
    }

    fn clocks(&self) -> Clocks {
        Clocks { steady_us: self.steady_us(), wall_us: self.wall_us }
    }

    /// The fence that is stored at the resource.
    fn fence(&self) -> Option<i64> {
        self.stored.map(|stamp| stamp.fence)
    }

    fn stamp(&mut self, fence: Fence, client: usize) {
        self.note_shared(fence, client);
        self.stored = Some(Stamp { fence: fence.get() as i64, client });
    }

    /// The stored fence is the client's number and another's.
    fn note_shared(&mut self, fence: Fence, client: usize) {
        let is_shared = |stored: Stamp| stored.fence == fence.get() as i64 && stored.client != client;
        self.broken.stamp_shared |= self.stored.is_some_and(is_shared);
    }

    /// An accepted write of a value that is based on this version.
    fn put(&mut self, based_on: u8) {
        self.broken.lost_update |= based_on != self.version;
        self.version += 1;
    }

    /// Whether a guarded transaction is open.
    fn is_inside(&self) -> bool {
        self.clients.iter().any(|client| matches!(client, Client::Inside { .. }))
    }

    /// Whether one is open that has stamped the guard, so that it is alone.
    fn is_stamping(&self) -> bool {
        self.clients
            .iter()
            .any(|client| matches!(*client, Client::Inside { stamp_before, .. } if stamp_before != self.stored))
    }
}

impl Redis {
    fn hold(&self) -> Option<Hold<'static>> {
        self.lock.map(|(lease, client)| Hold { lease, owner: OWNERS[client] })
    }

    /// As a server has it that got this as bytes.
    fn carried(&self, written: Clocks, route: Route, arrival: Clocks) -> Redis {
        let mut issuer = Issuer::default();
        issuer.observe(self.issuer.last());
        let lock = self.hold().map(|hold| {
            let mut buffer = [0; ENCODED_MAX];
            let record =
                decode(encode(&hold, codec::Stamp::of_issuer(1, written), Notes::default(), &mut buffer)).unwrap();
            issuer.observe(record.fence().get());
            let client = OWNERS.iter().position(|&owner| owner == record.owner).unwrap();
            (record.lease(arrival, route), client)
        });
        Redis { issuer, lock }
    }
}

impl Client {
    fn fence(&self) -> Option<Fence> {
        match *self {
            Client::Holds { fence } => fence,
            Client::HasRead { fence, .. } | Client::HasWritten { fence, .. } | Client::Inside { fence, .. } => {
                Some(fence)
            }
            Client::Idle | Client::Unsure | Client::GaveUp | Client::Watches { .. } => None,
        }
    }
}

fn roll_back(state: &mut State, client: usize) {
    let Client::Inside { stamp_before, .. } = state.clients[client] else { return };
    state.stored = stamp_before;
    state.clients[client] = Client::Idle;
}

/// Sees who holds the lock: another client.
fn watch(state: &mut State, client: usize) {
    let now_us = state.steady_us();
    if let Some((lease, _)) = state.redis.lock.filter(|&(lease, holder)| holder != client && lease.is_live(now_us)) {
        state.clients[client] = Client::Watches { fence: lease.fence };
    }
}

/// The second call of two: the counter is bumped without asking who holds the lock now.
fn fetch_fence(state: &mut State, client: usize) {
    let Client::Holds { .. } = state.clients[client] else { return };
    let fence = state.redis.issuer.issue(state.wall_us);
    state.clients[client] = Client::Holds { fence };
}

fn set_expiry(state: &mut State, client: usize) {
    let Some((lease, holder)) = state.redis.lock else { return };
    let deadline_us = state.steady_us() + TTL.as_micros();
    state.redis.lock = Some((Lease { deadline_us, ..lease }, holder));
    state.clients[client] = Client::Holds { fence: Some(lease.fence) };
}

/// A grant while another client's lease is live on this server takes that lease away.
fn note_end_of_other(state: &mut State, client: usize) {
    let now_us = state.steady_us();
    state.broken.lease_taken_away |=
        state.redis.lock.is_some_and(|(lease, holder)| holder != client && lease.is_live(now_us));
}

/// Who holds the lock now was refused by the resource.
fn note_refused_holder(state: &mut State, client: usize) {
    let now_us = state.steady_us();
    state.broken.holder_refused |=
        state.redis.lock.is_some_and(|(lease, holder)| holder == client && lease.is_live(now_us));
}

/// A lock without a deadline whose client has given up.
fn note_lock_for_ever(state: &mut State) {
    state.broken.lock_for_ever |= state
        .redis
        .lock
        .is_some_and(|(lease, holder)| lease.deadline_us == u64::MAX && state.clients[holder] == Client::GaveUp);
}

fn check(system: System) -> impl Checker<System> {
    system.checker().threads(2).spawn_bfs().join()
}

const SOUND: System = System { rule: Rule::ClaimFirst, of: Use::Row, fate: Fate::FailOver, lag_us: 0 };
const ALONE: System = System { fate: Fate::Nothing, ..SOUND };

const LOST_UPDATE: &str = "no accepted write is based on a value that another has replaced";
const STAMP_SHARED: &str = "no two clients claim with one fence";
const REPEATED: &str = "fences grow";
const CHANGED: &str = "a refused request changes nothing";
const FOR_EVER: &str = "every lock ends by itself";
const TAKEN_AWAY: &str = "one live holder on one server";
const ROBBED: &str = "a steal that names a hold takes no other";
const HOLDER_REFUSED: &str = "a live holder is never refused";

/// Every property holds, in so many states: another number means that the model explores something else than it did.
fn assert_sound(system: System, states: usize) {
    let checker = check(system);
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), states);
}

fn assert_caught(system: System, broken: &str, sound: &[&str]) {
    let found = check(system);
    let discoveries = found.discoveries();
    assert!(discoveries.contains_key(broken), "'{broken}' was not caught; found {:?}", discoveries.keys());
    for property in sound {
        assert!(!discoveries.contains_key(property), "'{property}' was broken too");
    }
}

#[test]
fn the_rules_hold_over_a_failover_that_loses_writes() {
    assert_sound(SOUND, 464_988);
}

#[test]
fn the_rules_hold_over_a_restart_that_loses_writes() {
    assert_sound(System { fate: Fate::Restart, ..SOUND }, 665_912);
}

#[test]
fn the_rules_hold_under_a_clock_that_lags_while_no_state_is_lost() {
    assert_sound(System { fate: Fate::HandOver, lag_us: LAG_US, ..SOUND }, 320_658);
}

#[test]
fn a_guard_holds_over_a_failover_that_loses_writes() {
    assert_sound(System { of: Use::Guard, ..SOUND }, 108_082);
}

#[test]
fn a_fence_checked_at_the_write_only_loses_updates() {
    assert_caught(System { rule: Rule::WriteOnly, ..ALONE }, LOST_UPDATE, &[REPEATED, TAKEN_AWAY]);
}

#[test]
fn a_fence_fetched_after_the_acquire_prefers_the_stale_holder() {
    assert_caught(System { rule: Rule::FenceAfterAcquire, ..ALONE }, HOLDER_REFUSED, &[LOST_UPDATE]);
}

#[test]
fn a_counter_without_the_clock_repeats_fences_after_a_failover() {
    for broken in [REPEATED, STAMP_SHARED, LOST_UPDATE] {
        assert_caught(System { rule: Rule::NoClock, ..SOUND }, broken, &[CHANGED, TAKEN_AWAY]);
    }
}

#[test]
fn a_counter_that_skips_what_may_be_lost_needs_no_clock() {
    // A clock that lags takes nothing away; over a restart it makes leases too long, with and without the skip.
    for (fate, lag_us, states) in [(Fate::FailOver, LAG_US, 223_685), (Fate::Restart, 0, 347_951)] {
        assert_sound(System { rule: Rule::NoClockSkips, fate, lag_us, ..SOUND }, states);
    }
}

#[test]
fn a_lost_state_and_a_clock_behind_is_where_the_guarantee_ends() {
    for fate in [Fate::FailOver, Fate::Restart] {
        assert_caught(System { fate, lag_us: LAG_US, ..SOUND }, REPEATED, &[CHANGED, FOR_EVER]);
    }
}

#[test]
fn where_owners_are_kept_a_fence_that_is_issued_twice_loses_no_update() {
    for (of, fate) in [(Use::Row, Fate::FailOver), (Use::Row, Fate::Restart), (Use::Guards, Fate::FailOver)] {
        let twice = System { of, fate, lag_us: LAG_US, ..SOUND };
        for broken in [STAMP_SHARED, LOST_UPDATE] {
            assert_caught(twice, broken, &[CHANGED, FOR_EVER]);
        }
        // The number is issued twice all the same, and a holder is refused for it.
        for broken in [REPEATED, HOLDER_REFUSED] {
            assert_caught(System { rule: Rule::OwnersKept, ..twice }, broken, &[STAMP_SHARED, LOST_UPDATE]);
        }
    }
}

#[test]
fn owners_change_nothing_where_no_fence_is_issued_twice() {
    assert_sound(System { rule: Rule::OwnersKept, ..SOUND }, 464_988);
    assert_sound(System { rule: Rule::OwnersKept, of: Use::Guard, ..SOUND }, 108_082);
}

#[test]
fn a_release_without_the_owner_lets_two_in() {
    assert_caught(System { rule: Rule::ReleaseWithoutOwner, ..ALONE }, TAKEN_AWAY, &[LOST_UPDATE, REPEATED]);
}

#[test]
fn an_extension_that_revives_lets_two_in() {
    assert_caught(System { rule: Rule::ExtendRevives, ..ALONE }, TAKEN_AWAY, &[LOST_UPDATE]);
}

#[test]
fn a_lock_whose_expiry_comes_later_may_stay_for_ever() {
    assert_caught(System { rule: Rule::ExpiryLater, ..ALONE }, FOR_EVER, &[LOST_UPDATE]);
}

#[test]
fn a_lock_that_is_set_although_no_fence_is_left_is_stranded() {
    assert_caught(System { rule: Rule::LockWithoutFence, ..ALONE }, CHANGED, &[LOST_UPDATE]);
}

#[test]
fn a_guard_that_does_not_wait_for_those_inside_loses_updates() {
    let system = System { rule: Rule::GuardWithoutWait, of: Use::Guard, ..ALONE };
    assert_caught(system, LOST_UPDATE, &[REPEATED, TAKEN_AWAY]);
}

#[test]
fn a_stolen_lock_is_safe_because_its_holder_is_fenced() {
    assert_sound(System { rule: Rule::Steals, ..ALONE }, 110_443);
    assert_sound(System { rule: Rule::Steals, fate: Fate::HandOver, ..SOUND }, 969_922);
}

#[test]
fn a_failover_that_loses_a_steal_brings_back_a_holder_that_is_fenced() {
    let sound = [LOST_UPDATE, STAMP_SHARED, REPEATED, CHANGED, TAKEN_AWAY, ROBBED];
    assert_caught(System { rule: Rule::Steals, ..SOUND }, HOLDER_REFUSED, &sound);
}

#[test]
fn a_steal_that_names_no_hold_robs_a_successor() {
    assert_caught(System { rule: Rule::StealsFromAnybody, ..ALONE }, ROBBED, &[LOST_UPDATE, REPEATED]);
}

#[test]
fn a_thief_with_the_fence_of_the_holder_loses_updates() {
    for broken in [REPEATED, STAMP_SHARED, LOST_UPDATE] {
        assert_caught(System { rule: Rule::StealsTheFence, ..ALONE }, broken, &[CHANGED, ROBBED]);
    }
}
