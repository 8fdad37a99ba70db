//! Model check: a database that loses its last commits. A replica that lacks them is promoted, while clients that hold fences
//! see no more than the answers to their calls.
//!
//! Two clients with two fences, in any order and at once, as a lock service without its state lets them be. Redis and leases
//! are in `model.rs`. The rules that run are the production functions of this crate; the numbers of lost transactions are
//! given out again, as PostgreSQL does. `Rule` holds what others do instead, and where the guarantee ends: each must be caught.

use fence::Fence;
use fence::life::{ReadIn, Token, is_of_this_life};
use fence::resource::{GuardVerdict, Step, Verdict};
use stateright::{Checker, Model, Property};

const CLIENTS: usize = 2;
const ROWS: usize = 2;
const PROMOTIONS: usize = 2;
/// Claims, heartbeats and writes of one run.
const TRANSACTIONS: usize = 6;
/// The first number of a transaction: lower ones mark what no transaction has written.
const FIRST_TRANSACTION: u64 = 3;

/// How the parts play together.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// As this crate has it.
    Lives,
    /// A claim counts for ever.
    NoLife,
    /// A write that depends on nothing is not asked for the life, and makes an old claim count again.
    HeartbeatRevives,
}

/// What clients write, and how they have read what it depends on.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    /// A row that was claimed, several times under one claim. A heartbeat is a `fenced_update`.
    Row,
    /// The same with `fenced_write` as the heartbeat, which stamps anew where the claim is lost.
    RowWithStampingHeartbeat,
    /// Either of two rows, from what both had: claimed in one transaction.
    RowsAtOnce,
    /// The same, claimed one after the other.
    RowsOneByOne,
    /// The same, and `fence_life()` is the same before the first claim and after the last.
    RowsOneByOneInOneLife,
    /// What a transaction behind a guard has read, in a later one behind it; the life is passed on.
    Guard,
    /// The same without the life.
    GuardWithoutLife,
}

struct System {
    rule: Rule,
    of: Use,
}

/// A version of a row, or of a guard and what lies behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Row {
    fence: Option<i64>,
    written_by: u32,
    /// Another one for each write.
    value: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Database {
    rows: [Row; ROWS],
    next: u64,
    first: u64,
    life: u64,
}

/// What a client has, as far as it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// What it has read of each row, or written to it since.
    read: [Option<u8>; ROWS],
    /// For the model: the life in which it claimed the row last.
    claimed_in: [Option<u64>; ROWS],
    /// What `fence_life()` returned.
    life: Option<u64>,
    /// It was refused as outlived.
    was_outlived: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    database: Database,
    replica: Database,
    clients: [Client; CLIENTS],
    writes: u8,
    transactions: usize,
    promotions: usize,
    broken: Broken,
    seen: Seen,
}

/// What must never happen, noted where it happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Broken {
    built_on_lost: bool,
    fence_fell: bool,
    refused_without_cause: bool,
}

/// What can happen, so that the model is known to reach it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Seen {
    commit_lost: bool,
    outlived: bool,
    cured: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    /// The life is asked for.
    AskLife(usize),
    /// Claims these rows in one transaction and reads them; or enters the guard and reads.
    Claim {
        client: usize,
        rows: &'static [usize],
    },
    Update {
        client: usize,
        row: usize,
    },
    /// A write of nothing that others read, under a claim.
    Heartbeat(usize),
    /// A write that depends on nothing read: `fenced_write`.
    WriteBlind(usize),
    GiveUp(usize),
    /// All commits so far are at the replica.
    Replicate,
    Promote,
}

const BOTH: &[usize] = &[0, 1];
const EACH: [&[usize]; ROWS] = [&[0], &[1]];

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let row = Row { fence: None, written_by: FIRST_TRANSACTION as u32, value: 0 };
        let first = FIRST_TRANSACTION + 1;
        let database = Database { rows: [row; ROWS], next: first, first, life: 1 };
        vec![State {
            database,
            replica: database,
            clients: [Client::default(); CLIENTS],
            writes: 0,
            transactions: 0,
            promotions: 0,
            broken: Broken::default(),
            seen: Seen::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken != Broken::default() {
            return;
        }
        if state.transactions < TRANSACTIONS {
            (0..CLIENTS).for_each(|client| self.client_actions(state, client, actions));
        }
        if state.promotions < PROMOTIONS {
            actions.extend([Action::Replicate, Action::Promote]);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::AskLife(client) => state.clients[client].life = Some(state.database.life),
            Action::Claim { client, rows } => self.claim(&mut state, client, rows),
            Action::Update { client, row } => self.update(&mut state, client, row),
            Action::Heartbeat(client) => self.heartbeat(&mut state, client),
            Action::WriteBlind(client) => self.write_blind(&mut state, client),
            Action::GiveUp(client) => state.clients[client] = Client::default(),
            Action::Replicate => state.replica = state.database,
            Action::Promote => state.promote(),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BUILT_ON_LOST, |_, s: &State| !s.broken.built_on_lost),
            Property::always(FENCE_FELL, |_, s: &State| !s.broken.fence_fell),
            Property::always(WITHOUT_CAUSE, |_, s: &State| !s.broken.refused_without_cause),
            Property::sometimes("a commit is lost", |_, s: &State| s.seen.commit_lost),
            Property::sometimes("both clients wrote", |_, s: &State| {
                s.writes >= 2
                    && (0..CLIENTS).all(|client| s.clients[client].read.iter().flatten().any(|&value| value > 0))
            }),
            Property::sometimes(OUTLIVED, |_, s: &State| s.seen.outlived),
            Property::sometimes("who claims again and reads again goes on", |_, s: &State| s.seen.cured),
        ]
    }
}

impl System {
    fn client_actions(&self, state: &State, client: usize, actions: &mut Vec<Action>) {
        let one = &state.clients[client];
        match self.of {
            Use::Row | Use::RowWithStampingHeartbeat => {
                actions.push(Action::Claim { client, rows: EACH[0] });
                match one.read[0] {
                    Some(_) => actions.extend([Action::Heartbeat(client), Action::Update { client, row: 0 }]),
                    None => actions.push(Action::WriteBlind(client)),
                }
            }
            Use::RowsAtOnce => {
                actions.push(Action::Claim { client, rows: BOTH });
                self.update_either(state, client, actions);
            }
            Use::RowsOneByOne | Use::RowsOneByOneInOneLife => {
                if self.of == Use::RowsOneByOneInOneLife && one.read == [None; ROWS] {
                    actions.push(Action::AskLife(client));
                }
                if self.of == Use::RowsOneByOne || one.life.is_some() {
                    let next = one.read.iter().position(Option::is_none);
                    actions.extend(next.map(|row| Action::Claim { client, rows: EACH[row] }));
                }
                self.update_either(state, client, actions);
            }
            Use::Guard | Use::GuardWithoutLife => {
                actions.push(Action::Claim { client, rows: EACH[0] });
                if one.read[0].is_some() {
                    actions.push(Action::Update { client, row: 0 });
                }
            }
        }
        if *one != Client::default() {
            actions.push(Action::GiveUp(client));
        }
    }

    /// What depends on both rows is written when both are read.
    fn update_either(&self, state: &State, client: usize, actions: &mut Vec<Action>) {
        if state.clients[client].read.iter().all(Option::is_some) {
            actions.extend((0..ROWS).map(|row| Action::Update { client, row }));
        }
    }

    fn is_guarded(&self) -> bool {
        matches!(self.of, Use::Guard | Use::GuardWithoutLife)
    }

    fn claim(&self, state: &mut State, client: usize, rows: &[usize]) {
        let fence = fence_of(client);
        let is_stale = |row: &usize| Step::Claim.judge(state.database.rows[*row].fence, fence) != Verdict::Accepted;
        if rows.iter().any(is_stale) {
            state.clients[client] = Client::default();
            return;
        }
        for &row in rows {
            state.stamp(row, fence);
            let one = &mut state.clients[client];
            one.read[row] = Some(state.database.rows[row].value);
            one.claimed_in[row] = Some(state.database.life);
        }
        if self.is_guarded() {
            state.clients[client].life = Some(state.database.life);
        }
        state.commit();
        // After the last claim the life is compared with that before the first.
        let one = &mut state.clients[client];
        let is_done = one.read.iter().all(Option::is_some);
        if self.of == Use::RowsOneByOneInOneLife && is_done && one.life != Some(state.database.life) {
            *one = Client { was_outlived: true, ..Client::default() };
        }
    }

    fn update(&self, state: &mut State, client: usize, row: usize) {
        let (fence, stored) = (fence_of(client), state.database.rows[row]);
        if self.is_guarded() {
            match GuardVerdict::of(stored.fence, fence, self.read_in(state, client)) {
                GuardVerdict::Shared | GuardVerdict::Alone => state.write(client, row, fence),
                GuardVerdict::Stale(_) | GuardVerdict::Duplicate => state.clients[client] = Client::default(),
                GuardVerdict::Outlived => state.refuse_as_outlived(client, row),
            }
            return;
        }
        match Step::Update.judge(stored.fence, fence) {
            Verdict::Accepted if self.is_outlived(state, row) => state.refuse_as_outlived(client, row),
            Verdict::Accepted => state.write(client, row, fence),
            Verdict::Stale | Verdict::Unclaimed => state.clients[client] = Client::default(),
        }
    }

    fn heartbeat(&self, state: &mut State, client: usize) {
        let step = if self.of == Use::RowWithStampingHeartbeat { Step::Write } else { Step::Update };
        if self.admits(state, client, step) {
            state.clients[client].claimed_in[0] = Some(state.database.life);
            state.stamp(0, fence_of(client));
            state.commit();
        }
    }

    fn write_blind(&self, state: &mut State, client: usize) {
        if self.admits(state, client, Step::Write) {
            state.write(client, 0, fence_of(client));
            state.clients[client].claimed_in[0] = Some(state.database.life);
        }
    }

    /// Whether the row admits a write that depends on nothing read.
    fn admits(&self, state: &mut State, client: usize, step: Step) -> bool {
        let (fence, stored) = (fence_of(client), state.database.rows[0].fence);
        if step.judge(stored, fence) != Verdict::Accepted {
            state.clients[client] = Client::default();
            return false;
        }
        let asks = step.relies_on_claim(stored, fence) && self.rule != Rule::HeartbeatRevives;
        if asks && self.is_outlived(state, 0) {
            state.refuse_as_outlived(client, 0);
            return false;
        }
        true
    }

    fn is_outlived(&self, state: &State, row: usize) -> bool {
        let Database { rows, first, next, .. } = state.database;
        self.rule != Rule::NoLife && !is_of_this_life(rows[row].written_by, first, next)
    }

    fn read_in(&self, state: &State, client: usize) -> ReadIn {
        let token = |life| Token::new(life).unwrap();
        match state.clients[client].life {
            Some(life) if self.of == Use::Guard => {
                ReadIn::of(token(life).to_string().as_bytes(), token(state.database.life)).unwrap()
            }
            _ => ReadIn::Unsaid,
        }
    }
}

impl State {
    fn stamp(&mut self, row: usize, fence: Fence) {
        let fence = fence.get() as i64;
        self.broken.fence_fell |= self.database.rows[row].fence > Some(fence);
        let Row { value, .. } = self.database.rows[row];
        self.database.rows[row] = Row { fence: Some(fence), written_by: self.database.next as u32, value };
    }

    /// An accepted write: all that it depends on must still be as it was read.
    fn write(&mut self, client: usize, row: usize, fence: Fence) {
        let one = self.clients[client];
        let is_there =
            |(row, read): (usize, &Option<u8>)| read.is_none_or(|read| read == self.database.rows[row].value);
        self.broken.built_on_lost |= !one.read.iter().enumerate().all(is_there);
        self.seen.cured |= one.was_outlived;
        self.stamp(row, fence);
        self.writes += 1;
        self.database.rows[row].value = self.writes;
        self.clients[client].read[row] = Some(self.writes);
        self.commit();
    }

    /// The number of a transaction is used up.
    fn commit(&mut self) {
        self.database.next += 1;
        self.transactions += 1;
    }

    /// It claims and reads all of its rows again.
    fn refuse_as_outlived(&mut self, client: usize, row: usize) {
        let claimed_in = self.clients[client].claimed_in[row];
        self.broken.refused_without_cause |= claimed_in == Some(self.database.life);
        self.seen.outlived = true;
        self.clients[client] = Client { was_outlived: true, ..Client::default() };
    }

    /// What the replica lacks is gone, and its numbers are given out again.
    fn promote(&mut self) {
        self.seen.commit_lost |= self.replica.rows != self.database.rows;
        self.promotions += 1;
        self.database = Database { first: self.replica.next, life: self.database.life + 1, ..self.replica };
        self.replica = self.database;
    }
}

fn fence_of(client: usize) -> Fence {
    Fence::new(client as u64 + 1).unwrap()
}

const BUILT_ON_LOST: &str = "no accepted write is based on a value that is not there";
const FENCE_FELL: &str = "no accepted write lowers a fence";
const WITHOUT_CAUSE: &str = "who has claimed in this life is not refused";
const OUTLIVED: &str = "a claim is refused that has outlived its server";

fn check(rule: Rule, of: Use) -> impl Checker<System> {
    System { rule, of }.checker().threads(2).spawn_bfs().join()
}

/// Every property holds, in so many states: another number means that the model explores something else than it did.
fn assert_sound(of: Use, states: usize) {
    let checker = check(Rule::Lives, of);
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), states);
}

fn assert_caught(rule: Rule, of: Use) {
    let found = check(rule, of);
    let discoveries = found.discoveries();
    assert!(discoveries.contains_key(BUILT_ON_LOST), "it was not caught; found {:?}", discoveries.keys());
    assert!(!discoveries.contains_key(FENCE_FELL));
}

#[test]
fn a_row_holds_over_promotions_that_lose_commits() {
    assert_sound(Use::Row, 80_260);
}

#[test]
fn rows_that_are_claimed_at_once_hold_over_promotions_that_lose_commits() {
    assert_sound(Use::RowsAtOnce, 131_151);
}

#[test]
fn rows_that_are_claimed_one_by_one_in_one_life_hold_over_promotions_that_lose_commits() {
    assert_sound(Use::RowsOneByOneInOneLife, 262_642);
}

#[test]
fn a_guard_that_is_told_the_life_holds_over_promotions_that_lose_commits() {
    assert_sound(Use::Guard, 46_103);
}

#[test]
fn without_the_life_a_write_builds_on_a_value_that_was_lost() {
    for of in [Use::Row, Use::RowsAtOnce] {
        assert_caught(Rule::NoLife, of);
    }
    assert_caught(Rule::Lives, Use::GuardWithoutLife);
}

#[test]
fn a_heartbeat_that_revives_a_claim_lets_a_write_build_on_a_lost_value() {
    assert_caught(Rule::HeartbeatRevives, Use::Row);
}

#[test]
fn a_heartbeat_that_stamps_where_the_claim_is_lost_is_where_the_guarantee_ends() {
    assert_caught(Rule::Lives, Use::RowWithStampingHeartbeat);
}

#[test]
fn a_claim_between_whose_rows_a_promotion_lies_is_where_the_guarantee_ends() {
    assert_caught(Rule::Lives, Use::RowsOneByOne);
}
