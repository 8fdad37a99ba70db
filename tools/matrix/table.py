"""The table of servers in docs/servers.md, made from results.json: `python3 -m matrix.table` writes it anew."""

import datetime

from harness import places
from matrix import results
from matrix.cells import CELLS, OTHERS

PAGE = places.ROOT / "docs" / "servers.md"
BEGIN, END = "<!-- written by `make test-matrix` -->\n", "<!-- end -->\n"


def main():
    """Write the table into the page."""
    PAGE.write_text(replaced(PAGE.read_text(), markdown(results.read())))


def markdown(seen):
    """The table as Markdown."""
    rows = [("server", "", "seen")]
    rows += [(f"{cell.product} {cell.version}", *verdict(cell, seen.get(cell.name))) for cell in CELLS]
    rows += [(f"{product} {versions}", said, why) for product, versions, said, why in OTHERS]
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]
    return "\n".join([lines[0], "|---|---|---|", *lines[1:]]) + "\n"


def verdict(cell, result):
    """Tested, expected or no, and why."""
    if result is None:
        return "expected", "not run yet"
    day = datetime.date.fromisoformat(result["date"]).strftime("%-d %b %Y")
    if result["result"] == "not run":
        return "expected", f"not run on {day}: {result['reason']}"
    if result["result"] == "passed":
        again = f" ({len(result['failed_once'])} of them at the second try)" if result.get("failed_once") else ""
        return "tested", f"{result['version']} ({result['source']}), {result['tests']:,} tests passed on {day}{again}"
    count = len(result.get("failed", ()))
    return "no", f"{result['version']} ({result['source']}): " + (result.get("reason") or f"{count} tests failed on {day}")


def replaced(text, made):
    """The README with this table between the two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{made}{END}{after}"


if __name__ == "__main__":
    main()
