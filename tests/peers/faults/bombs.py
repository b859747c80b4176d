"""Files that are small to send and large to read, or that never end."""

import gzip
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from harness import GB, bounds, ended, refusal, send

MB = 10**6
LINE = b'{"messages":[{"role":"user","content":"%s"},{"role":"assistant","content":"b"}]}\n'


def repeated(piece, count, first=b"", last=b""):
    """A file with a piece that is repeated, written without holding it."""

    def make(path):
        with open(path, "wb") as file:
            file.write(first)
            at_once = max(1, min(count, MB // len(piece)))
            for _ in range(count // at_once):
                file.write(piece * at_once)
            file.write(piece * (count % at_once) + last)

    return make


def one_line(piece, count):
    first, last = LINE.split(b"%s")
    return repeated(piece, count, first, last)


def messages(count):
    turns = b'{"role":"user","content":"a"},{"role":"assistant","content":"b"},'
    return repeated(turns, count // 2, b'{"messages":[', b'{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}\n')


def gz(piece, count):
    """Members of gzip one after the other, each of a hundred MB."""

    def make(path):
        member = gzip.compress(piece * (100 * MB // len(piece)), 1)
        path.write_bytes(member * max(1, count * len(piece) // (100 * MB)))

    return make


def zst(piece, count):
    def make(path):
        packer = subprocess.Popen(["zstd", "-q", "-1", "-o", path], stdin=subprocess.PIPE)
        for _ in range(count // 10_000):
            packer.stdin.write(piece * 10_000)
        packer.stdin.close()
        packer.wait()

    return make


def with_others(make, count=500):
    """The line among valid ones, four times."""

    def made(path):
        make(path)
        line = path.read_bytes()
        path.write_bytes((LINE % b"short" * (count // 4) + line) * 4)

    return made


def loop_of_links(path):
    path.symlink_to(path.name)


SHORT = b'{"text":"ab"}\n'
# Name of the file, how it is made, and whether a model is given with `check`.
FILES = {
    "a line of 20 MB of one letter": ("in.jsonl", one_line(b"a", 20 * MB), True),
    "a line of 60 MB of one letter": ("in.jsonl", one_line(b"a", 60 * MB), True),
    "a line of 100 MB of one letter": ("in.jsonl", one_line(b"a", 100 * MB), True),
    "a line of 60 MB of words": ("in.jsonl", one_line(b"ab cde ", 60 * MB // 7), True),
    "a line of 53 MB of base64": ("in.jsonl", one_line(b"R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs", 53 * MB // 48), True),
    "a line of 60 MB of emoji": ("in.jsonl", one_line("😀".encode(), 15 * MB), True),
    "a line of 60 MB without its end": ("in.jsonl", repeated(b"a", 60 * MB), True),
    "four lines of 20 MB among 500": ("in.jsonl", with_others(one_line(b"a", 20 * MB)), True),
    "2,500 messages": ("in.jsonl", messages(2_500), True),
    "80,000 messages": ("in.jsonl", messages(80_000), True),
    "800,000 messages": ("in.jsonl", messages(800_000), True),
    "20 million empty messages": ("in.jsonl", repeated(b"{},", 20 * MB, b'{"messages":[', b"{}]}\n"), True),
    "30 million numbers in tools": ("in.jsonl", repeated(b"0,", 30 * MB, LINE[:-2] + b',"tools":"[', b'0]"}\n'), True),
    "7 million objects in a wrong line": ("in.jsonl", repeated(b'{"a":0},', 7 * MB, b'{"messages":1,"x":[', b"0]}\n"), True),
    "5 million brackets": ("in.jsonl", repeated(b"[", 5 * MB, last=b"\n"), False),
    "5 million objects": ("in.jsonl", repeated(b'{"a":', 5 * MB, last=b"\n"), False),
    "2 million keys": ("in.jsonl", repeated(b'"a":1,', 2 * MB, b"{", b'"text":"a"}\n'), False),
    "100 million blank lines": ("in.jsonl", repeated(b"\n", 100 * MB), False),
    "20 million empty objects": ("in.jsonl", repeated(b"{}\n", 20 * MB), False),
    "gz of 3 GB of zeros": ("in.jsonl.gz", gz(b"\0", 3000 * MB), False),
    "gz of 3 GB of short lines": ("in.jsonl.gz", gz(SHORT, 3000 * MB // 14), False),
    "zst of 3 GB of zeros": ("in.jsonl.zst", zst(b"\0" * 1000, 3 * MB), False),
    "zst of 3 GB in one line": ("in.jsonl.zst", zst(b"a" * 1000, 3 * MB), True),
    "zst of 60 million short lines": ("in.jsonl.zst", zst(SHORT, 60 * MB), False),
    "zst of 60 million short lines, with a model": ("in.jsonl.zst", zst(SHORT, 60 * MB), True),
    "a CSV file of one field of 100 MB": ("in.csv", repeated(b"a", 100 * MB, b'text\n"', b'"\n'), False),
    "a CSV file of 10 million columns": ("in.csv", repeated(b"a,", 10 * MB), False),
    "a text of 500 MB in one paragraph": ("in.txt", repeated(b"ab cde ", 500 * MB // 7), True),
    "FIFO": ("in.jsonl", os.mkfifo, False),
    "/dev/zero": ("in.jsonl", lambda path: path.symlink_to("/dev/zero"), False),
    "a link to itself": ("in.jsonl", loop_of_links, False),
    "a folder": ("in.jsonl", os.mkdir, False),
    "FIFO in the place of a tokenizer": ("model/tokenizer.json", os.mkfifo, True),
    "/dev/zero in the place of a template": ("model/chat_template.jinja", lambda path: path.symlink_to("/dev/zero"), True),
    "/dev/zero in the place of weights": ("model/model.safetensors", lambda path: path.symlink_to("/dev/zero"), True),
    "FIFO in the place of a config": ("model/config.json", os.mkfifo, True),
}
# How long one may work before it is asked to end, and how soon it has to.
LONGEST_S, ENDS_S = 90, 5


def bombs(context):
    row = context.row("bombs, through check (90 s and 2 GB, or ended by SIGTERM within 5 s)")
    details = []
    for case, (name, make, with_model) in FILES.items():
        if not row.wants(case) or (name.endswith("zst") and not shutil.which("zstd")):
            continue
        with context.place() as place:
            place.model()
            place.chats(3)
            path = place / name
            path.unlink(missing_ok=True)
            make(path)
            data = "train.jsonl" if name.startswith("model/") else name
            words = ["check", data, *(["--model", "model"] if with_model else [])]
            if name.endswith("model.safetensors"):
                words = ["generate", "model", "--prompt", "a", "--max-tokens", "1", "--device", "cpu"]
            done, late = within(place, words)
            # 134 million examples are counted before there are too many, in 2.7 GB (src/data/tally.rs).
            memory = 3 * GB if "short lines" in case else 2 * GB
            wrong = refusal(done, path.name, codes=(2, 3, 4, 130), seconds=2 * LONGEST_S, memory=memory)
            if late is not None:
                wrong = [f"deaf to SIGTERM for {late:.0f} s"] if late > ENDS_S else bounds(done, 2 * LONGEST_S, memory)
            row.tried(case, wrong, f"exit {done.code}" + (" after SIGTERM" if late is not None else ""), done)
            size = path.stat().st_size / 1e6 if path.is_file() else 0
            details.append(f"| {case} | {size:,.1f} MB | {done.code} | {done.processor_s:.1f} s | {done.memory / 1e6:,.0f} MB |")
            print(details[-1], flush=True)
    print("\n| bomb | file | exit | processor time | memory |\n|---|---|---|---|---|\n" + "\n".join(details))


def within(place, words):
    """Runs a command, and asks it to end after a while. Says how long that took, if it was asked."""
    asked = []
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = place.start(*words, out=out, err=err)

        def ask():
            asked.append(time.monotonic())
            send(process.pid, signal.SIGTERM)

        timer = threading.Timer(LONGEST_S, ask)
        timer.start()
        done = ended(process, out, err, LONGEST_S + 60)
        timer.cancel()
    return done, time.monotonic() - asked[0] if asked else None
