# SPDX-License-Identifier: MIT
"""The chart of bench/peers_run: a row for each pattern, a mark for each subject, a logarithmic axis.

Ours are filled circles, in another mode hollow ones; peers are diamonds, bare stacks vertical
strokes; a thin line spans the rounds.
Colours change with the reader's light or dark scheme; shape and order tell the subjects apart where
colour does not.
"""
import math
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, ROW, TOP = 1000, 270, 50, 34, 96
LEGEND_COLS, LEGEND_ROW = 5, 20

# (light, dark) by kind; chosen to keep their distance on both grounds
COLOURS = {
    "ours": [("#0b6bcb", "#5cb2ff"), ("#067a6f", "#35d0bf"), ("#7a3fc4", "#c39bff"),
             ("#1b1f24", "#f0f6fc"), ("#31539a", "#9db8f5"), ("#3f6212", "#c5e08b")],
    "peer": [("#c2410c", "#ff9a5c"), ("#b3124c", "#ff7fa8"), ("#8a6100", "#e8c14a"),
             ("#4d7c0f", "#a5d65a"), ("#6b4a2b", "#d0a77f")],
    "limit": [("#8b949e", "#6e7681"), ("#1b1f24", "#f0f6fc"), ("#59636e", "#a9b4bf"),
              ("#a1a1aa", "#52525b")],
}


def style(subjects):
    """Class cN is the colour of subject N."""
    pick, seen = [], {}
    for s in subjects:
        row = COLOURS[s["kind"]]
        pick.append(row[seen.get(s["kind"], 0) % len(row)])
        seen[s["kind"]] = seen.get(s["kind"], 0) + 1

    def rules(i):
        return "".join(f".c{k}{{color:{c[i]}}}" for k, c in enumerate(pick))
    return ("<style>svg{background:#fff;color:#1b1f24;font:13px system-ui,sans-serif}"
            ".grid{stroke:#d8dde3}text{fill:currentColor}text.dim{fill:#59636e}" + rules(0) +
            "@media (prefers-color-scheme:dark){svg{background:#0d1117;color:#e6edf3}"
            ".grid{stroke:#30363d}text.dim{fill:#9aa4af}" + rules(1) + "}</style>")


def mark(subject, x, y):
    kind = subject["kind"]
    if kind == "ours" and subject.get("other_mode"):
        return (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="none" stroke="currentColor" '
                'stroke-width="2"/>')
    if kind == "ours":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="currentColor"/>'
    if kind == "peer":
        return (f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="none" stroke="currentColor" '
                'stroke-width="2"/>')
    return f'<path d="M{x:.1f} {y - 8:.1f}v16" stroke="currentColor" stroke-width="2.5"/>'


def legend(subjects, top):
    out = []
    step = (WIDTH - 40) / LEGEND_COLS
    for i, s in enumerate(subjects):
        x, y = 30 + i % LEGEND_COLS * step, top + i // LEGEND_COLS * LEGEND_ROW
        out.append(f'<g class="c{i}">{mark(s, x, y)}</g>'
                   f'<text x="{x + 12:.0f}" y="{y + 4:.0f}">{escape(s["title"])}</text>')
    return out


def axis(low, high, x_of, top, bottom):
    out = []
    for decade in range(low, high + 1):
        x = x_of(10 ** decade)
        out.append(f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>'
                   f'<text class="dim" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">'
                   f'{10 ** decade:,} ns</text>')
    return out


def chart(report):
    key = "cpu_ns" if report["settings"]["metric"] == "cpu" else "ns"
    patterns = [p for p in report["patterns"] if p["results"]]
    subjects = [s for s in report["subjects"] if any(s["name"] in p["results"] for p in patterns)]
    values = [r[key][k] for p in patterns for r in p["results"].values() for k in ("min", "max")]
    values = [v for v in values if v > 0] or [1]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    top = TOP + (len(subjects) - 1) // LEGEND_COLS * LEGEND_ROW
    bottom = top + ROW * len(patterns)

    def x_of(v):
        part = (math.log10(max(v, 10 ** low)) - low) / (high - low)
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 30}" '
           'role="img" aria-label="Cost of a pair of calls by allocator and pattern">',
           style(subjects),
           f'<text x="20" y="28" font-size="17" font-weight="600">One block taken and given back: '
           f'{"CPU time" if key == "cpu_ns" else "time"}, less is better</text>',
           f'<text class="dim" x="20" y="48">{escape(report["machine"]["date"])}, medians of '
           f'{report["settings"]["rounds"]} rounds; lines span the rounds</text>']
    out += legend(subjects, 72) + axis(low, high, x_of, top - 8, bottom)
    for row, p in enumerate(patterns):
        y = top + ROW * row + ROW / 2
        out.append(f'<path class="grid" d="M20 {y + ROW / 2:.1f}H{WIDTH - RIGHT}"/>'
                   f'<text x="20" y="{y + 4:.1f}">{escape(p["text"])}</text>')
        for i, s in enumerate(subjects):
            r = p["results"].get(s["name"])
            if not r:
                continue
            a, b, m = (x_of(r[key][k]) for k in ("min", "max", "median"))
            out.append(f'<g class="c{i}"><title>{escape(s["title"])}, {escape(p["text"])}: '
                       f'{r[key]["median"]:.1f} ns</title><path d="M{a:.1f} {y:.1f}H{b:.1f}" '
                       f'stroke="currentColor" opacity=".5"/>{mark(s, m, y)}</g>')
    return "\n".join(out + ["</svg>"]) + "\n"
