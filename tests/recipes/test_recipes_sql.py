"""The SQL examples that users copy: each file is run as it stands, and prints what it says that it prints."""

import re
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.types.json import Jsonb

from harness import places

EXAMPLES = places.ROOT / "sql" / "examples"
FILES = sorted(path.name for path in EXAMPLES.glob("*.sql"))


def parts(text):
    """The statements up to each block of `-- =>` lines, with the lines that they should print."""
    found, is_told = [([], [])], False
    for line in text.splitlines():
        if line.startswith("-- =>"):
            is_told = True
            found[-1][1].append(line.removeprefix("-- =>"))
            continue
        if is_told:
            found.append(([], []))
            is_told = False
        found[-1][0].append(line)
    return [("\n".join(statements), printed(lines)) for statements, lines in found]


def printed(lines):
    """Lines without what differs between terminals, where in a function it was, and empty ones."""
    said = (" ".join(re.sub(r"^psql:\S+ ", "", line).split()) for line in lines)
    return [line for line in said if line and not line.startswith("CONTEXT:")]


@pytest.mark.parametrize("name", FILES)
def test_an_example_prints_what_it_says(pg, dsn, name):
    told = parts((EXAMPLES / name).read_text())
    assert len(told) > 5
    script = "\n".join(f"{statements}\n\\echo @@" for statements, _ in told)
    said = pg.psql(f"\\set ON_ERROR_STOP off\n{script}", psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
    pieces = [printed(piece.splitlines()) for piece in said.split("@@")]
    assert list(zip([statements for statements, _ in told], pieces, strict=False)) == told


@pytest.fixture
def jobs(db):
    """The table of the job queue with 60 jobs that are ready."""
    text = (EXAMPLES / "job_queue.sql").read_text()
    db.execute(text[: text.index("INSERT INTO jobs")].encode())
    db.execute("INSERT INTO jobs (payload) SELECT to_jsonb(n) FROM generate_series(1, 60) n")
    return db


def test_many_workers_pick_each_job_once_and_wait_for_nobody(jobs, connect):
    """A worker holds a picked row in an open transaction all the while: SKIP LOCKED passes over it."""
    stuck = connect()
    stuck.execute("BEGIN")
    held = stuck.execute("SELECT id FROM pick_job('1 minute')").fetchone()

    def work(_):
        picked, worker = [], connect()
        worker.execute("SET lock_timeout = '25s'")
        while job := worker.execute("SELECT id, fence FROM pick_job('1 minute')").fetchone():
            assert worker.execute("SELECT fenced_update('jobs', %s, %s, '{\"state\": \"done\"}')", job).fetchone() == (True,)
            picked.append(job)
        return picked

    with ThreadPoolExecutor(4) as threads:
        picked = [job for jobs_of_one in threads.map(work, range(4)) for job in jobs_of_one]
    assert sorted(job for job, _ in picked) == [job for job in range(1, 61) if job != held[0]]
    assert len({fence for _, fence in picked}) == 59
    stuck.execute("ROLLBACK")
    assert jobs.execute("SELECT count(*) FROM jobs WHERE state = 'ready'").fetchone() == (1,)


def test_a_job_whose_worker_is_late_has_one_completion_and_that_is_the_newest_workers(jobs, connect):
    late, newer = connect(), connect()
    jobs.execute("DELETE FROM jobs WHERE id > 1")
    first = late.execute("SELECT fence FROM pick_job('0 seconds')").fetchone()[0]
    second = newer.execute("SELECT fence FROM pick_job('0 seconds')").fetchone()[0]
    done = "SELECT fenced_update('jobs', 1, %s, %s)"
    # Both complete at once: the newer one is first, and has not committed yet.
    newer.execute("BEGIN")
    assert newer.execute(done, (second, Jsonb({"state": "done", "result": "newer"}))).fetchone() == (True,)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: late.execute(done, (first, Jsonb({"state": "done", "result": "late"}))).fetchone())
        newer.execute("COMMIT")
        assert waiting.result(60) == (False,)
    assert jobs.execute("SELECT result, attempts FROM jobs").fetchall() == [("newer", 2)]


def test_a_job_whose_pick_a_fail_over_has_lost_is_completed_once(jobs, connect):
    """The promoted server knows nothing of the last pick: neither the row nor, where there is one, the sequence."""
    jobs.execute("DELETE FROM jobs WHERE id > 1")
    jobs.execute("CREATE TABLE kept AS SELECT * FROM jobs; CREATE TABLE sequences AS SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public'")
    before = connect().execute("SELECT fence FROM pick_job('1 minute')").fetchone()[0]
    jobs.execute("UPDATE jobs SET state = kept.state, run_until = NULL, attempts = 0, fence = kept.fence FROM kept WHERE jobs.id = kept.id")
    jobs.execute("SELECT setval(sequencename::regclass, coalesce(last_value, 1), last_value IS NOT NULL) FROM sequences")
    after = connect().execute("SELECT fence FROM pick_job('1 minute')").fetchone()[0]
    done = "SELECT fenced_update('jobs', 1, %s, %s)"
    answers = [connect().execute(done, (fence, Jsonb({"state": "done"}))).fetchone()[0] for fence in (before, after)]
    assert answers == [False, True]


def test_holders_of_a_ledger_post_one_after_the_other_and_a_stale_one_posts_nothing(db, connect):
    text = (EXAMPLES / "ledger.sql").read_text()
    db.execute(text[: text.index("-- Holder 41")].encode())

    def post(fence):
        posted, holder = 0, connect()
        for _ in range(20):
            try:
                posted += bool(holder.execute("SELECT post('acme', 1, %s)", (fence,)).fetchone())
            except psycopg.Error as error:
                assert error.sqlstate == "LF001"
        return posted

    with ThreadPoolExecutor(4) as threads:
        posted = list(threads.map(post, (41, 42, 43, 44)))
    assert posted[-1] == 20, "the newest is never refused"
    entries = db.execute("SELECT count(*)::int, max(version)::int, sum(amount)::int FROM entries").fetchone()
    assert entries == (sum(posted),) * 3
    assert db.execute("SELECT version::int, balance::int, fence::int FROM ledgers").fetchone() == (sum(posted), sum(posted), 44)


def test_increments_of_several_holders_at_once_lose_none(db, connect):
    """The statement of the example itself, from sessions that hold the lock one after the other, each with stragglers."""
    text = (EXAMPLES / "increments.sql").read_text()
    db.execute(text[: text.index("-- Claim once")].encode())
    (add,) = {line for line in text.splitlines() if line.startswith("UPDATE counters") and "fence = 41" in line}

    def hold(fence):
        added, holder = 0, connect()
        holder.execute("SELECT FROM fenced_claim(NULL::counters, 1, %s)", (fence,))
        for _ in range(30):
            added += holder.execute(add.replace("41", str(fence))).rowcount
        return added

    with ThreadPoolExecutor(4) as threads:
        added = list(threads.map(hold, (41, 42, 43, 44)))
    assert db.execute("SELECT value, fence FROM counters WHERE id = 1").fetchone() == (sum(added), 44)
    assert added[-1] == 30


def test_the_readme_names_every_example_and_each_begins_with_what_it_is_for():
    section = (places.ROOT / "pg_fence" / "README.md").read_text().split("## Recipes\n")[1].split("\n## ")[0]
    named = re.findall(r"\[(\w+\.\w+)\]\(\.\./sql/examples/\1\)", section)
    files = sorted(path.name for path in EXAMPLES.iterdir() if path.is_file())
    assert sorted(named) == files
    for name in files:
        assert (EXAMPLES / name).read_text().startswith("-- " if name.endswith(".sql") else '"""'), name
