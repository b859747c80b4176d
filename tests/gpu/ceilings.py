"""What this device can do at most, measured: bytes a second of a copy, and bf16 FLOP/s of the vendor's matrix product.

    ceilings.py --json FILE [--tiny]

`--tiny` is the self-test: small sizes, on the processor.
"""

import argparse

import machine
from rows import Rows, torch_or_skip
from timing import Timer, sampled_error

TOLERANCE = 1e-2  # bf16 operands, fp32 accumulation, result rounded to bf16


def copy(torch, device, timer, bytes_each):
    """Copies random bytes into a poisoned buffer; both are far larger than the L2."""
    source = torch.randint(0, 255, (bytes_each,), dtype=torch.uint8, device=device)
    target = torch.full_like(source, 255)
    time_us = timer.median_us(lambda: target.copy_(source), seconds=1.0)
    return {
        "name": "copy",
        "shape": f"{bytes_each / 1e9:.2f} GB",
        "time_us": time_us,
        "value": 2 * bytes_each / time_us / 1e3,
        "unit": "GB/s",
        "errors": int((target != source).sum()),
        "note": "bytes read and written",
    }


def product(torch, device, timer, m, n, k, seconds):
    """A matrix product on fresh random numbers, checked on a few rows in float64."""
    a = torch.randn(m, k, device=device).bfloat16()
    b = torch.randn(n, k, device=device).bfloat16()
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device=device)
    time_us = timer.median_us(lambda: torch.mm(a, b.T, out=out), seconds, most=50)
    error = sampled_error(torch, out, a, b.T)
    return {
        "name": "bf16 matrix product",
        "shape": f"{m}×{n}×{k}",
        "time_us": time_us,
        "value": 2.0 * m * n * k / time_us / 1e6,
        "unit": "TFLOP/s",
        "error": error,
        "tolerance": TOLERANCE,
        "note": "PyTorch " + torch.__version__,
    }


def clocks_under_load(torch, device, time_us):
    """What the clocks are while the matrix units work: two seconds of products of `time_us` each are queued, and nvidia-smi is
    asked meanwhile."""
    a, b = (torch.randn(8192, 8192, device=device).bfloat16() for _ in range(2))
    for _ in range(int(2e6 / time_us)):
        torch.mm(a, b)
    words = machine.clocks_in_words(machine.smi())
    torch.cuda.synchronize()
    return words


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--json", required=True)
    arguments.add_argument("--tiny", action="store_true")
    asked = arguments.parse_args()
    torch, device = torch_or_skip(asked.tiny)
    rows, timer = Rows(asked.json), Timer(torch, device)
    if asked.tiny:
        rows.add(**copy(torch, device, timer, 1 << 20))
        rows.add(**product(torch, device, timer, 64, 96, 128, 0.01))
        return
    free, _ = torch.cuda.mem_get_info()
    rows.add(**copy(torch, device, timer, min(4 << 30, free // 8)))
    rows.add(**product(torch, device, timer, 5376, 6144, 2048, seconds=1.0))
    rows.add(**product(torch, device, timer, 4096, 4096, 4096, seconds=1.0))
    largest = product(torch, device, timer, 8192, 8192, 8192, seconds=3.0)
    rows.add(**largest)
    clocks = clocks_under_load(torch, device, largest["time_us"])
    rows.add(name="clocks under load", note=f"{clocks}; as found, not set")


if __name__ == "__main__":
    main()
