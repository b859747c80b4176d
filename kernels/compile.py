"""Compiles the device sources with NVRTC, which needs no GPU, and tells what each kernel takes.

Owns: the one string a kernel is handed to NVRTC as (its `.cuh` with quoted includes written in their places, the way
the trainer does it), the architectures, and the table `RESOURCES.md`. Called by `compile.sh`, which finds the library.

    compile.py LIBNVRTC            prints the table and writes RESOURCES.md
    compile.py LIBNVRTC --check    compares with RESOURCES.md; exit code 1 when a kernel spills, grew, or is not in it
    compile.py LIBNVRTC NAME...    prints the rows of the named folders and writes nothing
    compile.py LIBNVRTC --sass NVDISASM NAME...    prints the instructions of their kernels and loops by kind, and writes nothing

A source that is made for several shapes says so in a line `// Compiled with: HEAD_DIM=256; HEAD_DIM=128`: the words before each
semicolon become `#define`s in front of the text, as the trainer puts them there, and rows of their own.
"""

import ctypes
import pathlib
import re
import sys

import sass

HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE / "RESOURCES.md"
ARCHITECTURES = ("sm_121a", "sm_90a")
COLUMNS = ("registers", "shared", "spills", "stack")
HEAD = """\
# What the kernels take

Written by `kernels/compile.sh` (NVRTC {version}), compared by `kernels/compile.sh --check`. Per architecture: registers a thread /
shared bytes a block, dynamic ones included / spilled bytes (stores + loads) / stack bytes a thread.

"""


def flattened(path, seen):
    """The text of a source, each quoted include replaced by the file's text the first time and by nothing afterwards."""
    seen.add(path)
    text = []
    for line in path.read_text().splitlines():
        include = re.match(r'\s*#include "(.+)"', line)
        if include:
            wanted = (path.parent / include.group(1)).resolve()
            if wanted not in seen and wanted.suffix == ".cuh":
                text.append(flattened(wanted, seen))
        elif line.strip() != "#pragma once":
            text.append(line)
    return "\n".join(text)


class Nvrtc:
    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def compile(self, name, source, architecture):
        """The log of the compilation with the report of ptxas, the PTX, and the cubin; raises with the log when it fails."""
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        options = [f"--gpu-architecture={architecture}", "-lineinfo", "--ptxas-options=-v"]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = self.library.nvrtcCompileProgram(program, len(options), array)
        size = ctypes.c_size_t()
        self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self.library.nvrtcGetProgramLog(program, log)
        if failed:
            raise SystemExit(f"{name} does not compile for {architecture}:\n{log.value.decode()}")
        ptx, cubin = self.image(program, "PTX"), self.image(program, "CUBIN")
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return log.value.decode(), ptx.rstrip(b"\0").decode(), cubin

    def image(self, program, kind):
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
        image = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{kind}")(program, image)
        return image.raw


def dynamic_shared(ptx):
    """Bytes that the `DYNAMIC_SHARED` arrays of a kernel end at."""
    return max(map(int, re.findall(r"// dynamic shared memory: (\d+)", ptx)), default=0)


def resources(log, dynamic):
    """Kernel → {registers, shared, spills, stack} from a ptxas report and the bytes of dynamic shared memory."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        kernel = part.split("'")[0]
        stack, stores, loads = map(
            int, re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part).groups()
        )
        shared = re.search(r"(\d+) bytes smem", part)
        found[kernel] = {
            "registers": int(re.search(r"Used (\d+) registers", part).group(1)),
            "shared": (int(shared.group(1)) if shared else 0) + dynamic,
            "spills": stores + loads,
            "stack": stack,
        }
    return found


def shapes(source):
    """The `#define`s each compilation of a source starts with: (words for the table, text)."""
    named = re.search(r"^// Compiled with: (.+)$", source, re.MULTILINE)
    for words in named.group(1).split(";") if named else [""]:
        yield words.strip(), "".join(f"#define {word.replace('=', ' ')}\n" for word in words.split())


def kernels(source):
    """(place, name) of every `KERNEL(bounds) name(`; the bounds may contain brackets."""
    for start in re.finditer(r"^KERNEL\(", source, re.MULTILINE):
        depth, end = 1, start.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(source[end], 0)
            end += 1
        yield start.start(), re.match(r"\s*(\w+)", source[end:]).group(1)


def with_one_kernel(source, entry):
    """The text that the trainer compiles for a kernel (`cuda/source.rs`)."""
    text, copied = [], 0
    for place, name in kernels(source):
        text += [source[copied:place], "" if name == entry else "OTHER_"]
        copied = place
    return "".join(text) + source[copied:]


def compiled(nvrtc, folders):
    """(words of the shape, architecture, log, PTX, cubin) of every kernel, in the order of the sources."""
    for path in sorted(HERE.glob("*/*.cuh")):
        if path.parent.name == "device" or (folders and path.parent.name not in folders):
            continue
        source = flattened(path, set())
        for words, defines in shapes(source):
            for architecture in ARCHITECTURES:
                for _, entry in kernels(source):
                    text = defines + with_one_kernel(source, entry)
                    yield words, architecture, *nvrtc.compile(path.name, text, architecture)


def measured(nvrtc, folders):
    """Kernel → [resources for each architecture], in the order of the sources."""
    table = {}
    for words, _, log, ptx, _ in compiled(nvrtc, folders):
        for kernel, taken in resources(log, dynamic_shared(ptx)).items():
            table.setdefault(f"{kernel} {words}".strip(), []).append(taken)
    return table


def print_instructions(nvrtc, nvdisasm, folders):
    for words, architecture, _, _, cubin in compiled(nvrtc, folders):
        found = list(sass.counts(sass.disassembled(nvdisasm, cubin)))
        if found:  # headers have no kernels
            print("\n".join(sass.table(found, f"{architecture} {words}".strip())), end="\n\n", flush=True)


def rendered(table, version):
    cell = lambda taken: " / ".join(str(taken[column]) for column in COLUMNS)
    lines = ["| kernel | " + " | ".join(ARCHITECTURES) + " |", "|---|" + "---|" * len(ARCHITECTURES)]
    lines += [f"| {kernel} | " + " | ".join(map(cell, taken)) + " |" for kernel, taken in table.items()]
    return HEAD.format(version=version) + "\n".join(lines) + "\n"


def committed():
    table = {}
    for line in TABLE.read_text().splitlines() if TABLE.exists() else []:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 1 + len(ARCHITECTURES) and "/" in cells[1]:
            table[cells[0]] = [dict(zip(COLUMNS, map(int, cell.split("/")))) for cell in cells[1:]]
    return table


def complaints(table, before):
    for kernel, taken in table.items():
        for place, (architecture, now) in enumerate(zip(ARCHITECTURES, taken)):
            if now["spills"]:
                yield f"{kernel} spills {now['spills']} bytes on {architecture}"
            if kernel not in before:
                continue
            for column in ("registers", "shared", "stack"):
                was = before[kernel][place][column]
                if now[column] > was:
                    yield f"{kernel} takes {now[column]} {column} on {architecture}, {was} in {TABLE.name}"
        if kernel not in before:
            yield f"{kernel} is not in {TABLE.name}"
    yield from (f"{kernel} is in {TABLE.name} but no source has it" for kernel in before.keys() - table.keys())


def main():
    nvrtc = Nvrtc(sys.argv[1])
    if sys.argv[2:3] == ["--sass"]:
        print_instructions(nvrtc, sys.argv[3], sys.argv[4:])
        return 0
    check = sys.argv[2:] == ["--check"]
    folders = [] if check else sys.argv[2:]
    table = measured(nvrtc, folders)
    text = rendered(table, nvrtc.version)
    print(text[text.index("| kernel") :], end="")
    if not check:
        if not folders:
            TABLE.write_text(text)
        return 0
    found = list(complaints(table, committed()))
    for complaint in found:
        print(f"error: {complaint}", file=sys.stderr)
    if found:
        print("If that is meant, run kernels/compile.sh and commit RESOURCES.md with the reason.", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
