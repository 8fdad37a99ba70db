"""Every example of the extension's README gives what the README prints."""

import re

import psycopg
import pytest

from harness import places

README = places.ROOT / "pg_fence" / "README.md"


def examples():
    """The SQL blocks in order, each with the text that follows it, or None."""
    blocks = re.findall(r"```sql\n(.*?)```\n(?:```text\n(.*?)```\n)?", README.read_text(), re.DOTALL)
    return [(sql, text or None) for sql, text in blocks]


def plain(text):
    """Output without what depends on widths: rulers, trailing blanks, row counts, where an error was; nor on time and cost.

    Nor the parameters that auto_explain adds from PostgreSQL 16 on.
    """
    text = re.sub(r"duration: \S+ ms|\(cost=.*\)", "", re.sub(r"(?m)^Query Parameters: .*\n", "", text))
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
        pg.psql("DROP DATABASE readme WITH (FORCE); DROP ROLE IF EXISTS app, bob")


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


def test_the_tables_of_functions_say_what_their_comments_say(db):
    """Name, arguments and description. The fence column and the owner, the last arguments of row functions, are listed once."""
    rows = re.findall(r"^\| `(fenced?_\w+)\((.*?)\)` \|.*\| (.*) \|$", README.read_text(), re.MULTILINE)
    assert len(rows) >= 14
    for name, arguments, description in rows:
        found = db.execute(
            "SELECT proargnames[1:pronargs], obj_description(oid) FROM pg_proc WHERE proname = %s AND obj_description(oid) !~ 'Key as'",
            [name],
        ).fetchall()
        assert {comment.removesuffix(" An equal fence of another owner is refused.") for _, comment in found} == {description}
        told = [argument.split()[0] for argument in arguments.split(", ") if argument]
        longest = max((names or [] for names, _ in found), key=len)
        assert told in (longest, [argument for argument in longest if argument not in ("fence_column", "owner", "owner_column")]), name


def refused_calls():
    """Each call that the README says the server refuses: the call, SQLSTATE and text, and the calls to write instead."""
    rows = re.findall(r"^\| (`S.*`) \| (\w{5}) (.*) \| (.*) \|$", README.read_text(), re.MULTILINE)
    assert len(rows) >= 10
    return [(call.strip("`"), sqlstate, text, re.findall(r"`(SELECT.*?)`(?:$| )", instead)) for call, sqlstate, text, instead in rows]


def test_calls_that_the_server_refuses_say_what_the_readme_says_and_the_others_work(db):
    for call, sqlstate, text, instead in refused_calls():
        db.execute("DROP TABLE IF EXISTS counters; CREATE TABLE counters (id int PRIMARY KEY, value int, fence bigint NOT NULL DEFAULT 0)")
        db.execute("INSERT INTO counters VALUES (1, 0, 40)")
        with pytest.raises(psycopg.Error) as caught:
            db.execute(call)
        assert (call, caught.value.sqlstate, caught.value.diag.message_primary) == (call, sqlstate, text)
        assert instead
        for call in instead:
            # A guard answers its fence, and needs a transaction.
            with db.transaction():
                assert db.execute(call).fetchone()[0] in (True, 1, 42), call
        db.execute("RESET search_path")


def test_the_table_of_statistics_has_the_columns_of_the_view(db):
    table = README.read_text().split("| column | meaning |")[1].split("\n\n")[0]
    columns = [column.name for column in db.execute("SELECT * FROM pg_stat_fence").description]
    assert re.findall(r"`(\w+)`", re.sub(r"(?m)^(\| [^|]*\|).*", r"\1", table)) == columns


def test_everything_has_a_comment(db):
    members = "SELECT objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_fence' WHERE d.deptype = 'e'"
    bare = db.execute(
        f"""
        SELECT oid::regprocedure::text FROM pg_proc WHERE oid IN ({members}) AND obj_description(oid, 'pg_proc') IS NULL
        UNION ALL
        SELECT relname FROM pg_class WHERE oid IN ({members}) AND obj_description(oid, 'pg_class') IS NULL
        UNION ALL
        SELECT format('%s.%s', attrelid::regclass, attname) FROM pg_attribute
        WHERE attrelid IN ({members}) AND attnum > 0 AND col_description(attrelid, attnum) IS NULL
        AND attrelid NOT IN (SELECT oid FROM pg_class WHERE relkind = 'S')
        """
    ).fetchall()
    assert bare == []
