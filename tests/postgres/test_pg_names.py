"""Identifier quoting and name-resolution attacks: a statement means the table it was given, whoever planted what."""

import json

import psycopg
import pytest

from refusals import refusal

ODD_NAMES = ["Id", "select", "x; drop table y;--", "a.b", 'q"uo"te', "it's", "$1", "%s", "back\\slash", " ", "é" * 31 + "x", "fenced", "fenced_", "_", "tab\tnew\nline", "ROW", "{}"]


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture
def odd(db):
    """A connection to a table in which every name needs quotes."""
    db.execute('CREATE SCHEMA "Odd ""Schema"; CREATE TABLE y (id int)')
    columns = ", ".join(f"{quoted(name)} text DEFAULT 'untouched'" for name in ODD_NAMES)
    db.execute(f'CREATE TABLE "Odd ""Schema"."Or""der; --" ("The Key" int PRIMARY KEY, "Fence" bigint NOT NULL DEFAULT 0, {columns})')
    db.execute('INSERT INTO "Odd ""Schema"."Or""der; --" VALUES (1)')
    return db


TABLE = '"Odd ""Schema"."Or""der; --"'


@pytest.mark.parametrize("setting", ["quote_all_identifiers = on", "standard_conforming_strings = off", "backslash_quote = on"])
def test_every_name_is_taken_as_it_is(odd, setting):
    if setting.startswith("standard_conforming") and odd.info.server_version >= 190_000:
        # From 19 on there are no other literals.
        assert refusal(odd, f"SET {setting}").sqlstate == "0A000"
        setting = "standard_conforming_strings = on"
    odd.execute(f"SET {setting}")
    assert odd.execute(f"SELECT \"Fence\" FROM fenced_claim(NULL::{TABLE}, 1, 5, 'Fence')").fetchall() == [(5,)]
    for n, name in enumerate(ODD_NAMES):
        patch = json.dumps({name: f"value {n}"})
        assert odd.execute("SELECT fenced_update(%s::regclass, 1, 5, %s::jsonb, 'Fence')", (TABLE, patch)).fetchone() == (True,)
    row = odd.execute(f"SELECT fenced_claim_json(%s::regclass, jsonb_build_object('The Key', 1), 5, 'Fence')", (TABLE,)).fetchone()[0]
    assert {name: row[name] for name in ODD_NAMES} == {name: f"value {n}" for n, name in enumerate(ODD_NAMES)}
    for n, name in enumerate(ODD_NAMES):
        patch = json.dumps({name: f"value {n}"})
        odd.execute(f"SELECT * FROM fenced_claim_or_insert(NULL::{TABLE}, %s, 5, %s, 'Fence')", (100 + n, patch))
        assert odd.execute("SELECT fenced_upsert(%s::regclass, %s::int, 5, %s::jsonb, 'Fence')", (TABLE, 200 + n, patch)).fetchone() == (True,)
        found = odd.execute(f"SELECT count(*) FROM {TABLE} WHERE \"The Key\" >= 100 AND {quoted(name).replace('%', '%%')} = %s", (f"value {n}",))
        assert (name, found.fetchone()) == (name, (2,))
    assert odd.execute("SELECT count(*) FROM y").fetchone() == (0,)


def test_names_in_another_case_are_unknown(odd):
    for name in ("id", "ID", "SELECT", "fence", "the key"):
        assert refusal(odd, "SELECT fenced_write(%s::regclass, 1, 5, %s::jsonb, 'Fence')", (TABLE, json.dumps({name: "x"}))).sqlstate == "42703"
    for name in ("fence", "FENCE", '"Fence"'):
        assert refusal(odd, "SELECT fenced_claim_json(%s::regclass, 1, 5, %s::name)", (TABLE, name)).sqlstate == "42703"


def test_a_table_with_a_mixed_case_name_is_found_by_its_row_type(odd):
    assert refusal(odd, f"SELECT * FROM fenced_claim(NULL::{TABLE}, 9, 5, 'Fence')").sqlstate == "P0002"


INJECTIONS = ["1); DROP TABLE y; --", "1' OR '1'='1", '"; DROP TABLE y; --', "$$; DROP TABLE y; $$", "\\'; DROP TABLE y; --", "' || (SELECT 'x') || '"]


def test_no_key_name_or_value_is_ever_run(odd):
    odd.execute("CREATE TABLE t (id text PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v text)")
    for text in INJECTIONS:
        odd.execute("INSERT INTO t VALUES (%s)", (text,))
        assert odd.execute("SELECT id FROM fenced_claim(NULL::t, %s, 5)", (text,)).fetchall() == [(text,)]
        assert odd.execute("SELECT fenced_update('t', %s, 5, %s::jsonb)", (text, json.dumps({"v": text}))).fetchone() == (True,)
        assert refusal(odd, "SELECT fenced_update('t', %s, 5, %s::jsonb)", (text, json.dumps({text: 1}))).sqlstate == "42703"
        assert refusal(odd, "SELECT fenced_claim_json('t', 'x', 5, %s::name)", (text,)).sqlstate == "42703"
        assert refusal(odd, "SELECT fenced_claim_json('t', jsonb_build_object(%s::text, 1), 5)", (text,)).sqlstate == "22023"
    assert odd.execute("SELECT count(*) FROM t WHERE id = v").fetchone() == (len(INJECTIONS),)
    assert odd.execute("SELECT count(*) FROM y").fetchone() == (0,)


ENCODINGS = {"UTF8": "é" * 31 + "x", "LATIN1": "é" * 63, "SQL_ASCII": "é" * 31, "EUC_JP": "あ" * 31, "WIN1251": "ж" * 63}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_names_and_values_in_every_encoding_arrive_whole(pg, encoding):
    name = ENCODINGS[encoding]
    with psycopg.connect(pg.url(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE enc ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
        try:
            with psycopg.connect(pg.url("enc"), autocommit=True) as db:
                if encoding != "SQL_ASCII":
                    db.execute("SET client_encoding = 'UTF8'")
                else:
                    db.execute("SET client_encoding = 'SQL_ASCII'")
                raw = name.encode() if encoding == "SQL_ASCII" else name
                work(db, raw, name)
        finally:
            admin.execute("DROP DATABASE enc WITH (FORCE)")


def work(db, raw, name):
    """Claims and updates a row by way of names in this encoding, written by the server so that no client recodes them."""
    if isinstance(raw, bytes):
        literal = f"convert_from('\\x{raw.hex()}'::bytea, 'SQL_ASCII')"
    else:
        literal = "U&'" + "".join(f"\\{ord(char):04x}" for char in raw) + "'"
    db.execute("CREATE EXTENSION pg_fence")
    db.execute(f"""DO $do$ DECLARE n text := {literal}; BEGIN
        EXECUTE format('CREATE TABLE %I (%I text PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, %I text)', n, n, left(n, 20) || 'v');
        EXECUTE format('INSERT INTO %I VALUES (%L)', n, n);
        EXECUTE format('SELECT * FROM fenced_claim(NULL::%I, %L, 5)', n, n);
        ASSERT fenced_update(quote_ident(n)::regclass, n, 5, jsonb_build_object(left(n, 20) || 'v', n));
        ASSERT fenced_update(quote_ident(n)::regclass, jsonb_build_object(n, n), 5, jsonb_build_object(left(n, 20) || 'v', n));
        ASSERT fenced_upsert(quote_ident(n)::regclass, n || '2', 5, jsonb_build_object(left(n, 20) || 'v', n));
        ASSERT fenced_upsert(quote_ident(n)::regclass, jsonb_build_object(n, n || '2'), 6, jsonb_build_object(left(n, 20) || 'v', n));
        BEGIN
            PERFORM fenced_update(quote_ident(n)::regclass, n, 6, jsonb_build_object(left(n, 20) || 'v', n));
        EXCEPTION WHEN SQLSTATE 'LF002' THEN ASSERT position(n in SQLERRM) > 0, SQLERRM; END;
    END $do$""")


@pytest.fixture
def attacked(db):
    """A session whose search path begins with a schema full of planted objects; the row holds fence 20."""
    db.execute("CREATE TABLE public.acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int); INSERT INTO acct VALUES (1, 20, 10)")
    db.execute("CREATE SCHEMA evil")
    for operator in ("<", "<=", "=", ">", ">=", "<>"):
        for left, right in (("bigint", "bigint"), ("int", "int"), ("int", "bigint"), ("bigint", "int"), ("text", "text")):
            function = f"evil.always_{left}_{right}"
            db.execute(f"CREATE OR REPLACE FUNCTION {function}({left}, {right}) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
            db.execute(f"CREATE OPERATOR evil.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {function})")
    for function in ("format(text, text)", "quote_ident(text)", "to_jsonb(anyelement)", "format_type(oid, int)"):
        db.execute(f"CREATE FUNCTION evil.{function} RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted'; END $$")
    db.execute("CREATE DOMAIN evil.int8 AS text; CREATE DOMAIN evil.text AS pg_catalog.int4")
    db.execute("CREATE TABLE evil.acct (id pg_catalog.int4 PRIMARY KEY, fence pg_catalog.int8 DEFAULT 0, bal pg_catalog.int4); INSERT INTO evil.acct VALUES (1)")
    return db


def test_planted_operators_and_functions_are_never_used(attacked):
    attacked.execute("SET search_path = evil, pg_catalog, public")
    for _ in range(3):
        assert attacked.execute("SELECT public.fenced_update('public.acct', 1, 1, '{\"bal\": 66}')").fetchone() == (False,)
        assert attacked.execute("SELECT * FROM public.fenced_claim(NULL::public.acct, 1, 1)").fetchall() == []
        assert attacked.execute("SELECT public.fenced_claim_json('public.acct', 1, 1)").fetchone() == (None,)
        assert refusal(attacked, "SELECT public.fenced_update('public.acct', 1, 99, '{\"bal\": 66}')").sqlstate == "LF002"
    assert attacked.execute("SELECT public.fenced_claim_json('public.acct', 1, 21)").fetchone()[0] == {"id": 1, "fence": 21, "bal": 10}
    for key in (1, 2):
        assert attacked.execute(f"SELECT * FROM public.fenced_claim_or_insert(NULL::public.acct, {key}, 30, '{{\"bal\": 5}}')").rowcount == 1
        assert attacked.execute(f"SELECT * FROM public.fenced_claim_or_insert(NULL::public.acct, {key}, 1, '{{\"bal\": 6}}')").fetchall() == []
        assert attacked.execute(f"SELECT public.fenced_upsert('public.acct', {key}, 1, '{{\"bal\": 6}}')").fetchone() == (False,)
    attacked.execute("SELECT public.fenced_upsert('public.acct', 3, 30, '{\"bal\": 7}')")
    attacked.execute("RESET search_path")
    assert attacked.execute("SELECT * FROM public.acct ORDER BY id").fetchall() == [(1, 30, 10), (2, 30, 5), (3, 30, 7)]
    assert attacked.execute("SELECT count(*) FROM evil.acct").fetchone() == (1,)


def test_temporary_objects_shadow_neither_the_catalog_nor_the_table(attacked):
    attacked.execute("CREATE TEMP TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int); INSERT INTO acct VALUES (1, 0, 0)")
    for catalog in ("pg_class", "pg_attribute", "pg_constraint", "pg_index", "pg_type", "pg_operator", "pg_namespace"):
        attacked.execute(f"CREATE TEMP TABLE {catalog} (oid oid, relname name)")
    attacked.execute("SET search_path = pg_temp, pg_catalog, public")
    assert attacked.execute("SELECT public.fenced_update('public.acct', 1, 1, '{\"bal\": 66}')").fetchone() == (False,)
    assert attacked.execute("SELECT public.fenced_claim_json('public.acct', 1, 21)->>'bal'").fetchone() == ("10",)
    assert attacked.execute("SELECT public.fenced_claim_json('acct', 1, 1)->>'bal'").fetchone() == ("0",), "as the caller's regclass means it"


def test_a_better_matching_operator_beside_the_keys_own_is_not_used(db):
    if not db.execute("SELECT FROM pg_available_extensions WHERE name = 'citext'").fetchone():
        return  # this build of the server comes without it
    db.execute("CREATE EXTENSION citext; CREATE DOMAIN nick AS citext; CREATE TABLE n (id nick PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO n VALUES ('bob'), ('eve')")
    db.execute("CREATE FUNCTION always(nick, citext) RETURNS boolean LANGUAGE sql AS 'SELECT true'; CREATE FUNCTION always2(nick, nick) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
    db.execute("CREATE OPERATOR = (LEFTARG = nick, RIGHTARG = citext, FUNCTION = always); CREATE OPERATOR = (LEFTARG = nick, RIGHTARG = nick, FUNCTION = always2)")
    assert db.execute("SELECT id::text FROM fenced_claim(NULL::n, 'BOB', 5)").fetchall() == [("bob",)]
    assert db.execute("SELECT id::text FROM fenced_claim(NULL::n, 'bob'::nick, 5)").fetchall() == [("bob",)]
    assert db.execute("SELECT count(*) FROM n WHERE fence = 0").fetchone() == (1,)


def test_a_users_own_casts_are_never_used(db):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (1)")
    db.execute("CREATE TYPE box1 AS (n int); CREATE FUNCTION unbox(box1) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted'; END $$; CREATE CAST (box1 AS int) WITH FUNCTION unbox(box1) AS IMPLICIT")
    assert db.execute("SELECT id FROM fenced_claim(NULL::t, ROW(1)::box1, 5)").fetchall() == [(1,)], "a row of one field"
    db.execute("CREATE TYPE hue AS ENUM ('1'); CREATE FUNCTION unhue(hue) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted'; END $$; CREATE CAST (hue AS int) WITH FUNCTION unhue(hue) AS IMPLICIT")
    assert refusal(db, "SELECT fenced_claim_json('t', '1'::hue, 5)").sqlstate == "42804"


def test_a_caller_gains_no_right_and_no_right_is_lost_on_the_way(attacked):
    attacked.execute("CREATE ROLE mallory; GRANT USAGE, CREATE ON SCHEMA evil TO mallory; GRANT SELECT ON public.acct TO mallory")
    try:
        attacked.execute("SET ROLE mallory; SET search_path = evil, pg_catalog, public")
        for call in (
            "SELECT * FROM public.fenced_claim(NULL::public.acct, 1, 21)",
            "SELECT public.fenced_update('public.acct', 1, 20, '{\"bal\": 66}')",
            "SELECT public.fenced_write('public.acct', 1, 21, '{\"bal\": 66}')",
            "SELECT * FROM public.fenced_claim_or_insert(NULL::public.acct, 9, 21, '{}')",
            "SELECT public.fenced_upsert('public.acct', 9, 21, '{\"bal\": 66}')",
            "SELECT public.fenced_delete('public.acct', 1, 20)",
            "SELECT public.fence_reset('public.acct', 1, 1)",
        ):
            assert (call, refusal(attacked, call).sqlstate) == (call, "42501")
    finally:
        attacked.execute("RESET ROLE; RESET search_path; DROP OWNED BY mallory; DROP ROLE mallory")
    assert attacked.execute("SELECT * FROM acct").fetchall() == [(1, 20, 10)]


def test_no_function_of_the_extension_runs_with_its_owners_rights(db):
    functions = db.execute("""SELECT p.proname, p.prosecdef, p.proconfig FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass
        JOIN pg_extension e ON e.oid = d.refobjid WHERE e.extname = 'pg_fence' AND d.deptype = 'e'""").fetchall()
    assert functions
    assert all((definer, config) == (False, None) for _, definer, config in functions)


def test_planted_objects_stop_the_creation_of_the_extension_and_are_not_adopted(pg):
    with psycopg.connect(pg.url(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE planted")
        try:
            with psycopg.connect(pg.url("planted"), autocommit=True) as db:
                signature = "fenced_update(regclass, text, bigint, jsonb, name)"
                db.execute(f"CREATE FUNCTION {signature} RETURNS boolean LANGUAGE sql AS 'SELECT true'")
                assert refusal(db, "CREATE EXTENSION pg_fence").sqlstate == "42723"
                db.execute(f"DROP FUNCTION {signature}; CREATE DOMAIN public.name AS text; CREATE DOMAIN public.regclass AS text; CREATE DOMAIN public.jsonb AS text")
                db.execute("CREATE EXTENSION pg_fence")
                types = db.execute("SELECT DISTINCT t::regtype::oid < 16384 FROM pg_proc, unnest(proargtypes) t WHERE proname ~ '^fence'").fetchall()
                assert types == [(True,)]
        finally:
            admin.execute("DROP DATABASE planted WITH (FORCE)")


def test_the_owner_of_a_database_may_create_the_extension(pg):
    with psycopg.connect(pg.url(), autocommit=True) as admin:
        admin.execute("CREATE ROLE plain LOGIN")
        admin.execute("CREATE DATABASE plain OWNER plain")
        try:
            with psycopg.connect(pg.url("plain").replace("postgres@", "plain@"), autocommit=True) as db:
                db.execute("CREATE SCHEMA mine; CREATE EXTENSION pg_fence SCHEMA mine")
                db.execute("CREATE TABLE mine.t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO mine.t VALUES (1)")
                assert db.execute("SELECT fence FROM mine.fenced_claim(NULL::mine.t, 1, 5)").fetchall() == [(5,)]
                db.execute("DROP EXTENSION pg_fence")
        finally:
            admin.execute("DROP DATABASE plain WITH (FORCE)")
            admin.execute("DROP ROLE plain")


def test_a_signature_with_and_without_fence_column_is_the_same_function(db):
    facts = "prosrc, prorettype, proretset, provolatile, proparallel, proisstrict, prosecdef, prorows, procost, pronargdefaults"
    found = db.execute(
        f"SELECT proname, proargtypes::oid[]::regtype[]::text[], proargnames, ARRAY[{facts.replace(', ', '::text, ')}::text],"
        " obj_description(oid, 'pg_proc') FROM pg_proc WHERE prosrc LIKE 'pg\\_fence\\_%' AND pronargdefaults = 0"
    ).fetchall()
    functions = {(name, *types): (names, facts, comment) for name, types, names, facts, comment in found}
    longer = [signature for signature, (names, *_) in functions.items() if names and (names[-1] in ("fence_column", "owner_column") or names[-2:] in (["fence_column", "owner"], ["life", "owner"], ["fence", "owner"]))]
    assert len(longer) == 18 + 2 * 18 + 2
    for signature in longer:
        names, facts, comment = functions[signature]
        if names[-1] == "owner":
            assert " An equal fence of another owner is refused." in comment
            comment = comment.replace(" An equal fence of another owner is refused.", "")
        assert functions[signature[:-1]] == (names[:-1], facts, comment), signature
