"""Every example of the extension's README gives what the README prints."""

import re

from harness import places

README = places.ROOT / "pg_fence" / "README.md"


def examples():
    """The SQL blocks in order, each with the text that follows it, or None."""
    blocks = re.findall(r"```sql\n(.*?)```\n(?:```text\n(.*?)```\n)?", README.read_text(), re.DOTALL)
    return [(sql, text or None) for sql, text in blocks]


def plain(text):
    """Output without what depends on widths: rulers, trailing blanks, row counts, where an error was."""
    lines = [re.sub(r"^psql:\S+ ", "", line) for line in text.splitlines()]
    kept = [" ".join(line.split()) for line in lines if not re.fullmatch(r"[-+ ]*|\(\d+ rows?\)", line)]
    return kept


def test_every_example_prints_what_the_readme_says(pg):
    assert len(examples()) >= 6
    pg.psql("CREATE DATABASE readme")
    try:
        for sql, text in examples():
            said = pg.psql(f"\\set ON_ERROR_STOP off\n{sql}", "readme", options=("-qX",), check=text is None)
            assert plain(said) == plain(text or "")
    finally:
        pg.psql("DROP DATABASE readme WITH (FORCE)")


def test_the_readme_names_every_function_and_setting(pg):
    text = README.read_text()
    pg.psql("CREATE DATABASE readme")
    try:
        pg.psql("CREATE EXTENSION pg_fence; LOAD 'pg_fence'", "readme")
        names = pg.psql("LOAD 'pg_fence'; SELECT DISTINCT proname FROM pg_proc WHERE proname ~ '^fence' UNION SELECT name FROM pg_settings WHERE name ~ '^pg_fence'", "readme")
        assert len(names.splitlines()) > 10
        assert [name for name in names.splitlines() if f"`{name}" not in text] == []
    finally:
        pg.psql("DROP DATABASE readme WITH (FORCE)")
