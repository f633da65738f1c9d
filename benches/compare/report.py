"""How results are shown: tables in Markdown, a CSV file, plots, and a page whose marked part is written anew."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from contenders import Figure
from sweep import LIMITS, Outcome, Verdict

from plot import name_bytes

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

# What algbw is multiplied by to be busbw, as nccl-tests defines it: by the number of ranks.
SHARED = ("allgather", "reduce_scatter", "alltoall")


def bus_factor(collective: str, ranks: int) -> float:
    others = (ranks - 1) / ranks
    return 2 * others if collective == "allreduce" else others if collective in SHARED else 1.0


def bandwidth(size: int, figure: Figure) -> float:
    """algbw in GB/s (10^9 bytes a second)."""
    return size / figure.p50 / 1e3


def show_time(us: float) -> str:
    return f"{us:.0f}" if us >= 100 else f"{us:.3g}"


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def sweep_table(outcome: Outcome) -> str:
    """Median and 99th percentile of each, busbw and share of the limit of Phalanx, and ratios to the peers."""
    names, work = outcome.names(), outcome.group.work
    own = [name for name in names if name.startswith("Phalanx")]
    peers = [name for name in names if name not in own and name not in LIMITS.values()]
    pairs = [(mine, peer) for mine in own for peer in peers]
    heads = ["size", *(f"{name}, us (p99)" for name in names)]
    moving = [] if work.collective == "barrier" else own
    heads += [f"{name}, busbw GB/s" for name in moving]
    limits = [(name, LIMITS[name]) for name in own if LIMITS[name] in names]
    heads += [f"{name}, share of {limit}" for name, limit in limits]
    heads += [f"{mine.removeprefix('Phalanx ')} / {peer}" for mine, peer in pairs]
    rows = []
    for size in work.sizes:
        figures = {name: outcome.figure(name, size) for name in names}
        row = ["" if work.collective == "barrier" else name_bytes(size)]
        row += [f"{show_time(figure.p50)} ({show_time(figure.p99)})" for figure in figures.values()]
        factor = bus_factor(work.collective, work.ranks)
        row += [f"{bandwidth(size, figures[name]) * factor:.3g}" for name in moving]
        row += [f"{100 / outcome.ratio(name, limit, size):.0f} %" for name, limit in limits]
        row += [f"{outcome.ratio(mine, peer, size):.2f}" for mine, peer in pairs]
        rows.append(row)
    return f"### {outcome.group.title}\n\n{table(heads, rows)}"


def verdict_table(verdicts: list[Verdict]) -> str:
    words = {True: "met", False: "**not met**", None: ""}
    rows = []
    for verdict in verdicts:
        said = "beyond" if verdict.met and verdict.beyond else words[verdict.met]
        rows.append([verdict.what, verdict.wanted, verdict.measured, said])
    return table(["work", "bar", "measured", ""], rows)


def write_csv(path: Path, outcomes: list[Outcome], verdicts: list[Verdict]) -> None:
    """One line for each contender, size and round; then one for each bar."""
    heads = ["kind", "collective", "ranks", "group", "contender", "bytes", "round", "p50_us", "p99_us"]
    heads += ["algbw_gbs", "busbw_gbs", "bar", "measured", "met"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        for outcome in outcomes:
            work = outcome.group.work
            factor = bus_factor(work.collective, work.ranks)
            for number, figures in enumerate(outcome.rounds, 1):
                for name, sizes in figures.items():
                    for size, figure in sizes.items():
                        algbw = bandwidth(size, figure)
                        place = ["time", work.collective, work.ranks, outcome.group.title, name, size, number]
                        speed = [f"{algbw:.6g}", f"{algbw * factor:.6g}", "", "", ""]
                        writer.writerow([*place, figure.p50, figure.p99, *speed])
        for verdict in verdicts:
            met = {True: "yes", False: "no", None: ""}[verdict.met]
            writer.writerow(["bar", "", "", verdict.what, *[""] * 7, verdict.wanted, verdict.measured, met])


def file_name(outcome: Outcome, what: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", outcome.group.title.lower()) + f"-{what}.svg"


def write_plots(folder: Path, outcomes: list[Outcome]) -> list[str]:
    """Latency and bus bandwidth of each sweep; returns the names of the files."""
    from plot import log_plot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for outcome in outcomes:
        work, title = outcome.group.work, outcome.group.title
        if len(work.sizes) < 2:
            continue
        factor = bus_factor(work.collective, work.ranks)
        latency = {n: [(float(s), outcome.figure(n, s).p50) for s in work.sizes] for n in outcome.names()}
        speed = {
            n: [(float(s), bandwidth(s, outcome.figure(n, s)) * factor) for s in work.sizes] for n in outcome.names()
        }
        for what, label, lines in (("latency", "us, median", latency), ("bandwidth", "busbw, GB/s", speed)):
            limits = {name: points for name, points in lines.items() if name in LIMITS.values()}
            series = {name: points for name, points in lines.items() if name not in LIMITS.values()}
            name = file_name(outcome, what)
            log_plot(folder / name, title, "bytes", label, series, limits)
            written.append(name)
    return written


def write_page(page: Path, text: str) -> None:
    """Puts `text` between the page's marks. Raises ValueError if it has none."""
    old = page.read_text(encoding="utf-8")
    begin, end = old.find(BEGIN), old.find(END)
    if begin < 0 or end < begin:
        raise ValueError(f"{page} has no lines {BEGIN} and {END}, between which figures are written")
    page.write_text(old[: begin + len(BEGIN)] + "\n\n" + text.strip() + "\n\n" + old[end:], encoding="utf-8")
