"""Row count misread: zero rows that are not staleness. Each reason has its own answer, and stale wins over blocked."""

import psycopg
import pytest

from refusals import refusal

CALLS = {
    "claim": "SELECT * FROM fenced_claim(NULL::acct, 1, {fence})",
    "claim_json": "SELECT fenced_claim_json('acct', 1, {fence})",
    "claim_many": "SELECT * FROM fenced_claim_many(NULL::acct, ARRAY[1], {fence})",
    "write": "SELECT fenced_write('acct', 1, {fence}, '{{\"bal\": 11}}')",
    "update": "SELECT fenced_update('acct', 1, 5, '{{\"bal\": 11}}')",
    "update_returning": "SELECT * FROM fenced_update_returning(NULL::acct, 1, 5, '{{\"bal\": 11}}')",
    "delete": "SELECT fenced_delete('acct', 1, 5)",
    "reset": "SELECT fence_reset('acct', 1, {fence})",
}
UPDATES = [name for name in CALLS if name != "delete"]


@pytest.fixture
def acct(db):
    """A connection to a table with one row at fence 5."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int)")
    db.execute("INSERT INTO acct VALUES (1, 5, 10)")
    db.execute("CREATE ROLE app")
    yield db
    db.execute("RESET ROLE; DROP OWNED BY app CASCADE; DROP ROLE app")


def become_app(db, grants="SELECT, UPDATE, DELETE ON acct"):
    db.execute(f"GRANT {grants} TO app")
    db.execute("SET ROLE app")


def everything(db):
    db.execute("RESET ROLE")
    return db.execute("SELECT * FROM acct").fetchall()


def trigger(db, timing, body):
    db.execute(f"CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    db.execute(f"CREATE TRIGGER spoil {timing} ON acct FOR EACH ROW EXECUTE FUNCTION spoil()")


@pytest.mark.parametrize("call", [name for name in CALLS if name != "reset"])
def test_a_policy_that_hides_the_row_from_writes_is_blocked(acct, call):
    acct.execute("ALTER TABLE acct ENABLE ROW LEVEL SECURITY")
    acct.execute("CREATE POLICY see ON acct FOR SELECT USING (true)")
    acct.execute("CREATE POLICY change ON acct FOR UPDATE USING (id <> 1)")
    become_app(acct)
    refused = refusal(acct, CALLS[call].format(fence=9))
    assert refused.sqlstate == "LF004"
    assert "fence 5" in refused.diag.message_detail
    assert ("DELETE" if call == "delete" else "UPDATE") in refused.diag.message_hint
    assert everything(acct) == [(1, 5, 10)]


@pytest.mark.parametrize("call", CALLS)
def test_a_before_trigger_that_skips_the_row_is_blocked(acct, call):
    trigger(acct, "BEFORE UPDATE OR DELETE", "RETURN NULL;")
    refused = refusal(acct, CALLS[call].format(fence=9))
    assert refused.sqlstate == "LF004"
    assert refused.diag.message_hint
    assert everything(acct) == [(1, 5, 10)]


@pytest.mark.parametrize("call", ["claim", "claim_json", "claim_many", "write", "reset"])
def test_a_before_trigger_that_puts_the_fence_back_is_blocked(acct, call):
    trigger(acct, "BEFORE UPDATE", "NEW.fence := OLD.fence; RETURN NEW;")
    refused = refusal(acct, CALLS[call].format(fence=9))
    assert (refused.sqlstate, refused.diag.message_primary) == ("LF004", 'fence 9 was written to table "acct" but did not stay')
    assert refused.diag.message_detail == "Key (id)=(1) would have been left with fence 5."
    assert refused.diag.message_hint
    assert everything(acct) == [(1, 5, 10)]


@pytest.mark.parametrize("call", ["update", "update_returning"])
@pytest.mark.parametrize("left", ["0", "NULL", "6"])
def test_a_trigger_that_changes_the_fence_in_an_update_is_blocked(acct, call, left):
    acct.execute("ALTER TABLE acct ALTER fence DROP NOT NULL")
    trigger(acct, "BEFORE UPDATE", f"NEW.fence := {left}; RETURN NEW;")
    assert refusal(acct, CALLS[call].format()).sqlstate == "LF004"
    assert everything(acct) == [(1, 5, 10)]


def test_a_trigger_that_comes_between_two_calls_is_noticed(acct, connect):
    other = connect()
    for call in ("claim", "write", "update"):
        assert acct.execute(CALLS[call].format(fence=5)).fetchall()
    trigger(other, "BEFORE UPDATE", "NEW.fence := 1; RETURN NEW;")
    for call in ("claim", "write", "update"):
        assert refusal(acct, CALLS[call].format(fence=5)).sqlstate == "LF004"
    other.execute("DROP TRIGGER spoil ON acct")
    for call in ("claim", "write", "update"):
        assert acct.execute(CALLS[call].format(fence=5)).fetchall()


def test_a_trigger_of_a_partition_is_noticed_through_the_parent(acct):
    acct.execute("DROP TABLE acct; CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int) PARTITION BY LIST (id)")
    acct.execute("CREATE TABLE part PARTITION OF acct FOR VALUES IN (1); INSERT INTO acct VALUES (1, 5, 10)")
    acct.execute("CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.fence := 1; RETURN NEW; END $$")
    acct.execute("CREATE TRIGGER spoil BEFORE UPDATE ON part FOR EACH ROW EXECUTE FUNCTION spoil()")
    for call in ("claim", "claim_json", "write", "update", "update_returning"):
        assert refusal(acct, CALLS[call].format(fence=5)).sqlstate == "LF004"
    assert everything(acct) == [(1, 5, 10)]


@pytest.mark.parametrize("call", ["claim", "claim_json", "claim_many", "write"])
def test_stale_wins_over_blocked(acct, call):
    trigger(acct, "BEFORE UPDATE", "RETURN NULL;")
    assert acct.execute(CALLS[call].format(fence=4)).fetchall() in ([], [(None,)], [(False,)])
    acct.execute("ALTER TABLE acct DISABLE TRIGGER spoil; UPDATE acct SET fence = 7; ALTER TABLE acct ENABLE TRIGGER spoil")
    assert acct.execute(CALLS["update"].format()).fetchall() == [(False,)]
    assert acct.execute(CALLS["delete"]).fetchall() == [(False,)]


def test_a_blocked_write_is_tried_again_before_it_is_called_blocked(acct):
    acct.execute("CREATE SEQUENCE tries")
    trigger(acct, "BEFORE UPDATE", "IF nextval('tries') = 1 THEN RETURN NULL; END IF; RETURN NEW;")
    assert acct.execute(CALLS["claim"].format(fence=9)).fetchall() == [(1, 9, 10)]
    assert acct.execute("SELECT last_value FROM tries").fetchone() == (2,)


def test_blocked_is_said_after_a_bounded_number_of_tries(acct):
    acct.execute("CREATE SEQUENCE tries")
    trigger(acct, "BEFORE UPDATE", "PERFORM nextval('tries'); RETURN NULL;")
    assert refusal(acct, CALLS["claim"].format(fence=9)).sqlstate == "LF004"
    assert acct.execute("SELECT last_value FROM tries").fetchone() == (3,)


@pytest.mark.parametrize("call", ["update", "update_returning", "claim", "write"])
def test_a_trigger_that_deletes_the_row_afterwards_leaves_it_applied(acct, call):
    trigger(acct, "AFTER UPDATE", "DELETE FROM acct WHERE id = NEW.id; RETURN NULL;")
    assert acct.execute(CALLS[call].format(fence=5)).fetchall()
    assert everything(acct) == []


def test_a_row_that_the_caller_may_not_see_is_missing_to_it(acct):
    acct.execute("ALTER TABLE acct ENABLE ROW LEVEL SECURITY")
    acct.execute("CREATE POLICY see ON acct USING (id <> 1)")
    become_app(acct)
    for call in ("claim", "update", "delete", "write"):
        assert refusal(acct, CALLS[call].format(fence=9)).sqlstate == "P0002"
    assert everything(acct) == [(1, 5, 10)]


def test_forced_row_security_binds_the_owner_too(acct):
    become_app(acct, "ALL ON SCHEMA public")
    acct.execute("CREATE TABLE own (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
    acct.execute("INSERT INTO own VALUES (1, 0)")
    acct.execute("ALTER TABLE own ENABLE ROW LEVEL SECURITY")
    assert acct.execute("SELECT fence FROM fenced_claim(NULL::own, 1, 5)").fetchall() == [(5,)]
    acct.execute("ALTER TABLE own FORCE ROW LEVEL SECURITY")
    assert refusal(acct, "SELECT fence FROM fenced_claim(NULL::own, 1, 6)").sqlstate == "P0002"
    acct.execute("CREATE POLICY see ON own FOR SELECT USING (true)")
    assert refusal(acct, "SELECT fence FROM fenced_claim(NULL::own, 1, 6)").sqlstate == "LF004"
    assert refusal(acct, "SELECT fence_reset('own', 1, 6)").sqlstate == "P0002"
    acct.execute("RESET ROLE; DROP TABLE own")


def test_a_policy_with_a_check_on_the_new_row_is_the_servers_own_error(acct):
    acct.execute("ALTER TABLE acct ENABLE ROW LEVEL SECURITY")
    acct.execute("CREATE POLICY see ON acct FOR SELECT USING (true)")
    acct.execute("CREATE POLICY change ON acct FOR UPDATE USING (true) WITH CHECK (bal < 11)")
    become_app(acct)
    assert refusal(acct, CALLS["update"].format()).sqlstate == "42501"
    assert acct.execute("SELECT fenced_update('acct', 1, 5, '{\"bal\": 9}')").fetchone() == (True,)


GRANTS = {
    "nothing": ("USAGE ON SCHEMA public", ()),
    "select alone": ("SELECT ON acct", ()),
    "update alone": ("UPDATE ON acct", ()),
    "one column": ("SELECT, UPDATE (bal) ON acct", ("update", "update_returning")),
    "the fence": ("SELECT, UPDATE (fence) ON acct", ("claim", "claim_json", "claim_many")),
    "key and fence unseen else": ("SELECT (id, fence), UPDATE (bal, fence) ON acct", ("update", "write")),
    "no delete": ("SELECT, UPDATE ON acct", ("claim", "claim_json", "claim_many", "write", "update", "update_returning")),
    "delete": ("SELECT, DELETE ON acct", ("delete",)),
}


def works(db, call):
    """Whether the caller has the rights for a call, which is undone."""
    with db.transaction(force_rollback=True):
        try:
            with db.transaction():
                return bool(db.execute(call.format(fence=5)).fetchall())
        except psycopg.errors.InsufficientPrivilege:
            return False


def test_every_call_needs_the_rights_of_its_own_statement(acct):
    for right, allowed in GRANTS.values():
        become_app(acct, right)
        assert [right, *(name for name in CALLS if works(acct, CALLS[name]))] == [right, *sorted(allowed, key=list(CALLS).index)]
        acct.execute(f"RESET ROLE; REVOKE ALL ON acct FROM app; REVOKE {right} FROM app")
    assert everything(acct) == [(1, 5, 10)]


def test_a_rule_that_replaces_the_write_is_the_servers_own_error(acct):
    acct.execute("CREATE RULE nothing AS ON UPDATE TO acct DO INSTEAD NOTHING; CREATE RULE kept AS ON DELETE TO acct DO INSTEAD NOTHING")
    for call in ("claim", "claim_json", "write", "update", "delete"):
        assert refusal(acct, CALLS[call].format(fence=5)).sqlstate == "0A000"
    assert everything(acct) == [(1, 5, 10)]
