"""The rights that a role needs, as the manual lists them; and what becomes of them when the extension's owner changes."""

import re

import psycopg
import pytest

from harness import places

README = (places.ROOT / "pg_fence" / "README.md").read_text().partition("\n## Rights\n")[2].partition("\n## ")[0]
DENIED = "42501"


@pytest.fixture
def roles(db):
    """Makes roles; they are gone afterwards."""
    made = []

    def make(*names):
        for name in names:
            db.execute(f"CREATE ROLE {name} LOGIN")
            made.append(name)

    yield make
    db.execute("RESET ROLE; DROP EXTENSION pg_fence CASCADE")
    for name in made:
        db.execute(f"REASSIGN OWNED BY {name} TO CURRENT_USER; DROP OWNED BY {name}; DROP ROLE {name}")


def calls():
    """The table of the README: a call, and the grants that it needs."""
    rows = re.findall(r"^\| `(.*?)`[^`|]* \| (`GRANT.*`) \|$", README, re.MULTILINE)
    return {call: re.findall(r"`(.*?)`", grants) for call, grants in rows}


CALLS = calls()
# What an application is granted.
GUARDS = [("fenced_guard(text,bigint)", "EXECUTE", False), ("fenced_guard(text,bigint,text)", "EXECUTE", False)]


def outcome(db, call):
    """The SQLSTATE of the call as `app`, or None; leaves nothing behind."""
    try:
        with db.transaction(force_rollback=True):
            db.execute("SET LOCAL ROLE app")
            db.execute(call.removeprefix("BEGIN; "))
    except psycopg.Error as error:
        return error.sqlstate
    return None


def test_every_function_that_needs_a_right_is_listed(db):
    """Those for the owner of a table aside; fence_use() needs none of its own."""
    functions = "SELECT DISTINCT proname FROM pg_proc WHERE proname ~ '^fenced_|^fence_guard|^fence_use|^fence_new_life|^pg_stat_fence'"
    assert [name for (name,) in db.execute(functions).fetchall() if f"{name}(" not in " ".join(CALLS)] == []


@pytest.mark.parametrize("call", CALLS)
def test_a_call_needs_exactly_the_grants_that_the_readme_lists(db, roles, call):
    db.execute("CREATE TABLE counters (id int PRIMARY KEY, value int, fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO counters VALUES (1, 0, 40); SELECT fence_protect('counters')")
    db.execute("BEGIN; SELECT fenced_guard('ledger', 30); COMMIT")
    roles("app")
    grants = CALLS[call]
    for missing in grants:
        with db.transaction(force_rollback=True):
            for grant in grants:
                if grant != missing:
                    db.execute(grant)
            assert (missing, outcome(db, call)) == (missing, DENIED)
    for grant in grants:
        db.execute(grant)
    assert outcome(db, call) is None


def granted_to(db, role):
    """What the role has on the extension's objects, with the right to grant it on."""
    objects = """
        SELECT oid::regprocedure::text AS what, proacl AS acl, oid FROM pg_proc
        UNION ALL SELECT oid::regclass::text, relacl, oid FROM pg_class
        UNION ALL SELECT nspname, nspacl, oid FROM pg_namespace
    """
    return db.execute(
        f"""SELECT o.what, a.privilege_type, a.is_grantable FROM ({objects}) o, aclexplode(o.acl) a, pg_depend d
            WHERE d.objid = o.oid AND d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_fence')
            AND a.grantee = %s::regrole ORDER BY 1, 2""",
        (role,),
    ).fetchall()


def test_after_reassign_and_drop_owned_the_repair_grants_give_everything_back(pg, roles, connect):
    """To the new owner, and to the role that had it from the old one."""
    admin = connect()
    admin.execute("DROP EXTENSION pg_fence")
    roles("alice", "bob", "app")
    admin.execute("DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO alice', current_database()); END $$; GRANT CREATE ON SCHEMA public TO alice")
    admin.execute("SET ROLE alice; CREATE EXTENSION pg_fence; GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint), fenced_guard(text, bigint, text) TO app; RESET ROLE")
    had, app_had = granted_to(admin, "alice"), granted_to(admin, "app")
    assert len(had) > 5 and app_had == GUARDS
    admin.execute("REASSIGN OWNED BY alice TO bob")
    assert admin.execute("SELECT extowner::regrole::text FROM pg_extension WHERE extname = 'pg_fence'").fetchone() == ("bob",)
    assert (granted_to(admin, "bob"), granted_to(admin, "alice")) == ([], had)
    admin.execute("DROP OWNED BY alice")
    assert [granted_to(admin, role) for role in ("alice", "bob", "app")] == [[], [], []]
    (repair,) = re.findall(r"```sql\nCREATE ROLE bob LOGIN;\n(.*?)```", README, re.DOTALL)
    admin.execute(repair)
    assert (granted_to(admin, "bob"), granted_to(admin, "app")) == (had, app_had)
    admin.execute("SET ROLE bob; GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO alice")


def test_the_owner_of_the_database_keeps_its_rights_and_grants_them_on(roles, connect):
    admin = connect()
    roles("dbo", "alice", "bob", "app")
    admin.execute("DROP EXTENSION pg_fence")
    admin.execute("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I OWNER TO dbo; GRANT CREATE ON DATABASE %1$I TO alice', current_database()); END $$; GRANT CREATE ON SCHEMA public TO alice")
    admin.execute("SET ROLE alice; CREATE EXTENSION pg_fence; RESET ROLE; REASSIGN OWNED BY alice TO bob; DROP OWNED BY alice")
    admin.execute("SET ROLE dbo; SELECT fence_guard_forget(1); GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint), fenced_guard(text, bigint, text) TO bob WITH GRANT OPTION")
    admin.execute("SET ROLE bob; GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint), fenced_guard(text, bigint, text) TO app; RESET ROLE")
    assert granted_to(admin, "app") == GUARDS


def test_an_extension_in_a_schema_of_its_own_needs_usage_of_it(db, roles):
    db.execute("DROP EXTENSION pg_fence; CREATE SCHEMA fences; CREATE EXTENSION pg_fence SCHEMA fences")
    db.execute("CREATE TABLE counters (id int PRIMARY KEY, value int, fence bigint NOT NULL DEFAULT 0); INSERT INTO counters VALUES (1, 0)")
    db.execute("SELECT fences.fence_protect('counters')")
    roles("app")
    db.execute("GRANT SELECT, UPDATE ON counters TO app")
    call = "SELECT * FROM fences.fenced_claim(NULL::counters, 1, 40)"
    assert outcome(db, call) == DENIED
    db.execute("GRANT USAGE ON SCHEMA fences TO app")
    assert outcome(db, call) is None
    assert outcome(db, "SELECT * FROM fences.fence_protected") is None
