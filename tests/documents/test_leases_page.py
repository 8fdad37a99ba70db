"""The page of leases in PostgreSQL: its examples print what it says, and its tables are those of the extension."""

import re

from test_pg_readme import plain
from harness import places

PAGE = places.ROOT / "docs" / "leases.md"


def without_fences(text):
    """Fences follow the clock: any stands for any."""
    return re.sub(r"\b\d{16}\b", "FENCE", text)


def test_every_example_prints_what_the_page_says(pg):
    blocks = re.findall(r"```sql\n(.*?)```\n(?:```text\n(.*?)```\n)?", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 5
    pg.psql("CREATE DATABASE leases_page")
    try:
        sql = "".join(f"{sql}\n\\echo NEXT\n" for sql, _ in blocks)
        said = f"{pg.psql(sql, 'leases_page', options=('-qX',))}\n".split("NEXT\n")
        for (sql, text), output in zip(blocks, said, strict=False):
            assert plain(without_fences(output)) == plain(without_fences(text)), sql
    finally:
        pg.psql("DROP DATABASE leases_page WITH (FORCE); DROP ROLE IF EXISTS worker")


def test_the_table_of_functions_is_that_of_the_extension(db):
    rows = re.findall(r"^\| `(fencelock_\w+)\((.*?)\)` \|.*\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    described = {(name, tuple(argument.rsplit(" ", 1)[0] for argument in arguments.split(", ")), text) for name, arguments, text in rows}
    found = db.execute(
        "SELECT proname, proargnames[:pronargs], obj_description(oid) FROM pg_proc WHERE proname ~ '^fencelock_'",
    ).fetchall()
    assert described == {(name, tuple(arguments), text) for name, arguments, text in found}


def test_the_table_of_settings_has_their_defaults(db):
    db.execute("LOAD 'pg_fence'")
    rows = re.findall(r"^\| `(pg_fence\.\w+)` \| `(.*?)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 3
    assert [(name, db.execute(f"SHOW {name}").fetchone()[0]) for name, _ in rows] == rows


def test_the_page_names_every_column_of_the_view(db):
    columns = [column.name for column in db.execute("SELECT * FROM fencelocks").description]
    listed = re.search(r"The view `fencelocks` shows(.*?)\.", PAGE.read_text(), re.DOTALL)[1]
    assert re.findall(r"`(\w+)`", listed) == columns
