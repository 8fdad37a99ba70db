//! Keys of a cluster that a server does not serve: when to try again.
//!
//! Not a connection to the cluster: what the server answered is an argument. A lease ends by itself; only its removal
//! needs a server that serves the key, so trying again may wait.
//! Invariant: after a refusal at most one try a second for the whole server while the cluster is down, and at most one a
//! second for each slot.

use std::collections::BTreeMap;

/// The wait before the second try, in microseconds. It doubles with each try.
pub const ASK_AGAIN_US: u64 = 1_000_000;
/// The longest wait: the slot may come back to this server.
pub const ASK_AGAIN_MAX_US: u64 = 64 * ASK_AGAIN_US;

/// Whether a server serves a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// It serves the key.
    Here,
    /// It does not serve the slot of the key, or the key has moved.
    Elsewhere,
    /// Unknown: the cluster is down, or refuses writes.
    Down,
}

/// What was refused, and when to try again.
#[derive(Default)]
pub struct Refusals {
    down_until_us: u64,
    slots: BTreeMap<u16, Refusal>,
}

#[derive(Clone, Copy, Default)]
struct Refusal {
    asked_us: u64,
    until_us: u64,
    wait_us: u64,
}

impl Refusals {
    /// When to try any key again, if not yet at `now_us`.
    pub fn down_until(&self, now_us: u64) -> Option<u64> {
        (now_us < self.down_until_us).then_some(self.down_until_us)
    }

    /// When to try this key again, if not yet at `now_us`.
    pub fn until(&self, name: &[u8], now_us: u64) -> Option<u64> {
        self.until_by(name, now_us, |refusal| refusal.until_us)
    }

    /// The same for what somebody waits for: the slot may have come here meanwhile, so it is tried once a second.
    pub fn until_soon(&self, name: &[u8], now_us: u64) -> Option<u64> {
        self.until_by(name, now_us, |refusal| refusal.asked_us.saturating_add(ASK_AGAIN_US))
    }

    fn until_by(&self, name: &[u8], now_us: u64, until_us: impl Fn(&Refusal) -> u64) -> Option<u64> {
        if self.slots.is_empty() {
            return self.down_until(now_us);
        }
        let slot = self.slots.get(&slot_of(name)).map(until_us).filter(|&until_us| now_us < until_us);
        self.down_until(now_us).max(slot)
    }

    /// Notes an answer at `now_us`.
    pub fn note(&mut self, name: &[u8], served: Served, now_us: u64) {
        match served {
            Served::Down => self.down_until_us = now_us.saturating_add(ASK_AGAIN_US),
            Served::Elsewhere => {
                let refusal = self.slots.entry(slot_of(name)).or_default();
                refusal.asked_us = now_us;
                if now_us >= refusal.until_us {
                    refusal.wait_us = (refusal.wait_us * 2).clamp(ASK_AGAIN_US, ASK_AGAIN_MAX_US);
                    refusal.until_us = now_us.saturating_add(refusal.wait_us);
                }
            }
            Served::Here => {
                self.down_until_us = 0;
                if !self.slots.is_empty() {
                    self.slots.remove(&slot_of(name));
                }
            }
        }
    }
}

/// The slot of a key: the CRC-16 (XMODEM) of its hash tag or of its whole name, modulo 16,384.
///
/// Source: the Redis Cluster specification, "Key distribution model" and "Hash tags".
pub fn slot_of(name: &[u8]) -> u16 {
    let crc = hash_tag(name).iter().fold(0u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    });
    crc % 16_384
}

/// What is between the first brace and the next closing one, unless that is nothing.
fn hash_tag(name: &[u8]) -> &[u8] {
    let tag = name.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &name[open + 1..];
        rest.iter().position(|&byte| byte == b'}').map(|close| &rest[..close])
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn slots_are_those_of_the_specification() {
        let slots =
            [&b"123456789"[..], b"", b"{user1000}.following", b"user1000", b"foo{}{bar}", b"foo{{bar}}zap", b"{bar"];
        assert_eq!(slots.map(slot_of), [12_739, 0, 3_443, 3_443, 8_363, 4_015, 4_015]);
    }

    #[test]
    fn while_the_cluster_is_down_there_is_one_try_a_second_for_all_keys() {
        let mut refusals = Refusals::default();
        refusals.note(b"a", Served::Down, 0);
        assert_eq!((refusals.until(b"b", SECOND - 1), refusals.until(b"b", SECOND)), (Some(SECOND), None));
        refusals.note(b"b", Served::Down, SECOND);
        assert_eq!(refusals.down_until(SECOND), Some(2 * SECOND));
        refusals.note(b"a", Served::Here, 2 * SECOND);
        assert_eq!(refusals.until(b"b", 2 * SECOND), None);
    }

    #[test]
    fn a_slot_is_tried_at_growing_intervals_and_the_others_are_not_delayed() {
        let mut refusals = Refusals::default();
        let mut now_us = 0;
        for wait in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(refusals.until(b"{a}1", now_us), None);
            refusals.note(b"{a}1", Served::Elsewhere, now_us);
            assert_eq!(refusals.until(b"{a}2", now_us), Some(now_us + wait * SECOND));
            assert_eq!(refusals.until(b"b", now_us), None);
            now_us += wait * SECOND;
        }
        refusals.note(b"{a}1", Served::Here, now_us);
        refusals.note(b"{a}1", Served::Elsewhere, now_us);
        assert_eq!(refusals.until(b"{a}1", now_us), Some(now_us + SECOND));
    }

    #[test]
    fn what_somebody_waits_for_is_asked_for_once_a_second_and_makes_nobody_else_wait_longer() {
        let mut refusals = Refusals::default();
        for at in [0, 1, 3, 7] {
            refusals.note(b"a", Served::Elsewhere, at * SECOND);
        }
        assert_eq!(refusals.until(b"a", 9 * SECOND), Some(15 * SECOND));
        assert_eq!(
            (refusals.until_soon(b"a", 8 * SECOND - 1), refusals.until_soon(b"a", 8 * SECOND)),
            (Some(8 * SECOND), None)
        );
        refusals.note(b"a", Served::Elsewhere, 8 * SECOND);
        assert_eq!(refusals.until_soon(b"a", 8 * SECOND), Some(9 * SECOND));
        assert_eq!(refusals.until(b"a", 9 * SECOND), Some(15 * SECOND));
        refusals.note(b"b", Served::Down, 9 * SECOND);
        assert_eq!(refusals.until_soon(b"a", 9 * SECOND), Some(10 * SECOND));
    }
}
