"""The matrix products of training by the vendor's library, through PyTorch.

    gemm_vendor.py --json FILE [--like OURS] [--seconds N] [--tiny]

`--like` names the rows of `sparktune bench --gpu gemm`: then the same products are measured. Without it, those of `shapes.py`.
"""

import argparse
import pathlib

import shapes
from rows import Clock, Rows, read, torch_or_skip
from timing import Timer, sampled_error


def measured(torch, device, timer, wanted):
    m, n, k, layout = (wanted[field] for field in ("m", "n", "k", "layout"))
    # Made in fp32 and rounded, in the layout that is asked for; `.T` only changes how it is read.
    a = torch.randn((k, m) if layout[0] == "T" else (m, k), device=device).bfloat16()
    b = torch.randn((n, k) if layout[1] == "T" else (k, n), device=device).bfloat16()
    left = a.T if layout[0] == "T" else a
    right = b.T if layout[1] == "T" else b
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device=device)
    time_us = timer.median_us(lambda: torch.mm(left, right, out=out), seconds=0.05)
    return {
        "name": wanted["name"],
        "m": m,
        "n": n,
        "k": k,
        "layout": layout,
        "time_us": time_us,
        "tflops": 2.0 * m * n * k / time_us / 1e6,
        "error": sampled_error(torch, out, left, right),
        "tolerance": 1e-2,
    }


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--json", required=True)
    arguments.add_argument("--like", type=pathlib.Path)
    arguments.add_argument("--seconds", type=float, default=float("inf"))
    arguments.add_argument("--tiny", action="store_true")
    asked = arguments.parse_args()
    clock = Clock(asked.seconds * 0.9)
    torch, device = torch_or_skip(asked.tiny)
    rows, timer = Rows(asked.json), Timer(torch, device)
    wanted = [row for row in read(asked.like) if "layout" in row and row.get("computed_by") != "library"] if asked.like else []
    if asked.tiny:
        wanted = [{"name": layout, "m": 48, "n": 40, "k": 64, "layout": layout} for layout in ("NN", "NT", "TN")]
    for product in wanted or shapes.products():
        if not clock.has_room():
            rows.add(**{field: product[field] for field in ("name", "m", "n", "k", "layout")}, skipped="no time is left")
            continue
        rows.add(**measured(torch, device, timer, product))
        clock.done()


if __name__ == "__main__":
    main()
