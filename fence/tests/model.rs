//! Model check: two clients, one lock, one resource, and a Redis that may lose its last writes.
//!
//! Clients stall for any time, lose replies, repeat calls and give up. The rules that run are the production functions
//! of this crate; the model adds only the world around them. `Rule` holds what others do instead: each broken rule must
//! be caught.

use fence::lease::{self, Acquired, Caller, Hold, Lease, Millis, Now, Request, Terms};
use fence::resource::{Step, Verdict};
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
/// Where the wall clock stands at first: far enough from 0 that a server may lag.
const WALL_US: u64 = 10_000;
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
    /// Whoever releases releases, whoever holds.
    ReleaseWithoutOwner,
    /// An extension of a lease that has ended brings it back.
    ExtendRevives,
    /// The lock is set first and its expiry by a second call.
    ExpiryLater,
    /// The lock is set although no fence can be issued.
    LockWithoutFence,
}

struct System {
    rule: Rule,
    /// A fail-over may lose the last writes.
    failover: bool,
    /// The server that takes over has a clock that lags by this much.
    lag_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
        on: u8,
    },
    /// It has read the value of this version.
    HasRead {
        fence: Fence,
        version: u8,
        on: u8,
    },
    GaveUp,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    wall_us: u64,
    primary: Redis,
    replica: Redis,
    /// Counts fail-overs: leases of another server are no leases of this one.
    server: u8,
    clients: [Client; CLIENTS],
    stored: Option<i64>,
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
    fence_repeated: bool,
    refusal_changed_something: bool,
    lock_for_ever: bool,
    lease_taken_away: bool,
    holder_refused: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Tick,
    Acquire {
        client: usize,
        reply_lost: bool,
    },
    Retry(usize),
    FetchFence(usize),
    SetExpiry(usize),
    Extend(usize),
    Read(usize),
    Write(usize),
    WriteBlind(usize),
    Release(usize),
    GiveUp(usize),
    Replicate,
    /// The replica takes over, a step later.
    Failover,
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
            primary: redis,
            replica: redis,
            server: 0,
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
        // What is broken has been seen; a repeated fence goes on, to show what it leads to.
        if state.broken != (Broken { fence_repeated: state.broken.fence_repeated, ..Broken::default() }) {
            return;
        }
        if state.now < STEPS {
            actions.push(Action::Tick);
        }
        for client in 0..CLIENTS {
            self.client_actions(state, client, actions);
        }
        if self.failover && state.server == 0 {
            actions.extend([Action::Replicate, Action::Failover]);
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
            Action::FetchFence(client) => fetch_fence(&mut state, client),
            Action::SetExpiry(client) => set_expiry(&mut state, client),
            Action::Extend(client) => self.extend(&mut state, client),
            Action::Read(client) => self.read(&mut state, client),
            Action::Write(client) => self.write(&mut state, client),
            Action::WriteBlind(client) => write_blind(&mut state, client),
            Action::Release(client) => self.release(&mut state, client),
            Action::GiveUp(client) => state.clients[client] = Client::GaveUp,
            Action::Replicate => state.replica = state.primary,
            Action::Failover => {
                state.primary = state.replica;
                state.server += 1;
                state.now += 1;
                state.wall_us = (state.wall_us + STEP_US).saturating_sub(self.lag_us);
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no accepted write is based on a replaced value", |_, s: &State| !s.broken.lost_update),
            Property::always("fences grow", |_, s: &State| !s.broken.fence_repeated),
            Property::always("a refused request changes nothing", |_, s: &State| !s.broken.refusal_changed_something),
            Property::always("every lock ends by itself", |_, s: &State| !s.broken.lock_for_ever),
            Property::always("one live holder on one server", |_, s: &State| !s.broken.lease_taken_away),
            Property::always("a live holder is never refused", |_, s: &State| !s.broken.holder_refused),
            Property::sometimes("two clients believe that they hold the lock", |_, s: &State| {
                s.clients.iter().all(|client| matches!(client, Client::Holds { .. } | Client::HasRead { .. }))
            }),
            Property::sometimes("both clients wrote", |_, s: &State| s.version >= 2),
            Property::sometimes("a client repeated a lost call", |_, s: &State| {
                s.clients.contains(&Client::Unsure) && s.now > 0
            }),
            Property::sometimes("a stale holder was refused", |_, s: &State| {
                s.clients.iter().any(|client| match *client {
                    Client::HasRead { fence, .. } => Step::Update.judge(s.stored, fence) == Verdict::Stale,
                    _ => false,
                })
            }),
        ]
    }
}

impl System {
    fn client_actions(&self, state: &State, client: usize, actions: &mut Vec<Action>) {
        let more = state.grants < GRANTS;
        match state.clients[client] {
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
            Client::Holds { fence: None, .. } => {
                actions.push(if self.rule == Rule::ExpiryLater {
                    Action::SetExpiry(client)
                } else {
                    Action::FetchFence(client)
                });
                actions.push(Action::GiveUp(client));
            }
            Client::Holds { .. } => actions.extend([
                Action::Read(client),
                Action::WriteBlind(client),
                Action::Release(client),
                Action::GiveUp(client),
            ]),
            Client::HasRead { .. } => actions.extend([Action::Write(client), Action::Release(client)]),
            Client::Idle | Client::GaveUp => {}
        }
        if state.clients[client].fence().is_some() && state.extensions < EXTENSIONS {
            actions.push(Action::Extend(client));
        }
    }

    fn now(&self, state: &State) -> Now {
        let wall_us = if self.rule == Rule::NoClock { 0 } else { state.wall_us };
        Now { steady_us: state.now * STEP_US, wall_us }
    }

    fn acquire(&self, state: &mut State, client: usize, retry: bool, reply_lost: bool) {
        let terms = Terms { ttl: TTL, max_hold: None, delay: None, ephemeral: false };
        let request = Request { owner: OWNERS[client], terms, retry };
        let before = state.primary;
        let now = self.now(state);
        match lease::acquire(before.hold().as_ref().copied(), false, request, &mut state.primary.issuer, now) {
            Ok(Acquired::Granted(lease)) => {
                note_end_of_other(state, client);
                state.grants += 1;
                state.broken.fence_repeated |= lease.fence.get() <= state.last_fence;
                state.last_fence = state.last_fence.max(lease.fence.get());
                let deadline_us = if self.rule == Rule::ExpiryLater { u64::MAX } else { lease.deadline_us };
                state.primary.lock = Some((Lease { deadline_us, ..lease }, client));
                let two_calls = matches!(self.rule, Rule::FenceAfterAcquire | Rule::ExpiryLater);
                let fence = (!two_calls).then_some(lease.fence);
                state.clients[client] =
                    if reply_lost { Client::Unsure } else { Client::Holds { fence, on: state.server } };
            }
            Ok(Acquired::Again(lease)) => {
                state.clients[client] = Client::Holds { fence: Some(lease.fence), on: state.server };
            }
            Err(_) => {
                if self.rule == Rule::LockWithoutFence && state.primary.lock.is_none() {
                    let fence = Fence::new(Fence::MAX).unwrap();
                    state.primary.lock = Some((Lease::grant(fence, terms, now.steady_us), client));
                }
                state.broken.refusal_changed_something |= state.primary != before;
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

    fn extend(&self, state: &mut State, client: usize) {
        let caller = Caller { owner: OWNERS[client], fence: None };
        let now_us = state.now * STEP_US;
        let before = state.primary;
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
                state.primary.lock = lease.map(|lease| (lease, client));
                state.broken.lease_taken_away |= lease.is_some();
                return;
            }
        }
        match lease::extend(current, caller, TTL, now_us) {
            Ok(lease) => {
                let ended = before.lock.is_some_and(|(lease, _)| !lease.is_live(now_us));
                state.broken.lease_taken_away |= ended;
                state.primary.lock = Some((lease, client));
            }
            Err(_) => state.broken.refusal_changed_something |= state.primary != before,
        }
    }

    fn release(&self, state: &mut State, client: usize) {
        let caller = Caller { owner: OWNERS[client], fence: None };
        let current = state.primary.hold();
        let caller = match (self.rule, current) {
            (Rule::ReleaseWithoutOwner, Some(hold)) => Caller { owner: hold.owner, fence: None },
            _ => caller,
        };
        let before = state.primary;
        match lease::release(current, caller, state.now * STEP_US) {
            Ok(_) => {
                state.broken.lease_taken_away |= before.lock.is_some_and(|(_, holder)| holder != client);
                state.primary.lock = None;
            }
            Err(_) => state.broken.refusal_changed_something |= state.primary != before,
        }
        state.clients[client] = Client::Idle;
    }

    fn read(&self, state: &mut State, client: usize) {
        let Client::Holds { fence: Some(fence), on } = state.clients[client] else { return };
        if self.rule != Rule::WriteOnly {
            if Step::Claim.judge(state.stored, fence) != Verdict::Accepted {
                note_refused_holder(state, client);
                state.clients[client] = Client::Idle;
                return;
            }
            state.stored = Some(fence.get() as i64);
        }
        state.clients[client] = Client::HasRead { fence, version: state.version, on };
    }

    fn write(&self, state: &mut State, client: usize) {
        let Client::HasRead { fence, version, .. } = state.clients[client] else { return };
        let step = if self.rule == Rule::WriteOnly { Step::Write } else { Step::Update };
        if step.judge(state.stored, fence) == Verdict::Accepted {
            state.broken.lost_update |= version != state.version;
            state.stored = Some(fence.get() as i64);
            state.version += 1;
        } else {
            note_refused_holder(state, client);
        }
        state.clients[client] = Client::Idle;
    }
}

impl Redis {
    fn hold(&self) -> Option<Hold<'static>> {
        self.lock.map(|(lease, client)| Hold { lease, owner: OWNERS[client] })
    }
}

impl Client {
    fn fence(&self) -> Option<Fence> {
        match *self {
            Client::Holds { fence, .. } => fence,
            Client::HasRead { fence, .. } => Some(fence),
            Client::Idle | Client::Unsure | Client::GaveUp => None,
        }
    }
}

/// A write that depends on nothing read.
fn write_blind(state: &mut State, client: usize) {
    let Client::Holds { fence: Some(fence), .. } = state.clients[client] else { return };
    if Step::Write.judge(state.stored, fence) == Verdict::Accepted {
        state.stored = Some(fence.get() as i64);
        state.version += 1;
    }
    state.clients[client] = Client::Idle;
}

/// The second call of two: the counter is bumped without asking who holds the lock now.
fn fetch_fence(state: &mut State, client: usize) {
    let Client::Holds { on, .. } = state.clients[client] else { return };
    let fence = state.primary.issuer.issue(state.wall_us);
    state.clients[client] = Client::Holds { fence, on };
}

fn set_expiry(state: &mut State, client: usize) {
    let Client::Holds { on, .. } = state.clients[client] else { return };
    let Some((lease, holder)) = state.primary.lock else { return };
    let deadline_us = state.now * STEP_US + TTL.as_micros();
    state.primary.lock = Some((Lease { deadline_us, ..lease }, holder));
    state.clients[client] = Client::Holds { fence: Some(lease.fence), on };
}

/// A grant while another client's lease is live on this server takes that lease away.
fn note_end_of_other(state: &mut State, client: usize) {
    let now_us = state.now * STEP_US;
    state.broken.lease_taken_away |=
        state.primary.lock.is_some_and(|(lease, holder)| holder != client && lease.is_live(now_us));
}

/// Who holds the lock now was refused by the resource.
fn note_refused_holder(state: &mut State, client: usize) {
    let now_us = state.now * STEP_US;
    state.broken.holder_refused |=
        state.primary.lock.is_some_and(|(lease, holder)| holder == client && lease.is_live(now_us));
}

/// A lock without a deadline whose client has given up.
fn note_lock_for_ever(state: &mut State) {
    state.broken.lock_for_ever |= state
        .primary
        .lock
        .is_some_and(|(lease, holder)| lease.deadline_us == u64::MAX && state.clients[holder] == Client::GaveUp);
}

fn check(system: System) -> impl Checker<System> {
    system.checker().threads(2).spawn_bfs().join()
}

const SOUND: System = System { rule: Rule::ClaimFirst, failover: true, lag_us: 0 };

/// How many states the sound system has: another number means that the model explores something else than it did.
const STATES: usize = 249_500;

const LOST_UPDATE: &str = "no accepted write is based on a replaced value";
const REPEATED: &str = "fences grow";
const CHANGED: &str = "a refused request changes nothing";
const FOR_EVER: &str = "every lock ends by itself";
const TAKEN_AWAY: &str = "one live holder on one server";
const HOLDER_REFUSED: &str = "a live holder is never refused";

#[test]
fn the_rules_hold_in_every_order_of_events() {
    let checker = check(SOUND);
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), STATES);
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
fn a_fence_checked_at_the_write_only_loses_updates() {
    assert_caught(System { rule: Rule::WriteOnly, ..SOUND }, LOST_UPDATE, &[REPEATED, TAKEN_AWAY]);
}

#[test]
fn a_fence_fetched_after_the_acquire_prefers_the_stale_holder() {
    let system = System { rule: Rule::FenceAfterAcquire, failover: false, ..SOUND };
    assert_caught(system, HOLDER_REFUSED, &[LOST_UPDATE]);
}

#[test]
fn a_counter_without_the_clock_repeats_fences_after_a_failover() {
    assert_caught(System { rule: Rule::NoClock, ..SOUND }, REPEATED, &[CHANGED, TAKEN_AWAY]);
    assert_caught(System { rule: Rule::NoClock, ..SOUND }, LOST_UPDATE, &[]);
}

#[test]
fn a_lost_state_and_a_clock_behind_is_where_the_guarantee_ends() {
    assert_caught(System { lag_us: 3 * STEP_US, ..SOUND }, REPEATED, &[CHANGED, TAKEN_AWAY, FOR_EVER]);
}

#[test]
fn a_release_without_the_owner_lets_two_in() {
    assert_caught(System { rule: Rule::ReleaseWithoutOwner, ..SOUND }, TAKEN_AWAY, &[LOST_UPDATE, REPEATED]);
}

#[test]
fn an_extension_that_revives_lets_two_in() {
    assert_caught(System { rule: Rule::ExtendRevives, ..SOUND }, TAKEN_AWAY, &[LOST_UPDATE]);
}

#[test]
fn a_lock_whose_expiry_comes_later_may_stay_for_ever() {
    assert_caught(System { rule: Rule::ExpiryLater, failover: false, ..SOUND }, FOR_EVER, &[LOST_UPDATE]);
}

#[test]
fn a_lock_that_is_set_although_no_fence_is_left_is_stranded() {
    assert_caught(System { rule: Rule::LockWithoutFence, failover: false, ..SOUND }, CHANGED, &[LOST_UPDATE]);
}
