"""compute-sanitizer on the kernels at tiny sizes: bad accesses, or races in shared memory.

    sanitizer.py --json FILE --binary SPARKTUNE [--seconds N] [--tool memcheck | racecheck]

The kernels for which no time is left are left out, so that the tool comes to its end and counts. The emulator looks for races in shared
memory with every test, so `racecheck` is not part of a whole run.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from rows import Rows, read, skip

TOOLS = {"memcheck": "accesses outside of buffers, misaligned accesses", "racecheck": "races in shared memory"}


def program():
    return shutil.which("compute-sanitizer") or next(
        (path for path in ["/usr/local/cuda/bin/compute-sanitizer"] if os.path.exists(path)), None
    )


def errors(output):
    """What the tool's last line counts; None where it did not come so far."""
    found = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", output)
    return int(found[-1][0] or found[-1][1]) if found else None


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--json", required=True)
    arguments.add_argument("--binary", required=True)
    arguments.add_argument("--seconds", type=float, default=600.0)
    arguments.add_argument("--tool", choices=TOOLS, default="memcheck")
    asked = arguments.parse_args()
    sanitizer = program()
    if not sanitizer:
        skip("compute-sanitizer was not found")
    rows = Rows(asked.json)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "kernels.jsonl"
        # Starting and ending under the tool take a while of their own.
        limit = ["--seconds", f"{asked.seconds * 0.7:.0f}"]
        kernels = [asked.binary, "bench", "--gpu", "kernels", "--quick", *limit, "--output", str(file)]
        done = subprocess.run(
            [sanitizer, "--target-processes", "all", "--tool", asked.tool, *kernels], capture_output=True, text=True, check=False
        )
        ran = [row for row in read(file) if "skipped" not in row]
    output = done.stdout + done.stderr
    if "Device not supported" in output:
        skip("compute-sanitizer does not support this device or the way it is passed into this machine")
    print("\n".join(line for line in output.splitlines() if line.startswith("=========")), flush=True)
    rows.add(name=asked.tool, errors=errors(output), note=f"{TOOLS[asked.tool]}; {len(ran)} rows of kernels ran")


if __name__ == "__main__":
    main()
