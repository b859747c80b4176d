"""Inputs that are changed at random, half of them along their structure, through the real commands."""

import gzip
import json
import re
import struct

from harness import DEMO, FIXTURE, MODEL, STEPS, TREE, refusal

WORDS = [
    b"null", b"true", b"0", b"-1", b"255", b"65536", b"4294967296", b"9223372036854775807", b"18446744073709551616", b"1e308",
    b"-1e400", b"NaN", b"inf", b"0.1", b'""', b'"\\u0000"', b'"\\ud800"', b"{}", b"[]", b"[[", b'{"a":', b'"messages"', b'"role"',
    b"\\", b'"', b"'", b",", b"\n", b"\r\n", b"\t", b"\xef\xbb\xbf", b"\xe2\x80\xae", b"\x1b[2J", b"../", b"%%%%", b"\xff",
    b"{% for m in messages %}", b"{{ m.content }}", b"<|im_start|>",
]  # fmt: skip
ODD = [
    None, True, 0, -1, 1.5, 2**31, 2**63, 2**64, -(2**63), 1e308, "", "\0", "\x1b[2J", "\u202e", "../../x", "/etc/passwd", [], {}, [[]],
    {"a": 1}, "x" * 5000, [0] * 3000, "NaN", ["a", None, 1], json.loads("[" * 400 + "]" * 400),
]  # fmt: skip


def bytes_changed(content, random):
    """One to four changes of bytes, numbers or pieces."""
    content = bytearray(content)
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, max(0, len(content) - 1))
        to = min(len(content), at + random.randint(1, 1 << random.randint(0, 8)))
        match random.randrange(8):
            case 0 if content:
                content[at] ^= 1 << random.randrange(8)
            case 1 if content:
                content[at] = random.randrange(256)
            case 2:
                del content[at:]
            case 3:
                del content[at:to]
            case 4:
                content[to:to] = content[at:to] * random.choice([1, 1, 2, 300])
            case 5:
                width = random.choice([1, 2, 4, 8])
                number = random.choice([0, 1, 1 << 31, (1 << 63) - 1, (1 << 64) - 2, (1 << 64) - 1]) & ((1 << 8 * width) - 1)
                content[at : at + width] = number.to_bytes(width, random.choice(["little", "big"]))
            case 6:
                content[at:to] = random.choice(WORDS)
            case _:
                content[at:at] = random.choice(WORDS)
    return bytes(content)


def json_changed(content, random):
    """Another value, key or order somewhere in a JSON text."""
    root = [json.loads(content)]
    for _ in range(random.randint(1, 3)):
        # Down to a random depth; the small children are as likely as the large ones.
        here, key = root, 0
        while isinstance(here[key], (dict, list)) and here[key] and random.random() < 0.85:
            here, key = here[key], random.choice(list(here[key]) if isinstance(here[key], dict) else range(len(here[key])))
        match random.randrange(5):
            case 0 if here is not root:
                del here[key]
            case 1 if isinstance(here, dict):
                here[random.choice(["", "\x1b[2J", "a" * 999, "type", key])] = here[key]
            case 2 if isinstance(here, list):
                here[:] = here * random.choice([2, 2, 50])
            case 3 if isinstance(here[key], (int, float)):
                here[key] = random.choice([here[key] * -1, here[key] + 1, here[key] * 1000, 0])
            case _:
                here[key] = random.choice(ODD)
        if not root:
            root = [None]
    return json.dumps(root[0], ensure_ascii=random.random() < 0.5).encode(errors="surrogatepass")


def lines_changed(change):
    """Changes one line in this way, or their order and number."""

    def changed(content, random):
        lines = content.split(b"\n")
        full = [number for number, line in enumerate(lines) if line.strip()]
        for _ in range(random.randint(1, 3)):
            number = random.choice(full)
            match random.randrange(6):
                case 0:
                    lines[number] = lines[random.choice(full)]
                case 1:
                    lines[number] *= 2
                case _:
                    try:
                        lines[number] = change(lines[number], random)
                    except ValueError:
                        lines[number] = b""
        return b"\n".join(lines)

    return changed


def toml_line_changed(line, random):
    key, _, value = line.partition(b" = ")
    odd = [b'"x"', b"-1", b"0", b"1e999", b"nan", b"true", b"[]", b"{}", b'"\\u001b[2J"', b"99999999999999999999", b"1979-05-27", b"'", value * 2]
    return random.choice([key + b" = " + random.choice(odd), b"[" + key + b"]", b'"' + key + b'" = ' + value, b"other" + line, b""])


def template_changed(content, random):
    pieces = re.split(rb"({%.*?%}|{{.*?}})", content, flags=re.S)
    number = random.randrange(len(pieces))
    pieces[number] = random.choice([
        b"", pieces[number] * 2, random.choice(pieces), b"{{ messages }}", b"{{ 'x' * 9999 }}", b"{% for i in range(999) %}", b"{% endfor %}",
        b"{{ messages[99].content }}", b"{{ 1/0 }}", b"{{ undefined.x.y }}", b"{% set messages = none %}", b"{{ raise_exception('\x1b[2J') }}",
    ])  # fmt: skip
    return b"".join(pieces)


def safetensors_changed(content, random):
    (length,) = struct.unpack("<Q", content[:8])
    header = json_changed(content[8 : 8 + length], random)
    return struct.pack("<Q", len(header) + random.choice([0, 0, 0, 1, -1])) + header + content[8 + length :]


def zst(content):
    """A frame of Zstandard whose blocks are not compressed, which needs no library."""
    blocks = [content[at : at + 65536] for at in range(0, len(content), 65536)] or [b""]
    heads = [struct.pack("<I", (len(block) << 3) | (number == len(blocks) - 1))[:3] for number, block in enumerate(blocks)]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(head + block for head, block in zip(heads, blocks))


def packed(compress, change):
    """Changes what is in the file, or the file."""
    return lambda content, random: compress(change(content, random)) if random.random() < 0.5 else bytes_changed(compress(content), random)


class Kind:
    """One kind of input: where it lies, how it is changed, and which commands read it."""

    def __init__(self, name, count, file, original, structure, *commands, codes=(2, 3, 4), names=()):
        self.name, self.count, self.file, self.original, self.structure = name, count, file, original, structure
        self.commands, self.codes, self.names = commands, codes, names

    def changed(self, random):
        if self.structure and random.random() < 0.6:
            try:
                return self.structure(self.original, random)
            except (ValueError, RecursionError, IndexError):
                pass
        return bytes_changed(self.original, random)


def all_kinds(context):
    with context.place() as place:
        for kind in kinds(place):
            row = context.row(f"changed inputs: {kind.name}")
            path = place.write(kind.file, kind.original)
            for words in kind.commands:
                done = place.run(*words)
                if done.code not in (0, 5):
                    row.tried("unchanged", [f"the input is refused before it is changed: {done.short()}"])
            for number in range(int(kind.count * context.scale)):
                case = f"{kind.name} {number}"
                if not row.wants(case):
                    continue
                path.write_bytes(kind.changed(row.random(case)))
                done = place.run(*kind.commands[number % len(kind.commands)], seconds=60)
                row.tried(case, refusal(done, path.name, *kind.names, codes=kind.codes), f"exit {done.code}", done, keep=[path])
            path.write_bytes(kind.original)


def kinds(place):
    """The kinds, with the files that they need beside them."""
    chats = b"".join((DEMO / "train.jsonl").read_bytes().splitlines(keepends=True)[:12])
    place.chats(4, "few.jsonl")
    model = {path.name: path.read_bytes() for path in MODEL.iterdir()}
    place.model()
    place.model(FIXTURE / "checkpoint_trained_bf16", "sharded")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        place.write(f"sharded/{name}", model[name])
    place.chats()
    place.run(*place.train("--max-steps", "4", "--save-steps", "2"), env=STEPS)
    (run,) = [path for path in (place / "runs").iterdir() if (path / "events").is_dir()]
    tokens = (run / "data/train.qubgpu").read_bytes()
    place.run("unpack", run / "data/eval.qubgpu", "v1.qubgpu", "--to", "v1")
    v1 = (place / "v1.qubgpu").read_bytes()
    csv = b"question,answer\r\n" + b"".join(b'"What is %d, ""really""?",A number\r\n' % number for number in range(9))
    jsonl, toml = lines_changed(json_changed), lines_changed(toml_line_changed)
    # With most of its lines damaged, a file is read to its end.
    plain = ["check", "--max-rejected", "0.9"]
    check = [*plain, "--model", "model"]
    with_model = ["check", "--model", "model", "few.jsonl"]
    plan = ["plan", "--model", "model", "--data", "few.jsonl"]
    answer = ["generate", "{}", "--prompt", "a", "--max-tokens", "1", "--device", "cpu"]
    on_run = [["watch", run.name, "--plain"], ["report", run.name], ["runs", "--json"], ["report", run.name, "--json"]]
    of_run, unpack = f"runs/{run.name}", ["unpack", "in.qubgpu", "out.jsonl"]
    answered = lambda folder: [word.format(folder) for word in answer]
    return [
        Kind("jsonl", 400, "in.jsonl", chats, jsonl, [*plain, "in.jsonl"]),
        Kind("jsonl with a model", 220, "in.jsonl", chats, jsonl, [*check, "in.jsonl"], [*check, "in.jsonl", "--show", "2"]),
        Kind("gz", 305, "in.jsonl.gz", chats, packed(lambda text: gzip.compress(text, mtime=0), jsonl), [*plain, "in.jsonl.gz"]),
        Kind("zst", 400, "in.jsonl.zst", chats, packed(zst, jsonl), [*plain, "in.jsonl.zst"]),
        Kind("csv", 400, "in.csv", csv, lines_changed(bytes_changed), [*plain, "in.csv", "--map", "question=prompt,answer=completion"]),
        Kind("parquet", 400, "in.parquet", (TREE / "tests/fixtures/parquet/chats.parquet").read_bytes(), None, [*plain, "in.parquet"]),
        Kind("tokenizer.json", 400, "model/tokenizer.json", model["tokenizer.json"], json_changed, with_model),
        Kind("tokenizer_config.json", 400, "model/tokenizer_config.json", model["tokenizer_config.json"], json_changed, with_model),
        Kind("config.json", 400, "model/config.json", model["config.json"], json_changed, plan, answered("model")),
        Kind("chat template", 400, "model/chat_template.jinja", model["chat_template.jinja"], template_changed, with_model, names=["the chat template", "too long"]),
        Kind("safetensors", 200, "model/model.safetensors", model["model.safetensors"], safetensors_changed, answered("model"), plan),
        Kind(
            "index", 310, "sharded/model.safetensors.index.json", (place / "sharded/model.safetensors.index.json").read_bytes(), json_changed,
            [*plan[:2], "sharded", *plan[3:]], answered("sharded"), names=["sharded"],
        ),
        Kind("events", 800, f"{of_run}/events/0001.jsonl", (run / "events/0001.jsonl").read_bytes(), jsonl, *on_run, codes=(2, 3, 4, 5), names=[run.name]),
        Kind("plan.toml of a run", 400, f"{of_run}/plan.toml", (run / "plan.toml").read_bytes(), toml, *on_run, ["export", run.name], names=[run.name]),
        Kind("preset", 270, "preset.toml", (TREE / "presets/demo.toml").read_bytes(), toml, [*plan, "--preset", "preset.toml"], names=["in the preset"]),
        Kind("token file, verify", 400, "in.qubgpu", tokens, None, ["verify", "in.qubgpu"]),
        Kind("token file, unpack", 400, "in.qubgpu", tokens, None, unpack, [*unpack, "--on-damage", "drop"]),
        Kind("token file of version 1", 400, "in.qubgpu", v1, None, ["verify", "in.qubgpu"], ["packet", "show", "in.qubgpu"]),
    ]  # fmt: skip
