"""Counts the instructions of kernels by kind, for the whole kernel and for each of its loops, from what `nvdisasm` prints.

A loop is what lies between a label and the last branch back to it. The counts of a loop are those of one pass, without the loops in
it: times the passes that the source tells, they are what a warp executes. Both sides of a branch count, and what lies in two loops that
overlap, which the compiler makes of one with two ends, counts in both. Called by `compile.py`.
"""

import re
import subprocess
import tempfile

# Column → how its instructions begin; every instruction is one of "all" too.
KINDS = {
    "mma": ("HMMA", "QMMA", "IMMA", "HGMMA"),
    "LDSM": ("LDSM",),
    "LDS": ("LDS",),
    "STS": ("STS",),
    "LDG": ("LDG",),
    "LDGSTS": ("LDGSTS",),
    "STG": ("STG",),
    "MUFU": ("MUFU",),
    "NOP": ("NOP",),
}
COLUMNS = (*KINDS, "all")
INSTRUCTION = re.compile(r"/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?(\w+)(.*)")


def disassembled(nvdisasm, cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True, check=True).stdout


def kernels(text):
    """Kernel → its instructions as (address, name), and its loops as (first, last address), the outer before the inner."""
    for part in re.split(r"^\.text\.", text, flags=re.MULTILINE)[1:]:
        name, instructions, labels, branches, waiting = part.split(":", 1)[0], [], {}, [], []
        for line in part.splitlines()[1:]:
            if line.startswith("\t.section"):
                break
            if label := re.match(r"(\.L\w+):", line):
                waiting.append(label.group(1))
            elif found := INSTRUCTION.search(line):
                address, operation, operands = int(found.group(1), 16), found.group(2), found.group(3)
                labels |= dict.fromkeys(waiting, address)
                waiting = []
                target = re.search(r"`\((\.L\w+)\)", operands)
                if operation == "BRA" and target and labels.get(target.group(1)) == address:
                    break  # it branches to itself: nothing behind the end is executed
                if operation == "BRA" and target:
                    branches.append((target.group(1), address))
                instructions.append((address, operation))
        ends = {}
        for label, address in branches:
            if labels.get(label, address) < address:
                ends[labels[label]] = max(address, ends.get(labels[label], 0))
        yield name, instructions, sorted(ends.items(), key=lambda loop: (loop[0], -loop[1]))


def counted(operations):
    count = {column: sum(operation in names for operation in operations) for column, names in KINDS.items()}
    return count | {"all": len(operations)}


def counts(text):
    """(Kernel or loop, depth, {column: count}) in the order of the code; a kernel's own line counts all of it."""
    for name, instructions, loops in kernels(text):
        yield name, 0, counted([operation for _, operation in instructions])
        for first, last in loops:
            inner = [loop for loop in loops if loop != (first, last) and first <= loop[0] and loop[1] <= last]
            outer = [loop for loop in loops if loop != (first, last) and loop[0] <= first and last <= loop[1]]
            own = [
                operation
                for address, operation in instructions
                if first <= address <= last and not any(a <= address <= b for a, b in inner)
            ]
            yield f"loop at {first:#06x}", 1 + len(outer), counted(own)


def table(found, architecture):
    """Lines for a terminal."""
    yield f"{architecture:<48}" + "".join(f"{column:>8}" for column in COLUMNS)
    for name, depth, count in found:
        yield f"{'  ' * depth + name:<48}" + "".join(f"{count[column]:>8}" for column in COLUMNS)
