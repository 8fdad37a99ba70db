"""The page of errors has every error that a client can get: its text, and the code word of PostgreSQL's."""

import re

from harness import places

PAGE = (places.ROOT / "docs" / "errors.md").read_text()
PG_ERRORS = places.ROOT / "pg_fence" / "src" / "errors"
# Shorter pieces are names and endings.
SHORTEST = 8


def missing(pieces):
    """What the page lacks of the pieces of a text that stand between its numbers and names."""
    pieces = [piece.strip(" \"'") for piece in pieces]
    return [piece for piece in pieces if len(piece) >= SHORTEST and piece not in PAGE]


def redis_texts():
    for path in (places.ROOT / "redis_fencelock" / "src").rglob("*.rs"):
        yield from re.findall(r'"((?:ERR|UNCLAIMED|READONLY|WRONGTYPE) [^"]+)"', path.read_text())
    arguments = (places.ROOT / "fence" / "src" / "lock" / "args.rs").read_text()
    yield from re.findall(r'write!\(f, "([^"]+)"', arguments)


def postgres_texts():
    for name in ("texts.rs", "problems.rs", "arrays.rs", "owners.rs"):
        source = (PG_ERRORS / name).read_text().replace("[..]", "")
        for message in re.findall(r'\bnew\((?:\s*"\w{5}",)?\s*text!\[(.*?)\]', source, re.DOTALL):
            yield [piece.replace('\\"', '"') for piece in re.findall(r'"((?:[^"\\]|\\.)*)"', message)]


def test_every_error_of_redis_is_on_the_page():
    texts = list(redis_texts())
    assert len(texts) > 25
    assert [lack for text in texts for lack in missing(re.split(r"\{[^}]*\}|ERR ", text))] == []


def test_every_error_of_postgresql_is_on_the_page():
    texts = list(postgres_texts())
    assert len(texts) >= 60
    assert [lack for text in texts for lack in missing(text)] == []


def test_every_code_word_is_on_the_page_once_and_no_other():
    words = re.findall(r'=> c"(\w+)"', (PG_ERRORS / "codes.rs").read_text())
    assert len(words) == len(set(words)) > 40
    rows = re.findall(r"\| (?:\w{5}(?:, )?)+ ((?:`\w+` ?)+)\|", PAGE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(words)
