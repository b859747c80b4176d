"""compute-sanitizer on the kernels: bad accesses, then races in shared memory.

    sanitizer.py --json FILE --binary SPARKTUNE
"""

import argparse
import os
import re
import shutil
import subprocess
import tempfile

from rows import Rows, skip

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
    asked = arguments.parse_args()
    sanitizer = program()
    if not sanitizer:
        skip("compute-sanitizer was not found")
    rows = Rows(asked.json)
    for tool, what in TOOLS.items():
        with tempfile.TemporaryDirectory() as folder:
            kernels = [asked.binary, "bench", "--gpu", "kernels", "--quick", "--output", f"{folder}/kernels.json"]
            done = subprocess.run([sanitizer, "--tool", tool, *kernels], capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        if "Device not supported" in output:
            skip("compute-sanitizer does not support this device or the way it is passed into this machine")
        print("\n".join(line for line in output.splitlines() if line.startswith("=========")), flush=True)
        rows.add(name=tool, errors=errors(output), note=what)


if __name__ == "__main__":
    main()
