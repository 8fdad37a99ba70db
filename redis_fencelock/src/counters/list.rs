//! What is counted: the counters of the server, and which of them a name has.
//!
//! Names and positions alone. Invariant: the order of the counters is that of STATS.

/// How a counter or a gauge is called.
pub(crate) struct Counter {
    pub(crate) in_stats: &'static str,
    pub(crate) in_info: &'static std::ffi::CStr,
    /// Each name has one of its own.
    pub(crate) by_name: bool,
}

macro_rules! counts {
    ($($(#[$meta:meta])* $name:ident => $text:literal, $field:literal, $by_name:expr;)*) => {
        /// What is counted.
        #[derive(Clone, Copy)]
        pub(crate) enum Count { $($(#[$meta])* $name),* }

        /// The counters in the order of `Count`.
        pub(crate) const COUNTS: &[Counter] = &[$(Counter { in_stats: $text, in_info: $field, by_name: $by_name }),*];
    };
}

counts! {
    /// Leases granted, by a call or by a handover.
    Grants => "grants", c"grants", true;
    /// Calls that got nothing at once.
    Busy => "busy", c"busy", true;
    /// Calls that began to wait.
    Waits => "waits", c"waits", true;
    /// Waits that expired.
    WaitTimeouts => "wait-timeouts", c"wait_timeouts", true;
    /// Leases granted to a client that waited.
    HandOvers => "hand-overs", c"hand_overs", false;
    /// Grants undone because the client was gone.
    Undone => "undone-grants", c"undone_grants", false;
    /// Leases released by their holder.
    Releases => "releases", c"releases", false;
    /// Leases extended.
    Extensions => "extensions", c"extensions", false;
    /// Releases of a hold that was lost: a stale holder woke up.
    LateReleases => "late-releases", c"late_releases", true;
    /// Extensions of a hold that was lost: a stale holder woke up.
    LateExtensions => "late-extensions", c"late_extensions", true;
    /// Releases by somebody who does not hold the lock, for another reason or for none that is known any more.
    UnknownReleases => "unknown-releases", c"unknown_releases", false;
    /// Extensions by such a one.
    UnknownExtensions => "unknown-extensions", c"unknown_extensions", false;
    /// Leases that expired.
    RanOut => "ran-out", c"ran_out", true;
    /// Leases that expired at their longest hold.
    MaxholdEnds => "maxhold-ends", c"maxhold_ends", false;
    /// Live leases that somebody else took over.
    Steals => "steals", c"steals", false;
    /// Calls that began to await the end of a hold.
    Awaits => "awaits", c"awaits", false;
    /// Leases that the server evicted.
    Evicted => "evicted-leases", c"evicted_leases", false;
    /// Times that the server was asked whether it serves the slot of a key.
    SlotProbes => "slot-probes", c"slot_probes", false;
    /// Claims of a hash accepted.
    Claims => "claims", c"claims", false;
    /// Claims of a hash refused: the caller was stale.
    ClaimsStale => "claims-stale", c"claims_stale", true;
    /// Writes to a hash accepted.
    Writes => "writes", c"writes", false;
    /// Writes to a hash refused: the caller was stale.
    WritesStale => "writes-stale", c"writes_stale", true;
    /// Writes to a hash refused: the caller had not claimed it.
    Unclaimed => "unclaimed", c"unclaimed", false;
}

pub(super) const COUNT: usize = COUNTS.len();

/// The position of each counter among those that a name has.
pub(super) const POSITION_OF: [Option<usize>; COUNT] = {
    let (mut places, mut at, mut used) = ([None; COUNT], 0, 0);
    while at < COUNT {
        if COUNTS[at].by_name {
            places[at] = Some(used);
            used += 1;
        }
        at += 1;
    }
    places
};

/// How many counters a name has.
pub(super) const PER_NAME: usize = {
    let (mut at, mut used) = (0, 0);
    while at < COUNT {
        used += POSITION_OF[at].is_some() as usize;
        at += 1;
    }
    used
};

/// The fields of a name beside its counters. `contended`: calls that did not get the lock at once.
const BESIDE: [&str; 4] = ["contended", "longest-hold-ms", "longest-wait-ms", "waiters"];
const CONTENDED: usize = PER_NAME;
pub(super) const WAITERS: usize = PER_NAME + 3;

/// The fields of a name.
pub(crate) const NAME_FIELDS: [&str; PER_NAME + BESIDE.len()] = {
    let (mut fields, mut at) = ([""; PER_NAME + BESIDE.len()], 0);
    while at < COUNT {
        if let Some(place) = POSITION_OF[at] {
            fields[place] = COUNTS[at].in_stats;
        }
        at += 1;
    }
    at = 0;
    while at < BESIDE.len() {
        fields[PER_NAME + at] = BESIDE[at];
        at += 1;
    }
    fields
};

/// How busy a lock is, unless another field is asked for: a position in `NAME_FIELDS`.
pub(crate) const HOW_BUSY: usize = CONTENDED;
