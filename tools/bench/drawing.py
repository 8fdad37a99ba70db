"""Draws a chart of horizontal bars as SVG, as wide as a page shows it. Knows nothing of what was measured."""

import html
from itertools import groupby

_COLOURS = {"ours": "#1a7f37", "peer": "#59636e", "floor": "#b6bec7"}
_WIDTH, _MARGIN, _NAMES, _VALUES = 760, 16, 330, 60
_SCALE = _WIDTH - _NAMES - _VALUES - _MARGIN
_HEAD, _HEADING, _ROW, _FOOT = 60, 30, 24, 36
# A longer bar is cut off there, so that the others stay readable.
_LONGEST = 4.0


def bars(question, subtitle, rows):
    """The picture of the rows: group, label, whose, value. A line runs at 1. A group without a name has no heading."""
    groups = [(name, list(of)) for name, of in groupby(rows, key=lambda row: row[0])]
    height = _HEAD + _HEADING * sum(1 for name, _ in groups if name) + _ROW * len(rows) + _FOOT
    shown = max(1.0, *(min(value, _LONGEST) for *_, value in rows))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" role="img"',
        'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="14" fill="#1f2328">',
        f"<title>{html.escape(question)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_MARGIN}" y="26" font-size="18" font-weight="bold">{html.escape(question)}</text>',
        f'<text x="{_MARGIN}" y="48" fill="#59636e">{html.escape(subtitle)}</text>',
    ]
    line = _NAMES + _SCALE / shown
    bottom = height - _FOOT + 4
    parts.append(f'<line x1="{line:.1f}" x2="{line:.1f}" y1="{_HEAD}" y2="{bottom}" stroke="#1f2328" stroke-dasharray="3 3"/>')
    top = _HEAD
    for name, of in groups:
        if name:
            parts.append(f'<text x="{_MARGIN}" y="{top + 21}" font-weight="bold" fill="#59636e">{html.escape(name)}</text>')
            top += _HEADING
        for _, label, whose, value in of:
            parts += _bar(top, label, whose, value, _SCALE / shown)
            top += _ROW
    return "\n".join([*parts, *_legend(bottom, [row[2] for row in rows]), "</svg>"]) + "\n"


def _bar(top, label, whose, value, scale):
    weight = ' font-weight="bold"' if whose == "ours" else ""
    length = min(value, _LONGEST) * scale
    end = _NAMES + length
    yield f'<text x="{_NAMES - 8}" y="{top + 17}" text-anchor="end"{weight}>{html.escape(label)}</text>'
    yield f'<rect x="{_NAMES}" y="{top + 3}" width="{length:.1f}" height="{_ROW - 6}" fill="{_COLOURS[whose]}"/>'
    if value > _LONGEST:
        yield f'<path d="M{end - 22:.1f} {top + _ROW} l6 -{_ROW} h6 l-6 {_ROW} z" fill="white"/>'
    text = f"{value:.2f}"
    # White behind the figure keeps it readable where the line runs through it.
    yield f'<rect x="{end + 4:.1f}" y="{top + 2}" width="{9 * len(text) + 4}" height="{_ROW - 4}" fill="white"/>'
    yield f'<text x="{end + 8:.1f}" y="{top + 17}"{weight}>{text}</text>'


def _legend(bottom, present):
    left = _NAMES
    for whose in _COLOURS:
        if whose in present:
            yield f'<rect x="{left}" y="{bottom + 10}" width="12" height="12" fill="{_COLOURS[whose]}"/>'
            yield f'<text x="{left + 18}" y="{bottom + 21}">{whose}</text>'
            left += 90
