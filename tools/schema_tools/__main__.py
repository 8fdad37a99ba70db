"""Tries each tool on a database with a protected table, and ends with an error where the manual is wrong."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg

from harness import PostgresServer, fetch, places

from .versions import DRIZZLE_KIT, RAILS

HERE = Path(__file__).resolve().parent
MADE = places.TARGET / "schema_tools"
MANUAL = places.ROOT / "pg_fence" / "README.md"

NPM_PACKAGES = (f"drizzle-kit@{DRIZZLE_KIT}", "drizzle-orm@0.45.4", "pg@8.23.1")

SOURCE = """
    CREATE EXTENSION pg_fence;
    CREATE TABLE accounts (id int PRIMARY KEY, balance int, fence bigint NOT NULL DEFAULT 0);
    SELECT fence_protect('accounts');
"""
# The same table as drizzle-kit's model of it.
MODEL = """
const { pgTable, integer, bigint } = require("drizzle-orm/pg-core");
exports.accounts = pgTable("accounts", {
  id: integer("id").primaryKey(),
  balance: integer("balance"),
  fence: bigint("fence", { mode: "number" }).notNull().default(0),
});
"""
CONFIG = """
module.exports = {
  dialect: "postgresql",
  schema: "./model.js",
  dbCredentials: { url: process.env.DATABASE_URL },
  verbose: true,
  strict: true,
%s
};
"""


def main():
    MADE.mkdir(parents=True, exist_ok=True)
    _install()
    for major in places.majors_under_test():
        server = PostgresServer(major).start()
        try:
            server.psql("CREATE DATABASE source")
            server.psql(SOURCE, "source")
            rails_6_dumps_the_extension_alone_and_no_trigger(server)
            rails_7_dumps_a_schema_too_unless_it_is_left_out(server)
            structure_sql_carries_the_triggers(server)
            a_prepared_claim_heals_in_rails_when_its_table_was_altered(server)
            drizzle_kit_would_drop_the_views_unless_they_are_left_out(server)
            assert _is_protected(server, "source"), "a tool has changed the database that it looked at"
        finally:
            server.close()
        print(f"schema_tools: the manual is right on PostgreSQL {server.major}")


def rails_6_dumps_the_extension_alone_and_no_trigger(server):
    dump, failed = _rails(RAILS[0], server, "ruby")
    assert failed is None, failed
    assert 'enable_extension "pg_fence"' in dump and "fence_internals" not in dump and "guards" not in dump, dump
    assert not _is_protected(server, "target")


def rails_7_dumps_a_schema_too_unless_it_is_left_out(server):
    dump, failed = _rails(RAILS[1], server, "ruby")
    assert 'create_schema "fence_internals"' in dump
    assert 'schema "fence_internals" already exists' in failed, failed
    (initializer,) = re.findall(r"```ruby\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    (MADE / "initializer.rb").write_text(initializer)
    dump, failed = _rails(RAILS[1], server, "ruby", MADE / "initializer.rb")
    assert failed is None, failed
    assert 'enable_extension "pg_fence"' in dump and "fence_internals" not in dump and "guards" not in dump, dump
    assert not _is_protected(server, "target")


def structure_sql_carries_the_triggers(server):
    for version in RAILS:
        dump, failed = _rails(version, server, "sql")
        assert failed is None, failed
        assert dump.count("CREATE TRIGGER") > 1 and "CREATE SCHEMA fence_internals" not in dump, dump
        assert _is_protected(server, "target")


def a_prepared_claim_heals_in_rails_when_its_table_was_altered(server):
    """In a transaction Rails says that it has to be run again, as it does for queries of its own."""
    row = {"id": 1, "balance": 10, "fence": 5}
    for version in RAILS:
        server.psql("DROP DATABASE IF EXISTS altered WITH (FORCE)")
        server.psql("CREATE DATABASE altered TEMPLATE source")
        server.psql("INSERT INTO accounts VALUES (1, 10)", "altered")
        said = _ruby(version, server, "altered.rb", server.url("altered"))
        assert said["claimed"] == [[row], [{**row, "more": 7}], [row]], said
        assert said["expired"] == "ActiveRecord::PreparedStatementCacheExpired", said


def drizzle_kit_would_drop_the_views_unless_they_are_left_out(server):
    assert _drizzle_kit(server, "") == ['DROP VIEW "public"."fence_protected"', 'DROP VIEW "public"."pg_stat_fence"']
    (tables_filter,) = re.findall(r"`(tablesFilter: .*?)`", MANUAL.read_text())
    assert _drizzle_kit(server, f"  {tables_filter},") == []


def _rails(version, server, format, *initializer):
    """What Rails dumps, and why it could not load it into an empty database."""
    server.psql("DROP DATABASE IF EXISTS target WITH (FORCE)")
    server.psql("CREATE DATABASE target")
    dump = MADE / f"dump.{format}"
    said = _ruby(version, server, "rails.rb", format, server.url("source"), server.url("target"), dump, *initializer)
    return dump.read_text(), said["failed"]


def _ruby(version, server, script, *words):
    """What a script says with this version of Rails."""
    programs = os.pathsep.join([str(server.installation.program("")), os.environ["PATH"]])
    environment = {**os.environ, **server.installation.environment, "PATH": programs}
    if version == RAILS[1]:
        gems = (places.SERVERS / "rails-7.2").glob("usr/share/rubygems-integration/all/gems/*/lib")
        environment["RUBYLIB"] = os.pathsep.join(str(path) for gem in gems for path in (gem, *gem.glob("concurrent-ruby")))
    # Programs that Rails runs print lines of their own.
    said = json.loads(_run("ruby", HERE / script, *words, env=environment).splitlines()[-1])
    assert said["version"].startswith(f"{version}."), said["version"]
    return said


def _drizzle_kit(server, setting):
    """The statements that `drizzle-kit push` would run. It asks first, and gets no answer."""
    (MADE / "model.js").write_text(MODEL)
    (MADE / "drizzle.config.js").write_text(CONFIG % setting)
    environment = {**os.environ, "DATABASE_URL": server.url("source")}
    said = _run("npx", "drizzle-kit", "push", cwd=MADE, env=environment, stderr=subprocess.STDOUT)
    assert ("No changes detected" in said) != ("You are about to execute" in said), said
    return re.findall(r"^((?:DROP|CREATE|ALTER) .*);$", said, re.MULTILINE)


def _is_protected(server, database):
    with psycopg.connect(server.url(database)) as db:
        return db.execute("SELECT target::text, open_by FROM fence_protected").fetchall() == [("accounts", [])]


def _install():
    """Gets what is missing: Ruby and Rails of this system with apt-get, the newer Rails and drizzle-kit into target/."""
    if not _there("ruby", "-e", "require 'active_record'; require 'pg'"):
        as_root = [] if os.geteuid() == 0 else ["sudo"]
        _run(*as_root, "apt-get", "-qq", "update")
        options = ("-qq", "-o", "DPkg::Lock::Timeout=300", "install", "--yes", "--no-install-recommends")
        _run(*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *options, "ruby", "ruby-activerecord", "ruby-pg")
    fetch.fetch("rails-7.2")
    if not (MADE / "node_modules" / "drizzle-kit").exists():
        _run("npm", "install", "--no-audit", "--no-fund", "--no-save", "--loglevel=error", "--prefix", MADE, *NPM_PACKAGES)


def _there(*command):
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command, **kwargs):
    """What it prints to its standard output."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=600, **kwargs)
    if done.returncode != 0:
        sys.exit(f"schema_tools: `{command[0]}` ended with status {done.returncode}: {done.stdout}")
    return done.stdout


main()
