"""What `make bench` makes of its measures: ratios, verdicts, the comparison with the baseline, the files that it writes."""

import json
import re

import pytest

from bench import __main__ as bench
from bench import charts, report
from bench.redis_works import Kept
from bench.works import Work, measure
from harness import places


def work(ours, peer, **how):
    """A work whose sides give these values in turn."""
    return Work("work", "CPU", 1.2, 1.1, iter(ours).__next__, iter(peer).__next__, **{"rounds": len(ours), **how})


def record(ratio, unit="CPU", at_least=False, target=1.0):
    return {"name": "work", "unit": unit, "ratio": ratio, "at_least": at_least, "target": target}


def test_a_figure_is_the_median_of_the_rounds_ratios_and_not_the_ratio_of_the_medians():
    result = measure(work([1, 4, 30], [1, 1, 10]), most_rounds=99)
    assert result.ratio == 3


def test_rounds_can_be_capped():
    assert len(measure(work([1, 1, 1], [1, 1, 1]), most_rounds=2).ours) == 2


def test_the_sides_take_turns_in_being_first():
    turns = []
    measure(Work("work", "CPU", 1, 1, lambda: turns.append("ours") or 1, lambda: turns.append("peer") or 1, rounds=3), 99)
    assert turns == ["ours", "peer", "peer", "ours", "ours", "peer"]


@pytest.mark.parametrize(
    ("ratio", "at_least", "verdict"),
    [
        (1.1, False, "stretch"),
        (1.2, False, "met"),
        (1.21, False, "MISSED"),
        (1.3, True, "stretch"),
        (1.2, True, "met"),
        (1.19, True, "MISSED"),
    ],
)
def test_a_verdict_tells_whether_the_limit_is_kept(ratio, at_least, verdict):
    stretch = 1.3 if at_least else 1.1
    result = measure(Work("work", "CPU", 1.2, stretch, lambda: ratio, lambda: 1, at_least=at_least), 1)
    assert result.verdict == verdict


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (record(1.14), None),
        (record(1.16), "worse by 16%"),
        (record(0.5), None),
        (record(1.03, "instructions"), None),
        (record(1.05, "instructions"), "worse by 5%"),
        (record(1.4, "time"), None),
        (record(1.6, "time"), "worse by 60%"),
        (record(1.6, "time", target=None), None),
        (record(3.0, "longest wait"), None),
        (record(0.6, "rows per second", at_least=True), "worse by 67%"),
        (record(2.0, "rows per second", at_least=True), None),
        (record(1.0, "memory"), "not in the baseline"),
    ],
)
def test_the_gate_fails_beyond_the_margin_of_the_unit(tmp_path, monkeypatch, capsys, now, said):
    baseline = tmp_path / "baseline.json"
    known = {f"work, {unit}": 1.0 for unit in ("CPU", "instructions", "time", "rows per second")}
    of_this_unit = {key: ratio for key, ratio in known.items() if key == f"work, {now['unit']}" and bench._is_judged(now)}
    baseline.write_text(json.dumps(of_this_unit))
    monkeypatch.setattr(bench, "BASELINE", baseline)
    assert bench._compare([now]) == (0 if said is None else 1)
    assert (said or "No ratio is worse") in capsys.readouterr().out


def test_the_gate_fails_when_a_work_of_the_baseline_is_not_measured(tmp_path, monkeypatch, capsys):
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps({"work, CPU": 1.0, "work, instructions": 1.0}))
    monkeypatch.setattr(bench, "BASELINE", baseline)
    assert bench._compare([record(1.0)]) == 1
    assert "work, instructions: in the baseline, and not measured" in capsys.readouterr().out


def test_a_second_figure_of_a_measure_is_of_the_same_rounds():
    rounds = iter([{"a": 1, "b": 10}, {"a": 2, "b": 20}, {"a": 3, "b": 30}])
    kept = Kept(lambda: next(rounds), "a")
    assert [kept(), kept()] == [1, 2]
    later = kept.later("b")
    assert [later(), later(), later()] == [10, 20, 30]


def test_the_files_have_every_work_with_its_limit(tmp_path):
    records = [measure(work([1.15], [1.0]), 1).record() for _ in range(2)]
    found = {"when": "2026-01-01", "cpu": "x", "cores": 2, "memory_gib": 4, "kernel": "6", "load_before": 0.1, "servers": ["s 1"]}
    report.write(tmp_path, "redis", found, records, minutes=3.2)
    assert json.loads((tmp_path / "redis.json").read_text()) == {"minutes": 3, **found, "works": records}
    row = r"^\| work \| CPU \| ≤ 1.2, 1.1 \| \*\*1.150\*\* \| met \|$"
    assert len(re.findall(row, (tmp_path / "redis.md").read_text(), re.M)) == 2


def kept(part):
    """The kept works of a part."""
    return json.loads((charts.HERE / f"{part}.json").read_text())["works"]


@pytest.mark.parametrize(("part", "chart"), [(part, chart) for part, all_ in charts.CHARTS.items() for chart in all_], ids=lambda one: getattr(one, "name", one))
def test_each_chart_answers_its_question_with_a_dozen_bars_at_most(tmp_path, part, chart):
    bars = charts.values(chart, kept(part))
    assert len(bars) == len(chart.bars) <= 12
    assert any(whose == charts.OURS for _, _, whose, _ in bars)
    # More does not fit into the picture.
    assert len(chart.question) <= 60 and all(len(label) <= 38 for _, label, _, _ in bars)
    charts.write(tmp_path, part, kept(part))
    assert (tmp_path / f"{chart.name}.svg").read_text() == (charts.HERE / f"{chart.name}.svg").read_text()
    assert f"({chart.name}.svg)" in (charts.HERE / "RESULTS.md").read_text()


def test_a_bar_of_a_peer_is_made_of_two_ratios_of_ours():
    def ratio(name, value):
        return {**record(value, "CPU"), "name": name}

    bars = (charts.Bar("g", "ours", charts.OURS, "a"), charts.Bar("g", "line", charts.PEER, None), charts.Bar("g", "peer", charts.PEER, "a", "b"))
    chart = charts.Chart("c", "?", "line", "CPU", bars)
    expected = [("g", "ours", "ours", 1.2), ("g", "line", "peer", 1.0), ("g", "peer", "peer", pytest.approx(3.0))]
    assert charts.values(chart, [ratio("a", 1.2), ratio("b", 0.4)]) == expected
    assert charts.values(chart, [ratio("b", 0.4)]) == []


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md", "pg_fence/README.md"])
def test_the_cost_of_claim_and_update_in_the_texts_is_the_measured_one(page):
    name = "claim + update against hand-written prepared statements, PostgreSQL 18"
    (measured,) = [work["ratio"] for work in kept("postgres") if work["name"] == name and work["unit"] == "instructions"]
    text = " ".join((places.ROOT / page).read_text().split())
    assert re.search(rf"{measured:.2f} (times the )?instructions", text)
