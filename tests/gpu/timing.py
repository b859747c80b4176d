"""Times of device work by CUDA events: warmed up, the L2 cold, the median of several.

On the processor, in the self-test only, the clock stands in for events.
"""

import statistics
import time

# More than the L2 of any device at hand; written before each timed call, so that no input is still in it.
FLUSH_BYTES = 256 << 20


class Timer:
    def __init__(self, torch, device):
        self.torch = torch
        self.device = device
        on_gpu = device.type == "cuda"
        self.flush = torch.empty(FLUSH_BYTES if on_gpu else 1, dtype=torch.uint8, device=device)

    def median_us(self, call, seconds, most=20):
        """Microseconds of a call: the median of up to `most`, as many as fit about `seconds`, at least 3."""
        self.once_us(call)
        estimate = self.once_us(call)
        times = max(3, min(most, int(seconds * 1e6 / max(estimate, 1.0))))
        return statistics.median(self.once_us(call) for _ in range(times))

    def once_us(self, call):
        self.flush.zero_()
        if self.device.type != "cuda":
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began) * 1e6
        began, ended = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        call()
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) * 1e3


def sampled_error(torch, out, a, b):
    """‖out − a·b‖ / ‖a·b‖ in float64 on some rows and columns. NaN when anything in `out` is not finite: it was poisoned
    with NaN, so that shows what nobody wrote."""
    if not bool(out.isfinite().all()):
        return float("nan")
    m, n = out.shape
    rows, columns = (torch.randint(0, size, (64,), device=out.device) for size in (m, n))
    reference = a[rows].double() @ b[:, columns].double()
    return float((out[rows][:, columns].double() - reference).norm() / reference.norm())
