"""The tables of a results file: what the run prints at its end, and what `results.py` keeps.

    table.py FILE     prints the tables of a recorded results file
"""

import json
import pathlib
import sys

from judge import curve_distance, is_number, problem

NONE = "–"


def number(value, digits=None):
    """A number as a person reads it; three digits when nothing else is asked."""
    if not is_number(value):
        return NONE
    if digits is None:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def percent(share, digits=0):
    return f"{share * 100:.{digits}f} %" if is_number(share) else NONE


def gigabytes(count):
    return f"{count / 1e9:.1f} GB" if is_number(count) else NONE


def ratio(a, b):
    return a / b if is_number(a) and is_number(b) and b else None


def rows_of(results, section, by=None):
    """The rows of a section that were measured, with what was left out of it."""
    parts = [part for part in results["parts"] if part["section"] == section and by in (None, part["by"])]
    return [row for part in parts for row in part["rows"]]


def ceilings(results):
    """(bytes a second, bf16 FLOP/s) measured in the same run; None for what was not."""
    rows = [row for row in rows_of(results, "ceilings") if is_number(row.get("value")) and problem(row) is None]
    best = lambda unit: max((row["value"] for row in rows if row.get("unit") == unit), default=None)
    copy, matrix = best("GB/s"), best("TFLOP/s")
    return copy and copy * 1e9, matrix and matrix * 1e12


def floor_us(row, copy, matrix):
    """Microseconds that bytes and FLOPs take at the measured ceilings; as the row says where there are none."""
    times = [ratio(row.get("bytes"), copy), ratio(row.get("flops"), matrix)]
    if copy and matrix and any(is_number(time) for time in times):
        return max(time for time in times if is_number(time)) * 1e6
    return row.get("floor_us")


def share_of_ceiling(row, matrix):
    """Useful FLOP/s of a training step over the measured matrix rate."""
    flops = row.get("tokens_per_s"), row.get("flops_per_token")
    return ratio(flops[0] * flops[1], matrix) if all(map(is_number, flops)) else None


def notes(row):
    words = [row.get("note") or "", f"skipped: {row['skipped']}" if "skipped" in row else ""]
    wrong = problem(row)
    return "; ".join([word for word in words if word] + ([f"FAILED: {wrong}"] if wrong else []))


def error_cell(row):
    if "errors" in row:
        return f"{row['errors']} errors"
    if not is_number(row.get("error")):
        return NONE
    lines = [line for line in ("row", "column") if is_number(row.get(f"worst_{line}_error"))]
    worst = [f"{line} {row[f'worst_{line}']} {row[f'worst_{line}_error']:.0e}" for line in lines]
    return "; ".join([f"{row['error']:.1e} ≤ {row['tolerance']:.0e}", *worst])


def facts(results):
    return ["fact", "value"], [[row["name"], row.get("value", NONE)] for row in rows_of(results, "facts")]


def ceilings_table(results):
    cells = [
        [row["name"], row.get("shape", ""), f"{number(row.get('value'))} {row.get('unit', '')}".strip(), error_cell(row), notes(row)]
        for row in rows_of(results, "ceilings")
    ]
    return ["ceiling", "size", "measured", "error", ""], cells


def kernels(results):
    copy, matrix = ceilings(results)
    cells = []
    for row in rows_of(results, "kernels"):
        floor = floor_us(row, copy, matrix)
        share = ratio(floor, row.get("time_us")) if floor else row.get("share_of_floor")
        cells.append(
            [row["name"], row.get("shape", ""), error_cell(row), number(row.get("time_us")), number(floor), percent(share), notes(row)]
        )
    return ["kernel", "shape", "error", "µs", "floor µs", "of floor", ""], cells


def gemm(results):
    key = lambda row: (row.get("m"), row.get("n"), row.get("k"), row.get("layout"))
    own_rows = rows_of(results, "gemm", "sparktune")
    ours = {key(row): row for row in own_rows if row.get("computed_by") != "library"}
    library = {key(row): row for row in own_rows if row.get("computed_by") == "library"}
    vendor = {key(row): row for row in rows_of(results, "gemm", "vendor")}
    cells = []
    for shape in ours | vendor:
        own, other = ours.get(shape, {}), vendor.get(shape, {})
        by_library = library.get(shape, {})
        share = ratio(other.get("time_us"), own.get("time_us"))
        names = (own or other).get("name", "")
        words = "; ".join(word for word in (notes(row) for row in (own, by_library, other) if row) if word)
        times = [number(row.get(field)) for row in (own, by_library, other) for field in ("time_us", "tflops")]
        cells.append([names, "{}×{}×{} {}".format(*shape), *times, percent(share), words])
    return ["product", "m×n×k", "ours µs", "TFLOP/s", "library µs", "TFLOP/s", "vendor µs", "TFLOP/s", "of vendor's speed", ""], cells


def steps(results, sections=("steps",)):
    _, matrix = ceilings(results)
    cells = []
    for row in (row for section in sections for row in rows_of(results, section)):
        parts = [row.get(f"{part}_ms") for part in ("data", "forward", "backward", "optimizer")]
        breakdown = " / ".join(number(part) for part in parts) if any(map(is_number, parts)) else NONE
        predicted = ratio(row.get("peak_bytes"), row.get("predicted_bytes"))
        peak = gigabytes(row.get("peak_bytes")) + (f" ({predicted - 1:+.0%} of the plan's)" if predicted else "")
        distance = curve_distance(row)
        # Of the device while the steps ran: what it did, how fast, and how much of the time.
        clock = f"{number(row.get('sm_clock_mhz'), 0)} MHz" if is_number(row.get("sm_clock_mhz")) else NONE
        busy = percent(row["busy_percent"] / 100) if is_number(row.get("busy_percent")) else NONE
        cells.append(
            [
                row["name"],
                number(row.get("tokens_per_s"), 0),
                percent(share_of_ceiling(row, matrix)),
                clock,
                number(row.get("launches"), 0),
                busy,
                peak,
                breakdown,
                percent(distance, 3),
                notes(row),
            ]
        )
    return ["step", "tokens/s", "of ceiling", "SM clock", "launches", "busy", "peak memory", "data / forward / backward / optimizer ms", "loss from reference", ""], cells


def on_demand(results):
    """Steps that are only measured when they are named."""
    return steps(results, ("ladder", "head", "sizes"))


def whole(results):
    cells = [[row["name"], error_cell(row), notes(row)] for row in rows_of(results, "whole", "transformers")]
    return ["of a whole model", "distance from transformers in fp32", ""], cells


def floors_s(work, copy, matrix):
    """Seconds that launches take at the ceilings, one after the other; pairs of bytes and FLOPs."""
    return sum(max(moved / copy, flops / matrix) for moved, flops in work)


def shares_measured(results):
    """Op → share of its counted floor that it reached in this run, all shapes together; only what was measured right."""
    copy, matrix = ceilings(results)
    times = {}
    for row in rows_of(results, "kernels"):
        if copy and matrix and row.get("work") and is_number(row.get("time_us")) and problem(row) is None:
            floor, time = times.get(row["name"], (0.0, 0.0))
            times[row["name"]] = floor + floors_s(row["work"], copy, matrix), time + row["time_us"] / 1e6
    return {name: floor / time for name, (floor, time) in times.items() if time}


def predicted(row, copy, matrix, shares=None):
    """Tokens per second of a step's parts, one after the other: at their floors, or at `shares`, with the share that is assumed for
    what was not measured."""
    if not (copy and matrix):
        return None
    seconds = lambda part: part["calls"] * floors_s(part["work"], copy, matrix)
    share = lambda part: 1.0 if shares is None else shares.get(part["measured_as"], part["share"])
    return row["tokens"] / sum(seconds(part) / share(part) for part in row["parts"])


def model(results):
    """Each step as it was measured here and as it is predicted, here and for the device that speeds are promised for."""
    copy, matrix = ceilings(results)
    shares = shares_measured(results)
    measured = {row["name"]: row.get("tokens_per_s") for row in rows_of(results, "steps") if problem(row) is None}
    cells, promised = [], "?"
    for row in rows_of(results, "model"):
        promised = row["device"]
        here = predicted(row, copy, matrix, shares) if shares else None
        found = measured.get(row["name"])
        there = predicted(row, row["bytes_per_s"], row["flops_per_s"], shares) if shares else None
        speeds = [found, here, predicted(row, copy, matrix), there, row["tokens_per_s_at_shares"], row["tokens_per_s_at_floors"]]
        error = ratio(here, found)
        cells.append([row["name"], *[number(speed, 0) for speed in speeds], f"{error - 1:+.0%}" if error else NONE])
    there = [f"{promised} {how}" for how in ("at these shares", "at assumed shares", "at floors")]
    return ["step", "tokens/s measured", "predicted", "at floors", *there, "predicted is off by"], cells


def model_ops(results):
    """What the steps that were measured here consist of, by op."""
    copy, matrix = ceilings(results)
    shares = shares_measured(results)
    measured = {row["name"] for row in rows_of(results, "steps") if is_number(row.get("tokens_per_s"))}
    cells = []
    for row in rows_of(results, "model"):
        if row["name"] not in measured or not (copy and matrix):
            continue
        for op in dict.fromkeys(part["op"] for part in row["parts"]):
            parts = [part for part in row["parts"] if part["op"] == op]
            total = lambda place: sum(part["calls"] * sum(pair[place] for pair in part["work"]) for part in parts)
            floor = sum(part["calls"] * floors_s(part["work"], copy, matrix) for part in parts)
            share = shares.get(parts[0]["measured_as"])
            used = share or parts[0]["share"]
            calls = sum(part["calls"] for part in parts)
            numbers = [number(total(0) / 1e9), number(total(1) / 1e9, 0), number(floor * 1e3)]
            word = percent(used) + ("" if share else " assumed")
            cells.append([row["name"], op, calls, *numbers, word, number(floor / used * 1e3)])
    return ["step", "op", "calls", "GB", "GFLOP", "floor ms", "share", "ms"], cells


def peers(results):
    ours = {(row.get("size"), row.get("method")): row for row in rows_of(results, "steps")}
    _, matrix = ceilings(results)
    cells = []
    for row in rows_of(results, "peers"):
        own = ours.get((row.get("size"), row.get("method")), {})
        faster = ratio(own.get("tokens_per_s"), row.get("tokens_per_s"))
        # The same useful work is asked of both.
        share = share_of_ceiling({"flops_per_token": own.get("flops_per_token")} | row, matrix)
        cells.append(
            [
                row["name"],
                row.get("peer", ""),
                number(row.get("tokens_per_s"), 0),
                percent(share),
                gigabytes(row.get("peak_bytes")),
                f"{faster:.2f}×" if faster else NONE,
                notes(row),
            ]
        )
    return ["step", "peer", "tokens/s", "of ceiling", "peak memory", "sparktune's speed", ""], cells


def sanitizer(results):
    return ["check", "found", ""], [[row["name"], error_cell(row), notes(row)] for row in rows_of(results, "sanitizer")]


def nccl(results):
    return ["by several ranks", "differs", ""], [[row["name"], error_cell(row), notes(row)] for row in rows_of(results, "nccl")]


TABLES = {
    "facts": facts,
    "ceilings": ceilings_table,
    "kernels": kernels,
    "gemm": gemm,
    "steps": steps,
    "model": model,
    "model, op by op": model_ops,
    "peers": peers,
    "sanitizer": sanitizer,
    "whole": whole,
    "nccl": nccl,
    "on demand": on_demand,
}


def how_it_went(results):
    """One row for each part: what was done, skipped, cut off or failed, and why."""
    cells = []
    for part in results["parts"]:
        name = part["section"] + (f" ({part['by']})" if part["by"] else "")
        cells.append([name, part["status"], f"{part['seconds']:.0f} s", part["reason"]])
    return ["section", "result", "time", ""], cells


def text(head, cells):
    """Columns for a terminal."""
    lines = [head, *cells]
    widths = [max(len(str(line[place])) for line in lines) for place in range(len(head))]
    shown = ["  ".join(str(cell).ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([shown[0], "─" * max(map(len, shown)), *shown[1:]]) + "\n"


def markdown(head, cells):
    line = lambda values: "| " + " | ".join(str(value).replace("|", "\\|") for value in values) + " |"
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, cells)]) + "\n"


def rendered(results):
    """All tables for a terminal, how it went last."""
    tables = [make(results) for make in TABLES.values()]
    parts = [text(head, cells) for head, cells in tables if cells]
    parts.append(text(*how_it_went(results)))
    return "\n".join(parts)


if __name__ == "__main__":
    print(rendered(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
