"""The laboratory measures what it says: small runs of its experiments, the trees of losses, and the committed results.

The whole of it is `make lab`; here a few seconds of it, and a minute with `long`.
"""

import json
import statistics

import pytest

from harness.places import ROOT
from lab import faults, losses, lost_commits, report
from lab.delays import WAYS, measure, summary
from lab.locks import CLAIMED, MODES
from lab.updates import Job, run, stall_plan
from seeds import seed

RESULTS = json.loads(report.RESULTS.read_text())
# Two of forty sections stall, in the middle: others still have something to write meanwhile.
STALLS = {"experiment": "stalls", "seed": "5", "sections": 40, "workers": 4, "stalling": 0.05}
FAILOVER = {
    "experiment": "failover",
    "seed": "1",
    "sections": 60,
    "work_ms": 100,
    "trouble": "failovers",
    "trouble_every_s": 1.5,
}
PAUSES = {
    "experiment": "set",
    "seed": "1",
    "sections": 20,
    "workers": 5,
    "lease_ms": 1_000,
    "work_ms": 500,
    "resource": "set",
    "trouble": "pauses",
    "trouble_every_s": 2.5,
    "pause_s": 1.8,
}


# --- small runs


def test_stalls_lose_updates_without_a_fence_and_the_log_explains_each():
    result, log = run(Job(mode="no fence", **STALLS))
    found = [event for event in log if "cause" in event]
    assert (result["stalls"], result["rejected"]) == (2, 0)
    assert result["lost"] == sum(len(loss["lost"]) for loss in found) > 0
    assert {"stall"} <= set(result["causes"]) <= {"stall", "slow"}
    assert any("stalled for" in loss["text"] for loss in found)


@pytest.mark.parametrize("mode", CLAIMED)
def test_the_same_stalls_lose_nothing_when_the_row_is_claimed_first(mode):
    result, log = run(Job(mode=mode, **STALLS))
    assert (result["stalls"], result["lost"], result["final"]) == (2, 0, 40)
    assert result["rejected"] >= 2
    assert not [event for event in log if "cause" in event]


@pytest.mark.long
def test_after_a_failover_of_postgresql_claim_first_builds_on_no_lost_write():
    for made in lost_commits.measure(seed(), 1, 4).values():
        print(made)
        assert made[0]["failovers"] > 0 and made[0]["acknowledged"] > 0
    assert made[0]["violations"] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("experiment", "mode"),
    [(FAILOVER, mode) for mode in MODES if mode != "PostgreSQL alone"] + [(PAUSES, mode) for mode in MODES],
    ids=lambda value: value if isinstance(value, str) else value["trouble"],
)
def test_failovers_and_pauses_lose_updates_unless_the_row_is_claimed_first(experiment, mode):
    result, _ = run(Job(mode=mode, **experiment))
    assert result["stalls"] >= 2
    if mode in CLAIMED:
        assert (result["lost"], result["rejected"] > 0) == (0, True)
    if mode == "no fence":
        assert result["lost"] > 0
    assert set(result["causes"]) <= {experiment["trouble"].removesuffix("s"), "slow"}


def test_every_human_fault_comes_out_as_it_must():
    assert faults.surprises(faults.run(lease_ms=600, short_s=0.3)) == []


@pytest.mark.long
def test_a_waiter_notices_a_release_sooner_than_any_poll():
    """The middle of a few trials: what a poll adds is far above what a busy machine does."""
    delays = measure("test", trials=20, rounds=0)["one waiter"]
    assert summary(delays["WAIT"])[0] < summary(delays["polling every 100 ms"])[0]
    assert {way: len(found) for way, found in delays.items()} == dict.fromkeys(WAYS, 20)


def test_the_plan_of_stalls_is_the_same_for_the_same_seed_and_of_the_size_that_was_asked_for():
    job = {"experiment": "overlap", "sections": 2_000, "stalling": 0.05, "stall_ms": (100, 300)}
    plans = [stall_plan(Job(mode=mode, seed="1", **job)) for mode in MODES]
    assert all(plan == plans[0] for plan in plans)
    assert plans[0] != stall_plan(Job(mode="no fence", seed="2", **job))
    assert len(plans[0]) == 100
    assert all(0.1 <= stall_s <= 0.3 for stall_s in plans[0].values())


# --- the tree of writes


def attempt(me, fence, based_on, wrote, *, granted=None, stalled=False):
    granted = fence if granted is None else granted
    return {
        "me": me,
        "pid": fence,
        "fence": fence,
        "granted": granted,
        "read": granted,
        "wrote": wrote,
        "based_on": based_on,
        "stalled": stalled,
        "accepted": True,
    }


def explained(attempts, last, troubles=()):
    return [(loss["lost"], loss["cause"]) for loss in losses.explain(attempts, last, troubles, lease_s=2)]


def test_writes_that_rest_on_each_other_are_no_loss():
    assert explained([attempt("a", 1, "", 2), attempt("b", 3, "a", 4)], "b") == []


def test_a_late_write_erases_all_that_was_written_since_it_read():
    stale = attempt("a", 1, "", 9, stalled=True)
    since = [attempt("b", 4, "", 5), attempt("c", 6, "b", 7)]
    assert explained([stale, *since], "a") == [(["b", "c"], "stall")]


def test_a_late_write_that_is_written_over_is_lost_itself():
    assert explained([attempt("a", 1, "", 5, stalled=True), attempt("b", 4, "", 6)], "b") == [(["a"], "stall")]


@pytest.mark.parametrize(
    ("late", "troubles", "cause"),
    [
        (attempt("a", 1, "", 2), [{"failover": 1.5}], "failover"),
        (attempt("a", 1, "", 6), [{"pid": 1, "from": 2, "to": 5}], "pause"),
        (attempt("a", 1, "", 4), [{"pid": 7, "from": 2, "to": 5}], "slow"),
    ],
)
def test_a_late_write_without_a_stall_has_another_cause(late, troubles, cause):
    assert explained([late, attempt("b", 1.8, "", 7)], "b", troubles) == [(["a"], cause)]


def test_a_loss_that_nothing_explains_is_an_error():
    with pytest.raises(AssertionError, match="nothing explains"):
        explained([attempt("a", 1, "", 2), attempt("b", 1.8, "", 7)], "b")


# --- the committed results


def test_the_committed_run_is_whole_and_claim_first_lost_nothing_in_it():
    assert (RESULTS["quick"], RESULTS["repeats"], RESULTS["failed"]) == (False, 5, [])
    for experiment in report.EXPERIMENTS:
        modes = [mode for mode in MODES if (experiment, mode) != ("failover", "PostgreSQL alone")]
        for mode in modes:
            assert len({one["seed"] for one in report.of(RESULTS, experiment, mode)}) == 5
        assert all(one["lost"] > 0 for one in report.of(RESULTS, experiment, "no fence"))
        assert all(one["lost"] == 0 for mode in CLAIMED for one in report.of(RESULTS, experiment, mode))
    assert all(len(found) == 2_000 for found in RESULTS["calls"].values())
    assert all(sum(one["causes"].values()) == one["lost"] for one in RESULTS["runs"])
    assert report.broken_promises(RESULTS) == faults.surprises(RESULTS["faults"]) == []


def test_in_the_committed_run_only_claim_first_built_on_no_lost_write():
    runs = RESULTS["lost commits"]["runs"]
    for mode, made in runs.items():
        assert len(made) == 5 and all(run["lost"] > 0 for run in made)
        assert (sum(run["violations"] for run in made) == 0) == (mode == "claim first")
    assert sum(run["outlived"] for run in runs["claim first"]) > 0
    wrong = {**RESULTS["lost commits"], "runs": {**runs, "claim first": runs["no fence"]}}
    assert len(report.broken_promises({**RESULTS, "lost commits": wrong})) == 1


def test_a_run_in_which_claim_first_loses_is_a_failure():
    runs = [{**one, "lost": 1} if one["mode"] == "claim first" else one for one in RESULTS["runs"]]
    assert len(report.broken_promises({**RESULTS, "runs": runs})) == 5 * len(report.EXPERIMENTS)


@pytest.mark.parametrize("page", report.PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tables_of_the_pages_are_made_from_the_committed_results(page):
    text = page.read_text()
    assert "<!-- from results.json" in text
    assert report.filled(text, RESULTS) == text


def test_the_page_shows_each_plot_with_the_command_that_draws_it():
    text = (ROOT / "docs" / "stalls.md").read_text()
    assert "make lab" in text
    for name in ("lost", "notice", "tick"):
        assert f"(../tools/lab/plots/{name}.svg)" in text
        for kind in ("svg", "png"):
            assert (ROOT / "tools" / "lab" / "plots" / f"{name}.{kind}").stat().st_size > 5_000


def lost(experiment, mode):
    """The median of the updates that were lost."""
    return statistics.median(one["lost"] for one in report.of(RESULTS, experiment, mode))


def test_the_figures_in_the_texts_are_those_of_the_committed_results():
    readme = " ".join((ROOT / "README.md").read_text().split())
    stalls = "{:,.0f} lost without a fence, {:.0f} with a check at the write, {:.0f} with claim first"
    assert stalls.format(*(lost("stalls 5%", mode) for mode in MODES)) in readme
    objections = " ".join((ROOT / "docs" / "objections.md").read_text().split())
    overlap = "a check at the write lost {:.0f} updates".format(lost("overlap", "write-only"))
    assert overlap in objections and lost("overlap", "claim first") == 0
    assert "{:.0f} of 100 elements".format(lost("set", "no fence")) in objections and lost("set", "claim first") == 0
