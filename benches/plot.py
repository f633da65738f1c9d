"""Line plots on two log axes, as small SVG files that are the same each time they are drawn from the same numbers.

    from plot import log_plot
    log_plot("latency.svg", "allreduce, shm", "bytes", "us", {"Phalanx": [(8, 0.2), (64, 0.3)]})

Needs matplotlib; ffi/python/tests/requirements.txt names the version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

Points = Sequence[tuple[float, float]]

# Told apart by eyes that see few colours, too; each has a marker of its own besides.
COLOURS = ["#0b5fa5", "#d1495b", "#2e933c", "#e08e0b", "#7b4fa3", "#4d4d4d", "#17a2b8", "#8c564b"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]

BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"]


def name_bytes(size: float) -> str:
    """A number of bytes in the largest unit in which it is whole."""
    unit = 0
    while size >= 1024 and size % 1024 == 0 and unit + 1 < len(BYTE_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{size:g} {BYTE_UNITS[unit]}"


def clean(points: Points) -> list[tuple[float, float]]:
    """In order of x, without what has no place on a log axis."""
    return sorted((x, y) for x, y in points if x > 0 and y > 0)


def log_plot(
    path: str | Path,
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Points],
    limits: Mapping[str, Points] | None = None,
) -> None:
    """Draws every series as a line with markers and every limit as a dashed grey line, and writes `path` as SVG.

    Points are (x, y); those that are not above zero are left out, as is a series without any other. An x axis whose
    label begins with "bytes" has its ticks at the sizes drawn, in KiB and MiB. Raises ValueError if there is nothing to
    draw.
    """
    import matplotlib

    # Text stays text: a tenth of the size, and it can be searched. The salt makes the same names in every file. One
    # family of letters: every piece of text would name all that matplotlib knows.
    fonts = {"font.size": 9, "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"]}
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "phalanx", **fonts})
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    drawn = {name: clean(points) for name, points in series.items()}
    bounds = {name: clean(points) for name, points in (limits or {}).items()}
    if not any(drawn.values()):
        raise ValueError(f"{title}: no series has a point above zero")
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x_label, ylabel=y_label, xscale="log", yscale="log")
    for number, (name, points) in enumerate(drawn.items()):
        if points:
            style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
            axes.plot(*zip(*points, strict=True), label=name, linewidth=1.4, markersize=4, **style)
    for number, (name, points) in enumerate(bounds.items()):
        if points:
            dashes = (0, (4 + 2 * number, 2))
            axes.plot(*zip(*points, strict=True), label=name, linewidth=1.2, color="#888888", linestyle=dashes)
    if x_label.startswith("bytes"):
        sizes = sorted({x for points in [*drawn.values(), *bounds.values()] for x, _ in points})
        # More than a dozen labels would touch each other.
        axes.xaxis.set_major_locator(FixedLocator(sizes[:: -(-len(sizes) // 12)]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: name_bytes(size)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.tick_params(axis="x", labelrotation=30)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(which="major", linewidth=0.4, alpha=0.5)
    axes.legend(frameon=False, fontsize=8)
    metadata = {"Date": None, "Creator": None, "Title": title}
    drawing = StringIO()
    figure.savefig(drawing, format="svg", metadata=metadata)
    # Indentation is a fifth of it.
    lines = [line.strip() for line in drawing.getvalue().splitlines()]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
