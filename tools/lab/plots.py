"""The three plots, as SVG and PNG: `python -m lab.plots results.json FOLDER`. Needs requirements.txt of this folder."""

import json
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
# The same results give the same file.
matplotlib.rcParams.update({"svg.hashsalt": "lab", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False})

from matplotlib import pyplot

from .delays import ARRIVALS, WAYS, summary
from .locks import MODES
from .report import of

COLOURS = ("#c0392b", "#e0a030", "#2e7d4f", "#8fbf9f")
STALLS = ("stalls 0.1%", "stalls 1%", "stalls 5%")
OTHERS = ("overlap", "set", "failover")


def main(arguments):
    """Draw all plots."""
    results, folder = json.loads(Path(arguments[0]).read_text()), Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (("lost", lost), ("notice", notice), ("tick", tick)):
        figure = draw(results)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        figure.savefig(folder / f"{name}.png", dpi=120)
        pyplot.close(figure)
    return 0


def lost(results):
    """Lost updates against the stall rate, and in the experiments where the work is long."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    _lost_in(left, results, STALLS, [name.removeprefix("stalls ") for name in STALLS])
    _lost_in(right, results, OTHERS, OTHERS)
    left.set_xlabel("sections that stall for 1.5 leases; 5 ms of work, lease 200 ms")
    right.set_xlabel("work of half a lease")
    left.set_ylabel("lost updates, % of the sections")
    left.legend(frameon=False)
    return figure


def _lost_in(axes, results, experiments, labels):
    """Bars of the medians, with the range over the repeats."""
    for number, (mode, colour) in enumerate(zip(MODES, COLOURS, strict=True)):
        for place, experiment in enumerate(experiments):
            shares = [100 * run["lost"] / run["sections"] for run in of(results, experiment, mode)]
            if not shares:
                continue
            middle = statistics.median(shares)
            reach = [[middle - min(shares)], [max(shares) - middle]]
            at = place + 0.21 * (number - 1.5)
            axes.bar(at, middle, 0.19, color=colour, yerr=reach, capsize=2, label=None if place else mode)
            axes.annotate(f"{middle:.3g}", (at, max(shares)), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    axes.set_xticks(range(len(experiments)), labels)


def notice(results):
    """How long one waiter needs to notice a release: the share of the trials against the time."""
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for (way, delays), colour in zip(results["delays"]["one waiter"].items(), reversed(COLOURS[:3]), strict=True):
        shares = [100 * (number + 1) / len(delays) for number in range(len(delays))]
        axes.step(sorted(delays), shares, where="post", color=colour, label=f"{way}: median {summary(delays)[0]:.1f} ms")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("from the release to the waiter's grant, ms")
    axes.set_ylabel("% of the releases")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def tick(results):
    """Eight waiters: the time from a release to the next grant, median and up to the 95th percentile."""
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for number, (arrival, colour) in enumerate(zip(ARRIVALS, ("#34608f", "#8fb3d9"), strict=True)):
        for place, way in enumerate(WAYS):
            middle, high = summary(results["delays"]["eight waiters"][way][arrival])
            at = place + 0.36 * (number - 0.5)
            label = None if place else arrival
            axes.bar(at, middle, 0.34, color=colour, yerr=[[0], [high - middle]], capsize=3, label=label)
            axes.annotate(f"{middle:.1f}", (at - 0.02, middle), (0, 2), textcoords="offset points", ha="right", fontsize=8)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0.1)
    axes.set_xticks(range(len(WAYS)), WAYS)
    axes.set_ylabel("from a release to the next grant, ms\n(median, and the 95th percentile)")
    axes.set_title("Eight waiters that come ...", fontsize=10)
    axes.legend(frameon=False, loc="upper left")
    return figure


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
