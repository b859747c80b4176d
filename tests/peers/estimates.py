"""What plan and dashboard say beforehand, beside what a run takes: time and memory, as a table.

    estimates.py SPARKTUNE [--folder FOLDER] [CASE …]

Needs nothing but Python. Each case is a run of its own: `plan` in a folder without measured speeds, the run, and `plan` again,
which then knows the speed of that run. "After 10 steps" is the time left that the lines of the run say at step 11, added to
the time that had passed. The large model has the shape of Qwen3.5 with random weights; it is made in FOLDER, or in a temporary
one. The logits of the ids that end an answer are 0 in it, so that its answers have the length that the plan counts with.
"Others" is the share of the machine's processor time that went to other programs: where it is large, only memory counts.
"""

import argparse
import json
import os
import random
import re
import struct
import subprocess
import tempfile
import time
from pathlib import Path

DEMO = Path(__file__).resolve().parent.parent.parent / "presets/demo"
LARGE = {"vocab_size": 32_768, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 8, "num_key_value_heads": 2}
LARGE |= {"head_dim": 128, "linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 64}
LARGE |= {"linear_value_head_dim": 64}
PARTS = ("start_s", "train_s", "eval_s", "mtp_s", "finish_s")
SHORT = ["--pack-length", "384", "--grad-accum-steps", "1", "--save-steps", "100", "--learning-rate", "1e-5"]
LEAN = ["--max-steps", "16", "--mtp", "default", "--eval-fraction", "0", "--sample-count", "0"]
WHOLE = ["--max-steps", "12", "--mtp", "trained", "--eval-fraction", "0.02", "--eval-steps", "6", "--sample-count", "2", "--sample-max-tokens", "32"]
CASES = {
    "demo": ("demo", ["--preset", "demo"]),
    "lora": ("large", ["--method", "lora", "--rank", "16", *SHORT, *LEAN]),
    "lora-whole": ("large", ["--method", "lora", "--rank", "16", *SHORT, *WHOLE]),
    "full": ("large", ["--method", "full", *SHORT, *LEAN]),
    "full-whole": ("large", ["--method", "full", *SHORT, *WHOLE]),
    "recompute": ("large", ["--method", "lora", "--rank", "16", "--recompute", "true", *SHORT, *LEAN]),
}


def shape_of(name: str, shape: list[int], config: dict) -> list[int]:
    """The shape of a tensor of the demo's model in a model of this config."""
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    mixed = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + values
    of_kind = {
        "embed_tokens.weight": [config["vocab_size"], hidden],
        "A_log": [config["linear_num_value_heads"]],
        "dt_bias": [config["linear_num_value_heads"]],
        "linear_attn.norm.weight": [config["linear_value_head_dim"]],
        "conv1d.weight": [mixed, 1, 4],
        "in_proj_a.weight": [config["linear_num_value_heads"], hidden],
        "in_proj_b.weight": [config["linear_num_value_heads"], hidden],
        "in_proj_qkv.weight": [mixed, hidden],
        "in_proj_z.weight": [values, hidden],
        "out_proj.weight": [hidden, values],
        "gate_proj.weight": [mlp, hidden],
        "up_proj.weight": [mlp, hidden],
        "down_proj.weight": [hidden, mlp],
        "q_proj.weight": [2 * queries, hidden],
        "k_proj.weight": [keys, hidden],
        "v_proj.weight": [keys, hidden],
        "o_proj.weight": [hidden, queries],
        "q_norm.weight": [config["head_dim"]],
        "k_norm.weight": [config["head_dim"]],
        "mtp.fc.weight": [hidden, 2 * hidden],
    }
    if "visual" in name:
        return [hidden if name.startswith("model.visual.merger.linear_fc2") and size == 192 else size for size in shape]
    found = next((shape for end, shape in of_kind.items() if name.endswith(end)), None)
    return found or [hidden]


def make(folder: Path, layers: int = 8) -> Path:
    """Writes a random checkpoint in bf16 with the demo's tokenizer and template."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "model.safetensors").exists():
        return folder
    for file in (DEMO / "model").iterdir():
        if file.name != "model.safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    text |= LARGE | {"num_hidden_layers": layers, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4)}
    text["rope_parameters"] |= {"mrope_section": [6, 5, 5]}
    config["vision_config"]["out_hidden_size"] = text["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    with (DEMO / "model/model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    tensors = {}
    for name, tensor in header.items():
        shape = shape_of(name, tensor["shape"], text)
        layer = re.match(r"model\.language_model\.layers\.(\d+)\.", name)
        for copy in range(0, layers, 4) if layer else [0]:
            at = f"layers.{int(layer[1]) + copy}." if layer else ""
            tensors[re.sub(r"layers\.\d+\.", at, name, count=1) if layer else name] = (tensor["dtype"], shape)
    offset, head = 0, {"__metadata__": {"format": "pt"}}
    for name, (dtype, shape) in tensors.items():
        size = (2 if dtype == "BF16" else 4) * numbers(shape)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    written = json.dumps(head).encode()
    written += b" " * (-len(written) % 8)
    # The upper byte of a number in bf16: its sign, and an exponent for absolute values from 2^-6 to 2^-5.
    small = bytes(0x3C | byte & 0x80 for byte in range(256))
    source = random.Random(1)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(written)) + written)
        for name, (dtype, shape) in tensors.items():
            count = numbers(shape)
            if dtype != "BF16" or "norm" in name:
                file.write((struct.pack("<f", 0.1) if dtype == "F32" else b"\x00\x00") * count)
                continue
            values = bytearray(source.randbytes(2 * count))
            values[1::2] = values[1::2].translate(small)
            if name.endswith("embed_tokens.weight"):
                for stop in json.loads((folder / "generation_config.json").read_text())["eos_token_id"]:
                    row = slice(2 * stop * shape[1], 2 * (stop + 1) * shape[1])
                    values[row] = bytes(2 * shape[1])
            file.write(values)
    return folder


def numbers(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def seconds(words: str) -> float:
    """The duration of `1 h 2 min` or `3 min 4 s`."""
    units = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}
    return sum(float(number.replace(",", "")) * units[unit] for number, unit in re.findall(r"([\d.,]+) (ms|s|min|h|d)\b", words))


def machine_s() -> tuple[float, float]:
    """The processor time of the machine, used and in all, in seconds."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    user, nice, system, idle, waits, irq, softirq, stolen = fields
    used = user + nice + system + irq + softirq + stolen
    return used / 100, (used + idle + waits) / 100


def plan_of(program: str, arguments: list[str], folder: Path) -> dict:
    answer = subprocess.run([program, "plan", "--json", *arguments], cwd=folder, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(answer.stderr)
    found = json.loads(answer.stdout)
    return found.get("plan", found)["advice"]


def told(advice: dict) -> float:
    return sum(advice["time"].get(part) or 0 for part in PARTS)


def measure(program: str, name: str, model: Path, arguments: list[str], folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ["--model", str(model), "--data", str(DEMO / "train.jsonl"), "--device", "cpu", *arguments]
    before = plan_of(program, arguments, folder)
    used, began = machine_s()[0], time.monotonic()
    own = os.times()
    run = subprocess.run([program, "train", "--plain", "--non-interactive", *arguments], cwd=folder, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stdout[-2000:] + run.stderr[-2000:])
    wall, used, now = time.monotonic() - began, machine_s()[0] - used, os.times()
    own = now.children_user + now.children_system - own.children_user - own.children_system
    after = plan_of(program, arguments, folder)
    newest = max((folder / "runs").glob("*/events/0001.jsonl"), key=os.path.getmtime)
    events = [json.loads(line) for line in newest.read_text().splitlines()]
    at = {"start": events[0]["time_us"] / 1e6, "end": events[-1]["time_us"] / 1e6}
    steps = [event for event in events if event["kind"] == "step"]
    took = at["end"] - at["start"]
    tenth = steps[10]
    left = next(line for line in (run.stdout + run.stderr).splitlines() if f"step       {tenth['step']}/" in line)
    left = seconds(left.rsplit("left", 1)[1]) + tenth["time_us"] / 1e6 - at["start"]
    phases = [(event["phase"], event["time_us"] / 1e6 - at["start"]) for event in events if event["kind"] == "phase"]
    first = {}
    for phase, when in phases:
        first.setdefault(phase, round(when, 1))
    finished = events[-1]
    peak, memory = finished["mem_peak_bytes"], finished["mem_predicted_bytes"]
    print(f"  {name}: phases {first}, last step {steps[-1]['time_us'] / 1e6 - at['start']:.1f}, end {took:.1f}; told", end=" ")
    print({part: round(after["time"].get(part) or 0, 1) for part in PARTS}, flush=True)
    print(f"  memory {after['memory']}", flush=True)
    print(f"  first plan: {before['time']['formula']}", flush=True)
    off = lambda said, was: f"{said:.0f} s ({said / was - 1:+.0%})"
    others = max(used - own, 0) / wall / (os.cpu_count() or 1)
    return (
        f"| {name} | {off(told(before), took)} | {off(told(after), took)} | {off(left, took)} | {took:.0f} s | {others:.0%} "
        f"| {memory / 1e6:,.0f} MB ({memory / peak - 1:+.0%}) | {peak / 1e6:,.0f} MB |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sparktune")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    program = os.path.abspath(arguments.sparktune)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for name in arguments.cases:
            size, options = CASES[name]
            model = DEMO / "model" if size == "demo" else make(folder / "large")
            with tempfile.TemporaryDirectory(dir=folder) as place:
                rows.append(measure(program, name, model, options, Path(place)))
        print("\n| run | plan | plan, speed measured here | after 10 steps | took | others | memory, plan | at most |")
        print("|---|---|---|---|---|---|---|---|")
        print("\n".join(rows))


if __name__ == "__main__":
    main()
