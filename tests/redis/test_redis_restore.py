"""RESTORE with payloads that no server made: the module takes or refuses each, the server lives, fences stay near the clock.

Every payload has a right checksum, so that it is the module that has to judge what is inside.
"""

import random
import time

import pytest
import redis

from harness.locks import FENCE_MAX, acquire, extend, inspect, release
from harness.payloads import MODULE_EOF, crc64, lock_payload, module_id, prefix, record, seal, string

DAY_US = 86_400_000_000
TEN_YEARS_US = 10 * 366 * 86_400_000_000
SEED = 20_240_229


@pytest.fixture
def target(make_redis):
    """A client of a server of its own, which these payloads might end."""
    server = make_redis()
    with redis.Redis(port=server.port, protocol=2, socket_timeout=30) as client:
        pid = server.pid
        yield client
        assert server.pid == pid, server.log()[-2_000:]
        assert client.ping()


def now_us():
    return time.time_ns() // 1_000


def shown(fields):
    """A name for a parametrized test: long values by their length."""
    return ", ".join(f"{name} {value if isinstance(value, int) else len(value)}" for name, value in fields.items())


def restore_all(client, payloads):
    """Restore each payload under a key of its own; how many were taken, and the errors of the rest."""
    with client.pipeline(transaction=False) as pipe:
        for number, payload in enumerate(payloads):
            pipe.restore(f"k{number}", 0, payload)
        replies = pipe.execute(raise_on_error=False)
    refused = [reply for reply in replies if isinstance(reply, Exception)]
    return len(replies) - len(refused), refused


def assert_fences_are_near_the_clock(client):
    fence = acquire(client, "next", "A", 60_000)
    assert fence <= now_us() + DAY_US + 1_000
    assert release(client, "next", "A", fence) == 1


def assert_every_lock_is_sound(client):
    """Each lock that was taken can be read, ends within ten years, and can be deleted."""
    for key in client.scan_iter(count=1_000):
        lock = inspect(client, key)
        if lock is not None:
            assert 1 <= len(lock.owner) <= 512
            assert 0 < lock.fence <= FENCE_MAX
            assert 0 <= lock.ttl_ms <= TEN_YEARS_US // 1_000
            assert (lock.state == b"held") == (lock.ttl_ms > 0)
            assert client.memory_usage(key) < 10_000
            assert client.dump(key)
    client.flushall()


# --- the tools of this file


def test_our_checksum_and_our_payload_are_those_of_the_server(r):
    acquire(r, "k", "A", 60_000)
    dump = r.dump("k")
    assert seal(dump[:-10], int.from_bytes(dump[-10:-8], "little")) == dump
    assert dump.startswith(prefix())
    assert crc64(b"123456789") == 0xE9C6D914C4B8D9CA
    assert module_id() & 1023 == 2


def test_a_payload_that_is_right_is_taken(target):
    began = time.monotonic()
    fence = now_us()
    target.restore("k", 0, lock_payload(fence=fence, left_us=60_000_000, owner=b"restored"))
    lock = inspect(target, "k")
    assert lock.hold == (b"restored", fence)
    assert 60_000 - (time.monotonic() - began) * 1000 - 1 <= lock.ttl_ms <= 60_000
    assert extend(target, "k", "restored", 90_000, fence) > 60_000
    assert release(target, "k", "restored", fence) == 1


# --- what is refused


@pytest.mark.parametrize(
    "fields",
    [
        {"fence": 0},
        {"fence": FENCE_MAX + 1},
        {"fence": 2**63},
        {"fence": 2**64 - 1},
        {"version": 0},
        {"version": 3},
        {"version": 255},
        {"version": 1, "flags": 8},
        {"version": 1, "flags": 64},
        {"flags": 8},
        {"flags": 32},
        {"flags": 255},
        {"fields": bytes([0x80, 0])},
        {"fields": bytes([1, 9, 1])},
        {"owner": b""},
        {"owner": b"x" * 513},
        {"owner": b"x" * 2**20},
        {"left_us": TEN_YEARS_US + 1},
        {"left_us": 2**63 - 1},
        {"flags": 2, "extra": (TEN_YEARS_US + 1).to_bytes(8, "little")},
        {"flags": 2, "extra": b"\xff" * 8},
        {"flags": 4, "extra": b"\xff" * 8},
    ],
    ids=shown,
)
def test_a_field_out_of_range_is_refused_and_nothing_is_stored(target, fields):
    with pytest.raises(redis.ResponseError, match="Bad data format"):
        target.restore("k", 0, lock_payload(**{"fence": 1, **fields}))
    assert target.dbsize() == 0
    assert_fences_are_near_the_clock(target)


@pytest.mark.parametrize(
    "fields",
    [
        {"written_us": 0},
        {"written_us": 2**64 - 1},
        {"written_us": 2**63},
        {"held_us": 2**64 - 1},
        {"left_us": -1},
        {"left_us": -(2**63)},
        {"left_us": TEN_YEARS_US},
        {"left_us": TEN_YEARS_US, "written_us": 2**64 - 1, "held_us": 2**64 - 1},
        {"flags": 2, "extra": bytes(8)},
        {"flags": 4, "extra": bytes(8)},
        {"flags": 7, "extra": TEN_YEARS_US.to_bytes(8, "little") * 2, "held_us": 2**64 - 1},
        {"left_us": -(2**63), "flags": 7, "extra": TEN_YEARS_US.to_bytes(8, "little") * 2},
        {"issued": (0, 0)},
        {"issued": (2**64 - 1, 2**64 - 1)},
        {"flags": 16 | 64 | 128},
        {"fields": b""},
        {"fields": bytes([1, 1, 4, 0x7F, 3, 0, 0, 0])},
        {"fields": bytes([9, 255, *range(255)]) * 8},
        {"version": 1},
        {"version": 1, "flags": 7, "extra": bytes(16)},
    ],
    ids=shown,
)
def test_a_field_at_its_edge_is_taken_and_harms_nothing(target, fields):
    taken, refused = restore_all(target, [lock_payload(**{"fence": 1, **fields})])
    assert (taken, refused) == (1, [])
    lock = inspect(target, "k0")
    assert lock is None or lock.ttl_ms <= TEN_YEARS_US // 1_000
    extend(target, "k0", "restored", 1_000)
    target.dump("k0")
    assert_every_lock_is_sound(target)
    assert_fences_are_near_the_clock(target)


def test_a_module_encoding_of_the_future_is_refused(target):
    for encoding in (0, 3, 1_023):
        payload = seal(prefix(encoding=encoding) + string(record(fence=1)) + bytes([MODULE_EOF]))
        with pytest.raises(redis.ResponseError):
            target.restore("k", 0, payload)
    assert target.dbsize() == 0


def test_a_fence_up_to_a_day_ahead_of_the_clock_is_taken_and_one_beyond_is_refused(target):
    minute_us = 60_000_000
    near = now_us() + DAY_US - minute_us
    with pytest.raises(redis.ResponseError, match="Bad data format"):
        target.restore("far", 0, lock_payload(fence=now_us() + DAY_US + minute_us))
    assert acquire(target, "k", "A", 60_000) <= now_us()
    target.restore("near", 0, lock_payload(fence=near))
    assert acquire(target, "next", "A", 60_000) == near + 1


def test_restores_in_a_row_push_no_fence_more_than_a_day_past_the_clock(target):
    """Each step is within a day of the last fence; the bound is the clock."""
    for step in range(1, 11):
        restore_all(target, [lock_payload(fence=now_us() + step * (DAY_US - 60_000_000))])
        target.flushall()
    assert_fences_are_near_the_clock(target)


# --- thousands of them


def test_every_byte_of_a_payload_may_be_anything(target):
    body = prefix() + string(record(fence=now_us())) + bytes([MODULE_EOF])
    own = len(prefix())  # the bytes before name the type; another type is the server's to read
    payloads = [
        seal(body[:at] + bytes([value]) + body[at + 1 :])
        for at in range(own, len(body))
        for value in {0, 1, 2, 5, 0x40, 0x7F, 0x80, 0x81, 0xC0, 0xC3, 0xFE, 0xFF, body[at] ^ 1, body[at] ^ 0x80}
    ]
    assert len(payloads) > 600
    taken, refused = restore_all(target, payloads)
    assert taken > 100
    assert len(refused) > 100
    assert_every_lock_is_sound(target)
    assert_fences_are_near_the_clock(target)


def test_a_payload_may_be_cut_or_continued_anywhere(target):
    body = prefix() + string(record(fence=now_us())) + bytes([MODULE_EOF])
    own = len(prefix())
    more = [b"\0", b"\xff" * 9, string(b"more"), string(record(fence=1)) + bytes([MODULE_EOF]), bytes(600)]
    payloads = [seal(body[:at]) for at in range(own, len(body))]
    payloads += [seal(body[:at] + extra) for at in range(own, len(body)) for extra in more]
    payloads += [seal(body + extra) for extra in more]
    restore_all(target, payloads)
    assert_every_lock_is_sound(target)
    assert_fences_are_near_the_clock(target)


def test_records_of_random_fields_harm_nothing(target):
    chance = random.Random(SEED)
    edges = [0, 1, 2**31, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1, TEN_YEARS_US, TEN_YEARS_US + 1]

    def number():
        match chance.randrange(4):
            case 0:
                return chance.choice(edges)
            case 1:
                return now_us() + chance.randrange(-2 * DAY_US, 2 * DAY_US)
            case 2:
                return chance.getrandbits(chance.randrange(1, 65))
            case _:
                return chance.randrange(0, 600_000_000)

    payloads = [
        lock_payload(
            fence=number(),
            written_us=number(),
            held_us=number(),
            left_us=number(),
            issued=(number(), number()),
            flags=chance.choice([0, 0, 1, 2, 3, 4, 6, 7, 8, 16, 64, 255]),
            version=chance.choice([1, 1, 2, 2, 0, 3]),
            extra=b"".join(number().to_bytes(8, "little") for _ in range(chance.randrange(3))),
            owner=chance.randbytes(chance.choice([0, 1, 8, 36, 512, 513])),
        )
        for _ in range(3_000)
    ]
    taken, refused = restore_all(target, payloads)
    assert taken > 100
    assert len(refused) > 1_000
    assert_every_lock_is_sound(target)
    assert_fences_are_near_the_clock(target)


def test_random_bytes_harm_nothing(target):
    chance = random.Random(SEED)
    payloads = [seal(prefix() + string(chance.randbytes(chance.randrange(0, 120))) + bytes([MODULE_EOF])) for _ in range(1_000)]
    payloads += [seal(prefix() + chance.randbytes(chance.randrange(0, 120))) for _ in range(1_000)]
    restore_all(target, payloads)
    assert_every_lock_is_sound(target)
    assert_fences_are_near_the_clock(target)
