"""Payloads of RESTORE for a lock, as DUMP makes them and as an attacker would.

Knows the format of a dump (type, module id, record, version, CRC64) and of versions 1 and 2 of the record. Invariant: what
`seal` returns has a right checksum, whatever is inside, so that the module is what has to refuse it.
"""

import struct
import time

RDB_TYPE_MODULE_2 = 7
MODULE_STRING = 5
MODULE_EOF = 0
FIELDS = 8
RDB_VERSION = 10
ENCODING = 2
_NAME_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def _crc_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            # The polynomial of "CRC-64/Jones", bits reversed.
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def crc64(data):
    """The checksum at the end of a dump."""
    crc = 0
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


def seal(body, version=RDB_VERSION):
    """A dump with this body and a valid checksum."""
    covered = body + struct.pack("<H", version)
    return covered + struct.pack("<Q", crc64(covered))


def module_id(name="fencelock", encoding=ENCODING):
    """The number by which a snapshot names a module's type: nine characters of six bits, and the encoding."""
    number = 0
    for character in name:
        number = number << 6 | _NAME_CHARACTERS.index(character)
    return number << 10 | encoding


def prefix(encoding=ENCODING):
    """The bytes before what the module itself wrote."""
    return bytes([RDB_TYPE_MODULE_2, 0x81]) + struct.pack(">Q", module_id(encoding=encoding))


def string(data):
    """One string as a module saves it, with the marker before it."""
    return bytes([MODULE_STRING, 0x80]) + struct.pack(">I", len(data)) + data


def record(
    *,
    fence,
    written_us=None,
    held_us=0,
    left_us=60_000_000,
    issued=(1, 1),
    owner=b"restored",
    version=2,
    flags=0,
    extra=b"",
    fields=None,
):
    """The record of one hold. `issued`: incarnation and reading, which version 1 lacks. `extra`: the terms of the flags."""
    if written_us is None:
        written_us = time.time_ns() // 1_000
    numbers = (fence, written_us, held_us, left_us, *(issued if version != 1 else ()))
    if fields is not None:
        flags |= FIELDS
        extra += struct.pack("<H", len(fields)) + fields
    return struct.pack("<BB", version, flags) + b"".join(struct.pack("<Q", number % 2**64) for number in numbers) + extra + owner


def lock_payload(**fields):
    """The whole payload of a lock with these fields."""
    return seal(prefix() + string(record(**fields)) + bytes([MODULE_EOF]))
