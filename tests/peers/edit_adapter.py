"""Loads the PEFT adapter of an edit with transformers and peft, and compares its greedy answers with ours: not part of the test suite.

    pip install torch transformers peft
    python tests/peers/edit_adapter.py SPARKTUNE [--facts 10] [--layer 0]

Writes the first facts of tests/fixtures/facts into the model there with MEMIT, exports the patch, and asks base and adapter in fp32 on the CPU
what the edit asked. transformers 5.24 with its own DeltaNet, and peft 0.21, gave the same answers.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from peft import PeftModel
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

WORLD = Path(__file__).resolve().parents[1] / "fixtures/facts"
LONGEST = 16

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--facts", type=int, default=10)
parser.add_argument("--layer", default="0")
arguments = parser.parse_args()

tokenizer = Tokenizer.from_file(str(WORLD / "model/tokenizer.json"))


def answers(model, prompts):
    """Greedy answers; the end of the text has no words."""
    found = []
    for prompt in prompts:
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        with torch.no_grad():
            out = model.generate(input_ids=torch.tensor([ids]), max_new_tokens=LONGEST, do_sample=False)
        found.append(tokenizer.decode(out[0, len(ids) :].tolist(), skip_special_tokens=True))
    return found


def same(ours, theirs):
    """Ours may have fewer tokens."""
    return sum(their.strip().startswith(our.strip()) for our, their in zip(ours, theirs))


with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder)
    lines = (WORLD / "facts.jsonl").read_text(encoding="utf-8").splitlines()[: arguments.facts]
    (folder / "facts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    edit = [arguments.program, "edit", WORLD / "model", "--facts", folder / "facts.jsonl", "--method", "memit", "--layer", arguments.layer]
    edit += ["--text", WORLD / "text.jsonl", "-o", folder / "edited", "--force", "--json", "--runs-dir", folder / "runs"]
    asked = json.loads(subprocess.run(edit, check=True, capture_output=True, text=True).stdout)["answers"]
    export = [arguments.program, "edit", "export", folder / "edited", "-o", folder / "adapters", "--json"]
    exported = json.loads(subprocess.run(export, check=True, capture_output=True, text=True).stdout)
    prompts = [answer["prompt"] for answer in asked]
    base = AutoModelForCausalLM.from_pretrained(WORLD / "model", dtype=torch.float32).eval()
    count = len(prompts)
    before = same([answer["before"] for answer in asked], answers(base, prompts))
    print(f"base: {before} of {count} answers are ours")
    failed = before < count
    for adapter in exported["adapters"]:
        model = PeftModel.from_pretrained(base, adapter).eval()
        unused = [name for name, number in model.named_parameters() if "lora_B" in name and not number.any()]
        after = same([answer["after"] for answer in asked], answers(model, prompts))
        changed = sum(answer["before"] != answer["after"] for answer in asked)
        name = Path(adapter).name
        print(f"{name} of rank {exported['rank']}: {after} of {count} answers are ours, {changed} of which differ from the base's; {len(unused)} layers are zero")
        failed |= after < count
        base = model.unload()
    sys.exit(1 if failed else 0)
