//! Model check: a lease server whose grants can be rolled back. Leases in the table of a database, two clients, and a
//! resource elsewhere that compares fences.
//!
//! A grant is an uncommitted change until COMMIT; the last fence is a sequence, which no rollback takes back. Meanwhile a
//! replica that lacks the last commits can be promoted. The rules that run are the production functions of this crate; `Rule`
//! holds what others do instead, and where the guarantee ends: each must be caught.

use fence::lock::lease::{self, Acquired, Caller, Hold, Lease, Millis, Now, Request, Terms};
use fence::resource::{Step, Verdict};
use fence::{Fence, Issuer};
use stateright::{Checker, Model, Property};

const CLIENTS: usize = 2;
const OWNERS: [&[u8]; CLIENTS] = [b"a", b"b"];
const TTL: Millis = Millis(2);
/// One step of the clock is a millisecond.
const STEP_US: u64 = 1_000;
const STEPS: u64 = 4;
const ACQUISITIONS: usize = 3;
const WALL_US: u64 = 1_000;

/// How the parts play together.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// As the extension has it.
    Sequence,
    /// The last fence is part of the transaction, and the clock is left out.
    NumberRolledBack,
    /// Fences count without the clock, and a promotion loses the sequence.
    NoClock,
    /// Others take an uncommitted change for nothing, and grant the lock beside it.
    UncommittedIsFree,
}

struct System(Rule);

/// The row of the lock, and the sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Stored {
    lease: Option<(usize, Lease)>,
    last_of_lock: u64,
    sequence: u64,
}

/// A transaction that has changed the row and has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Open {
    client: usize,
    lease: Option<(usize, Lease)>,
    last_of_lock: u64,
    sequence_before: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// What a grant that was committed gave, as far as the client knows.
    fence: Option<u64>,
    /// What it read behind its claim.
    read: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    stored: Stored,
    replica: Stored,
    open: Vec<Open>,
    clients: [Client; CLIENTS],
    /// At the resource: the stamp and the value, which counts writes.
    stamp: Option<i64>,
    value: u8,
    steps: u64,
    acquisitions: usize,
    is_promoted: bool,
    issued: Vec<u64>,
    broken: Broken,
    seen: Seen,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Broken {
    update_lost: bool,
    fence_repeated: bool,
    two_holders: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Seen {
    rolled_back: bool,
    busy_past_its_ttl: bool,
    late_write_refused: bool,
    commit_lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Acquire(usize),
    Release(usize),
    Commit(usize),
    Rollback(usize),
    Claim(usize),
    Write(usize),
    Replicate,
    Promote,
    Tick,
}

const UPDATE_LOST: &str = "no write builds on a value that was replaced since it was read";
const REPEATED: &str = "no fence is given to two committed grants";
const TWO: &str = "no two committed leases are live at once, unless a commit was lost";

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            stored: Stored::default(),
            replica: Stored::default(),
            open: Vec::new(),
            clients: [Client::default(); CLIENTS],
            stamp: None,
            value: 0,
            steps: 0,
            acquisitions: 0,
            is_promoted: false,
            issued: Vec::new(),
            broken: Broken::default(),
            seen: Seen::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken != Broken::default() {
            return;
        }
        for client in 0..CLIENTS {
            if state.open.iter().any(|open| open.client == client) {
                actions.extend([Action::Commit(client), Action::Rollback(client)]);
                continue;
            }
            if state.acquisitions < ACQUISITIONS {
                actions.push(Action::Acquire(client));
            }
            match state.clients[client] {
                Client { fence: Some(_), read: None } => {
                    actions.extend([Action::Claim(client), Action::Release(client)])
                }
                Client { fence: Some(_), read: Some(_) } => {
                    actions.extend([Action::Write(client), Action::Release(client)])
                }
                Client { fence: None, .. } => {}
            }
        }
        if !state.is_promoted {
            actions.extend([Action::Replicate, Action::Promote]);
        }
        if state.steps < STEPS {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Acquire(client) => self.acquire(&mut state, client),
            Action::Release(client) => self.release(&mut state, client),
            Action::Commit(client) => state.commit(client),
            Action::Rollback(client) => self.roll_back(&mut state, client),
            Action::Claim(client) => state.claim(client),
            Action::Write(client) => state.write(client),
            Action::Replicate => state.replica = state.stored,
            Action::Promote => state.promote(),
            Action::Tick => state.steps += 1,
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(UPDATE_LOST, |_, s: &State| !s.broken.update_lost),
            Property::always(REPEATED, |_, s: &State| !s.broken.fence_repeated),
            Property::always(TWO, |_, s: &State| !s.broken.two_holders),
            Property::sometimes("a grant is rolled back", |_, s: &State| s.seen.rolled_back),
            Property::sometimes("an uncommitted grant is busy past its ttl", |_, s: &State| s.seen.busy_past_its_ttl),
            Property::sometimes("a late write is refused", |_, s: &State| s.seen.late_write_refused),
            Property::sometimes("a committed grant is lost", |_, s: &State| s.seen.commit_lost),
            Property::sometimes("both clients wrote", |_, s: &State| s.value >= 2),
        ]
    }
}

impl System {
    fn acquire(&self, state: &mut State, client: usize) {
        if let Some(open) = state.open.first()
            && self.0 != Rule::UncommittedIsFree
        {
            // Whoever has changed the row keeps its lock.
            let past = open.lease.is_some_and(|(_, lease)| !lease.is_live(state.steady_us()));
            state.seen.busy_past_its_ttl |= past;
            return;
        }
        let hold = state.stored.lease.map(|(owner, lease)| Hold { lease, owner: OWNERS[owner] });
        let mut issuer = Issuer::default();
        issuer.observe(state.stored.sequence);
        issuer.observe(state.stored.last_of_lock);
        let wall_us = match self.0 {
            Rule::NoClock | Rule::NumberRolledBack => 0,
            _ => WALL_US + state.steady_us() + state.promotion_us(),
        };
        let terms = Terms { ttl: TTL, max_hold: None, delay: None, ephemeral: false };
        let request = Request { owner: OWNERS[client], terms, retry: false };
        let now = Now { steady_us: state.steady_us(), wall_us };
        if let Ok(Acquired::Granted(lease)) = lease::acquire(hold, false, request, &mut issuer, now) {
            state.acquisitions += 1;
            state.clients[client] = Client::default();
            state.open.push(Open {
                client,
                lease: Some((client, lease)),
                last_of_lock: lease.fence.get(),
                sequence_before: state.stored.sequence,
            });
            state.stored.sequence = issuer.last();
        }
    }

    fn release(&self, state: &mut State, client: usize) {
        if !state.open.is_empty() {
            return;
        }
        let hold = state.stored.lease.map(|(owner, lease)| Hold { lease, owner: OWNERS[owner] });
        let fence = state.clients[client].fence.and_then(Fence::new);
        let caller = Caller { owner: OWNERS[client], fence };
        state.clients[client] = Client::default();
        if lease::release(hold, caller, state.steady_us()).is_err() {
            return;
        }
        let sequence_before = state.stored.sequence;
        state.open.push(Open { client, lease: None, last_of_lock: state.stored.last_of_lock, sequence_before });
    }

    fn roll_back(&self, state: &mut State, client: usize) {
        let Some(open) = state.take_open(client) else { return };
        state.seen.rolled_back = true;
        if self.0 == Rule::NumberRolledBack {
            state.stored.sequence = open.sequence_before;
        }
        // A client that saw the fence before its commit failed may go on with it.
        if self.0 == Rule::NumberRolledBack
            && let Some((_, lease)) = open.lease
        {
            state.grant(client, lease.fence.get());
        }
    }
}

impl State {
    fn steady_us(&self) -> u64 {
        self.steps * STEP_US
    }

    /// A promotion takes longer than the numbers can be ahead of the clock: they are by as many microseconds as there were
    /// grants within one.
    fn promotion_us(&self) -> u64 {
        if self.is_promoted { ACQUISITIONS as u64 } else { 0 }
    }

    fn take_open(&mut self, client: usize) -> Option<Open> {
        let at = self.open.iter().position(|open| open.client == client)?;
        Some(self.open.remove(at))
    }

    fn commit(&mut self, client: usize) {
        let Some(open) = self.take_open(client) else { return };
        let now_us = self.steady_us();
        let was_live = self.stored.lease.is_some_and(|(_, lease)| lease.is_live(now_us));
        if let Some((owner, lease)) = open.lease {
            self.broken.two_holders |= was_live && owner == client;
            self.grant(client, lease.fence.get());
        }
        self.stored.lease = open.lease;
        self.stored.last_of_lock = open.last_of_lock;
    }

    fn grant(&mut self, client: usize, fence: u64) {
        self.broken.fence_repeated |= self.issued.contains(&fence);
        self.issued.push(fence);
        self.clients[client] = Client { fence: Some(fence), read: None };
    }

    fn claim(&mut self, client: usize) {
        let Some(fence) = self.clients[client].fence.and_then(Fence::new) else { return };
        match Step::Claim.judge(self.stamp, fence) {
            Verdict::Accepted => {
                self.stamp = Some(fence.get() as i64);
                self.clients[client].read = Some(self.value);
            }
            Verdict::Stale | Verdict::Unclaimed => self.clients[client] = Client::default(),
        }
    }

    fn write(&mut self, client: usize) {
        let Client { fence: Some(fence), read: Some(read) } = self.clients[client] else { return };
        let Some(fence) = Fence::new(fence) else { return };
        self.clients[client] = Client::default();
        match Step::Update.judge(self.stamp, fence) {
            Verdict::Accepted => {
                self.broken.update_lost |= read != self.value;
                self.value += 1;
            }
            Verdict::Stale | Verdict::Unclaimed => self.seen.late_write_refused = true,
        }
    }

    /// What was not replicated is lost, and so is what has not ended. The clients go on with what they know.
    fn promote(&mut self) {
        self.seen.commit_lost |= self.stored.last_of_lock != self.replica.last_of_lock;
        self.stored = self.replica;
        self.open.clear();
        self.is_promoted = true;
    }
}

fn check(rule: Rule) -> impl Checker<System> {
    System(rule).checker().threads(2).spawn_bfs().join()
}

#[test]
fn fences_of_committed_grants_are_new_and_no_update_is_lost() {
    let checked = check(Rule::Sequence);
    checked.assert_properties();
    assert_eq!(checked.unique_state_count(), 719_428, "another world than the one that was read");
}

#[test]
fn each_broken_rule_is_caught() {
    for (rule, property) in
        [(Rule::NumberRolledBack, REPEATED), (Rule::NoClock, REPEATED), (Rule::UncommittedIsFree, TWO)]
    {
        assert!(check(rule).discovery(property).is_some(), "{property}");
    }
}
