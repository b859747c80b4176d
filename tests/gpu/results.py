"""Puts a results file into kernels/RESULTS.md, newest first.

    results.py JSON RESULTS.md

A section's tables are for people. Its TOML block is for people and for the plan, which takes the speed of training on such a device
from it (src/plan/measured.rs).
"""

import json
import pathlib
import sys

import table
from judge import is_number, problem

NEWEST = "<!-- newest first; written by tests/gpu/results.py -->\n"
NOTHING_YET = "Not measured yet: "


def probe_line(results):
    """What our own probe reaches on this device, to be held against the same elsewhere; the program measures it with the kernels."""
    rates = {row["name"]: row.get("value") for row in table.rows_of(results, "kernels") if problem(row) is None}
    product, copy = rates.get("matrix product"), rates.get("copy")
    if not (is_number(product) and is_number(copy)):
        return []
    return [f"probe = {{ bf16_tflops = {product:.1f}, copy_gb_per_s = {copy:.1f} }}"]


def toml_block(results):
    """Ceilings and speeds of training as TOML; empty where the run has not measured both, or measured them wrong. A method
    whose loss is not the reference path's has no speed."""
    copy, matrix = table.ceilings(results)
    steps = table.rows_of(results, "steps")
    wrong = {row.get("method") for row in steps if problem(row)}
    rows = [row for row in steps if row.get("method") not in wrong and is_number(row.get("tokens_per_s"))]
    rows = [row for row in rows if is_number(row.get("flops_per_token")) and "size" in row]
    if not (copy and matrix and rows):
        return ""
    lines = [
        "[[machine]]",
        f"device = {json.dumps(results['device'])}",
        f"date = {json.dumps(results['date'][:10])}",
        f"commit = {json.dumps(results['commit'])}",
        f"copy_gb_per_s = {copy / 1e9:.1f}",
        f"bf16_tflops = {matrix / 1e12:.1f}",
        *probe_line(results),
        "",
    ]
    for row in rows:
        lines += [
            "[[machine.training]]",
            f"size = {json.dumps(row['size'])}",
            f"method = {json.dumps(row['method'])}",
            f"tokens_per_s = {row['tokens_per_s']:.1f}",
            f"flops_per_token = {row['flops_per_token']:.4e}",
            "",
        ]
    return "```toml\n" + "\n".join(lines).rstrip() + "\n```\n"


def section(results):
    """The markdown of one run."""
    parts = [f"## {results['device']}, {results['date'][:10]}, commit {results['commit']}\n"]
    if block := toml_block(results):
        parts.append(block)
    for name, make in table.TABLES.items():
        head, cells = make(results)
        if cells:
            parts.append(f"### {name}\n\n{table.markdown(head, cells)}")
    parts.append(f"### how it went\n\n{table.markdown(*table.how_it_went(results))}")
    return "\n".join(parts)


def added(page, results):
    """The page with this run in it. Nothing of an older run is changed."""
    if results["device"] is None:
        raise SystemExit("nothing was measured in this run: there was no GPU")
    kept = [paragraph for paragraph in page.split("\n\n") if not paragraph.startswith(NOTHING_YET)]
    before, mark, after = "\n\n".join(kept).partition(NEWEST)
    if not mark:
        raise SystemExit(f"the page has no line {NEWEST.strip()}")
    return f"{before}{mark}\n{section(results)}" + (f"\n{after.lstrip()}" if after.strip() else "")


def main():
    if len(sys.argv) != 3:
        raise SystemExit("usage: results.py JSON RESULTS.md")
    results = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    page = pathlib.Path(sys.argv[2])
    page.write_text(added(page.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
