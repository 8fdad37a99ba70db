//! Model check: somebody awaits the end of a hold, at the primary or at a replica whose stream is late, and the replica may
//! be promoted. The primary grants, extends, releases and ends leases; a thief may take the lock over.
//!
//! The rules that run are the production functions of this crate, and what is propagated goes through the codec. `Rule`
//! holds what others do instead: each broken rule must be caught.

use fence::lock::awaits::{self, Found, Judge, Stored};
use fence::lock::codec::{Clocks, ENCODED_MAX, Notes, Route, Stamp, decode, encode};
use fence::lock::ending::Ending;
use fence::lock::lease::{self, Caller, Extended, Extension, Hold, Lease, Millis, Now, Stolen, Takeover, Terms};
use fence::{Fence, Issuer};
use stateright::{Checker, Model, Property};

/// One step of the clock is a millisecond, and a lease lasts two.
const STEP_US: u64 = 1_000;
const START_US: u64 = 10_000;
const TTL: Millis = Millis(2);
const STEPS: u64 = 4;
const GRANTS: u64 = 2;
/// The clock of the replica is ahead: it takes leases for ended that live.
const AHEAD_US: u64 = STEP_US;
const OWNER: &[u8] = b"a";

#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// As this crate has it.
    Sound,
    /// A replica takes a lease for ended when its own clock says so.
    ReplicaByClock,
    /// A replica takes a hold that it does not know for ended, though it may be on its way.
    AbsentHasEnded,
    /// The end of any hold of the lock is reported to all who await one of it.
    AnyHold,
}

struct System {
    rule: Rule,
    /// The primary may extend, and be robbed.
    changes: bool,
}

/// What the primary propagates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Sent {
    Apply(Vec<u8>),
    End(Fence, Ending),
}

/// A server: its lock, and the last fence that it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    lock: Option<(Lease, bool)>,
    last: u64,
}

/// Who awaits the hold of a fence, where, and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Awaiter {
    fence: Fence,
    at_replica: bool,
    told: Option<Ending>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    issuer: Issuer,
    primary: Server,
    replica: Server,
    stream: Vec<Sent>,
    /// The holds that have ended, and why.
    ended: Vec<(Fence, Ending)>,
    extended: bool,
    promoted: bool,
    awaiter: Option<Awaiter>,
    told_too_early: bool,
    told_wrongly: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Tick,
    Grant,
    Extend,
    Release,
    Steal,
    /// The timer of the primary removes a lease that is over.
    Expire,
    /// The replica reads what was sent next.
    Deliver,
    /// The replica becomes the primary, and what was on its way is lost.
    Promote,
    Await {
        fence: Fence,
        at_replica: bool,
    },
}

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            issuer: Issuer::default(),
            primary: Server::default(),
            replica: Server::default(),
            stream: Vec::new(),
            ended: Vec::new(),
            extended: false,
            promoted: false,
            awaiter: None,
            told_too_early: false,
            told_wrongly: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.told_too_early || state.told_wrongly {
            return;
        }
        if state.now < STEPS {
            actions.push(Action::Tick);
        }
        if !state.promoted {
            let more = state.issuer.last() < GRANTS;
            let is_live = state.primary.live(state.now_us()).is_some();
            match is_live {
                true => actions.push(Action::Release),
                false if more => actions.push(Action::Grant),
                false => {}
            }
            if self.changes && is_live {
                actions.extend((!state.extended).then_some(Action::Extend));
                actions.extend(more.then_some(Action::Steal));
            }
            if !is_live && state.primary.lock.is_some() {
                actions.push(Action::Expire);
            }
            if !state.stream.is_empty() {
                actions.push(Action::Deliver);
            }
            actions.push(Action::Promote);
        }
        if state.awaiter.is_none() {
            for fence in (1..=GRANTS).filter_map(Fence::new) {
                let places = if state.promoted { &[true][..] } else { &[false, true] };
                actions.extend(places.iter().map(|&at_replica| Action::Await { fence, at_replica }));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::Grant => {
                let moment = state.moment();
                let lease = lease::grant(terms(), &mut state.issuer, moment).ok()?;
                let ended = state.primary.lock.map(|(lease, _)| lease.ending(state.now_us()));
                self.grant(&mut state, lease, ended);
            }
            Action::Steal => {
                let takeover = Takeover { owner: OWNER, terms: terms(), from: None };
                let (hold, moment) = (state.primary.hold(), state.moment());
                let Ok(Stolen::Granted(lease)) = lease::steal(hold, takeover, &mut state.issuer, moment) else {
                    return None;
                };
                let ended = state.primary.lock.map(|(lease, _)| lease.ending_by_steal(state.now_us()));
                self.grant(&mut state, lease, ended);
            }
            Action::Extend => {
                let caller = Caller { owner: OWNER, fence: None };
                let extension = Extension { ttl: TTL, only_longer: true };
                let extended = lease::extend(state.primary.hold(), caller, extension, state.now_us());
                let Ok(Extended::Moved(lease)) = extended else { return None };
                state.extended = true;
                state.primary.lock = Some((lease, false));
                state.send(lease, None);
            }
            Action::Release | Action::Expire => {
                let (lease, _) = state.primary.lock.take()?;
                let ending = lease.ending(state.now_us());
                state.stream.push(Sent::End(lease.fence, ending));
                state.ended.push((lease.fence, ending));
                self.report(&mut state, false, lease.fence, ending);
            }
            Action::Deliver => {
                let sent = state.stream.remove(0);
                self.deliver(&mut state, sent);
            }
            Action::Promote => {
                (state.promoted, state.stream) = (true, Vec::new());
                state.primary = state.replica;
            }
            Action::Await { fence, at_replica } => {
                state.awaiter = Some(Awaiter { fence, at_replica, told: None });
                match self.find(&state, fence, at_replica) {
                    Found::Over => self.answer(&mut state, Ending::Unknown),
                    // An error, which says nothing of a hold.
                    Found::Ahead if !at_replica || state.promoted => state.awaiter = before.awaiter,
                    Found::Live | Found::Ahead => {}
                }
            }
        }
        self.look(&mut state);
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EARLY, |_, s: &State| !s.told_too_early),
            Property::always(WRONG, |_, s: &State| !s.told_wrongly),
            Property::always(TOLD, |_, s: &State| {
                let Some(Awaiter { fence, at_replica, told: None }) = s.awaiter else { return true };
                let is_known = !at_replica || (!s.promoted && s.stream.is_empty());
                !(is_known && s.ended.iter().any(|&(ended, _)| ended == fence))
            }),
            Property::sometimes("a replica says why", |_, s: &State| {
                s.awaiter.is_some_and(|awaiter| awaiter.at_replica && awaiter.told == Some(Ending::Released))
            }),
            Property::sometimes("somebody waits at a replica for what it does not know", |_, s: &State| {
                s.awaiter.is_some_and(|awaiter| awaiter.at_replica && awaiter.fence.get() > s.replica.last)
            }),
            Property::sometimes("a promoted replica ends a wait by its clock", |_, s: &State| {
                s.promoted && s.awaiter.is_some_and(|awaiter| awaiter.told == Some(Ending::Expired))
            }),
        ]
    }
}

const EARLY: &str = "no end is reported while the hold lives";
const WRONG: &str = "the reason is the true one, or none";
const TOLD: &str = "an end that is known where somebody awaits it is reported";

impl System {
    fn grant(&self, state: &mut State, lease: Lease, ended: Option<Ending>) {
        let before = state.primary.lock.replace((lease, false));
        state.primary.last = lease.fence.get();
        state.send(lease, ended);
        if let (Some((before, _)), Some(ending)) = (before, ended) {
            state.ended.push((before.fence, ending));
            self.report(state, false, before.fence, ending);
        }
    }

    fn deliver(&self, state: &mut State, sent: Sent) {
        match sent {
            Sent::Apply(bytes) => {
                let record = decode(&bytes).unwrap();
                let before = state.replica.lock.map(|(lease, _)| lease.fence);
                let clocks = Clocks { steady_us: state.now_us(), wall_us: 0 };
                state.replica.last = state.replica.last.max(record.fence().get());
                state.replica.lock = Some((record.lease(clocks, Route::Stream), record.has_ended()));
                if let Some(fence) = before.filter(|&fence| fence != record.fence()) {
                    self.report(state, true, fence, record.notes.ended.unwrap_or(Ending::Unknown));
                }
                // What was ahead and is passed by another hold will not come.
                self.pass(state);
            }
            Sent::End(fence, ending) => {
                state.replica.lock = state.replica.lock.filter(|(lease, _)| lease.fence != fence);
                self.report(state, true, fence, ending);
            }
        }
    }

    fn pass(&self, state: &mut State) {
        if let Some(Awaiter { fence, at_replica: true, told: None }) = state.awaiter
            && self.find(state, fence, true) == Found::Over
        {
            self.answer(state, Ending::Unknown);
        }
    }

    /// A server reports that a hold has ended.
    fn report(&self, state: &mut State, by_replica: bool, fence: Fence, ending: Ending) {
        let concerned = |awaiter: &Awaiter| {
            let is_of_it = awaiter.fence == fence || self.rule == Rule::AnyHold;
            is_of_it && (awaiter.at_replica, awaiter.told) == (by_replica, None)
        };
        if state.awaiter.as_ref().is_some_and(concerned) {
            self.answer(state, ending);
        }
    }

    /// What a server does by itself: a primary ends a wait by its clock.
    fn look(&self, state: &mut State) {
        let Some(Awaiter { fence, at_replica, told: None }) = state.awaiter else { return };
        let server = if at_replica { state.replica } else { state.primary };
        let stored = server.lock.filter(|(lease, _)| lease.fence == fence);
        if let Some((lease, is_over)) = stored {
            let (stored, judge) = (Stored { lease, is_over }, self.judge(state, at_replica));
            if !stored.is_live(judge) {
                self.answer(state, stored.ending(judge));
            }
        }
    }

    fn judge(&self, state: &State, at_replica: bool) -> Judge {
        if at_replica && !state.promoted && self.rule != Rule::ReplicaByClock {
            return Judge::Stream;
        }
        Judge::Clock(state.clock_us(at_replica))
    }

    fn find(&self, state: &State, fence: Fence, at_replica: bool) -> Found {
        let server = if at_replica { state.replica } else { state.primary };
        let last = if self.rule == Rule::AbsentHasEnded { Fence::MAX } else { server.last };
        let stored = server.lock.map(|(lease, is_over)| Stored { lease, is_over });
        awaits::find(stored, fence, last, self.judge(state, at_replica))
    }

    fn answer(&self, state: &mut State, ending: Ending) {
        let now_us = state.now_us();
        let awaiter = state.awaiter.as_mut().unwrap();
        awaiter.told = Some(ending);
        let fence = awaiter.fence;
        // A promoted replica lost what was on its way: then its own word counts.
        if !state.promoted {
            state.told_too_early = state.primary.live(now_us).is_some_and(|lease| lease.fence == fence)
                || fence.get() > state.issuer.last();
            let truly = state.ended.iter().find(|&&(ended, _)| ended == fence).map(|&(_, ending)| ending);
            let by_time = state.primary.lock.map(|(lease, _)| lease.ending(now_us));
            state.told_wrongly = ending != Ending::Unknown && truly.or(by_time) != Some(ending);
        }
    }
}

impl State {
    fn now_us(&self) -> u64 {
        START_US + self.now * STEP_US
    }

    fn moment(&self) -> Now {
        Now { steady_us: self.now_us(), wall_us: 0 }
    }

    fn clock_us(&self, at_replica: bool) -> u64 {
        self.now_us() + if at_replica { AHEAD_US } else { 0 }
    }

    fn send(&mut self, lease: Lease, ended: Option<Ending>) {
        let clocks = Clocks { steady_us: self.now_us(), wall_us: 0 };
        let notes = Notes { ended, ..Notes::default() };
        let mut buffer = [0; ENCODED_MAX];
        let record = encode(&Hold { lease, owner: OWNER }, Stamp::of_issuer(1, clocks), notes, &mut buffer);
        self.stream.push(Sent::Apply(record.to_vec()));
    }
}

impl Server {
    fn hold(&self) -> Option<Hold<'static>> {
        self.lock.map(|(lease, _)| Hold { lease, owner: OWNER })
    }

    fn live(&self, now_us: u64) -> Option<Lease> {
        self.lock.map(|(lease, _)| lease).filter(|lease| lease.is_live(now_us))
    }
}

fn terms() -> Terms {
    Terms { ttl: TTL, max_hold: None, delay: None, ephemeral: false }
}

fn check(system: System) -> impl Checker<System> {
    system.checker().threads(2).spawn_bfs().join()
}

#[test]
fn no_end_is_reported_too_early_wrongly_or_never() {
    let checker = check(System { rule: Rule::Sound, changes: true });
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), 21_993);
}

#[test]
fn a_replica_that_judges_by_its_clock_reports_an_end_of_what_lives() {
    check(System { rule: Rule::ReplicaByClock, changes: true }).assert_any_discovery(EARLY);
}

#[test]
fn a_replica_that_takes_what_it_does_not_know_for_ended_reports_an_end_of_what_lives() {
    check(System { rule: Rule::AbsentHasEnded, changes: false }).assert_any_discovery(EARLY);
}

#[test]
fn an_end_of_an_earlier_hold_is_none_of_a_later_one() {
    check(System { rule: Rule::AnyHold, changes: false }).assert_any_discovery(EARLY);
}
