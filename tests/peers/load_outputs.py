"""Loads what a run left with transformers and PEFT, and compares: not part of the test suite, which has no Python.

    pip install torch transformers peft
    python tests/peers/load_outputs.py RUN_FOLDER BASE_FOLDER

Checks, in fp32 on the CPU: the merged model generates the text that the run recorded as its last samples; every snippet of
SERVE.md runs as it stands there, and each adapter on its base gives the logits of the merged model (but for the merged
weights' rounding to their stored type) without a warning of PEFT; the tokenizer's chat template renders; the tokens to draft
from, where the run chose some, are a list that SGLang's way of loading takes.
"""

import json
import os
import re
import sys
import warnings
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

run, base = (Path(folder).resolve() for folder in sys.argv[1:3])
outputs = run / "outputs"
events = [json.loads(line) for file in sorted((run / "events").iterdir()) for line in file.open()]
samples = [event for event in events if event["kind"] == "sample"]
last = [event for event in samples if event["step"] == samples[-1]["step"]]


def logits(model, ids):
    with torch.no_grad():
        return model.to(torch.float32)(ids).logits


def distance(one, other):
    return ((one - other).norm() / other.norm()).item()


for folder in ["merged", "merged-mtp"]:
    if not (outputs / folder).is_dir():
        continue
    path = outputs / folder
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for sample in last:
        ids = tokenizer(sample["prompt"], return_tensors="pt").input_ids
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=sample["tokens"])
        text = tokenizer.decode(out[0, ids.shape[1] :])
        assert text == sample["text"], f"{folder}:\n{text!r}\ninstead of\n{sample['text']!r}"
    print(f"{folder}: {len(last)} recorded samples generated again, token for token")

assert tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False, add_generation_prompt=True)

if (outputs / "draft-tokens.pt").is_file():
    ids = torch.tensor(torch.load(outputs / "draft-tokens.pt", weights_only=True), dtype=torch.int64)
    assert ids.dim() == 1 and (ids[1:] > ids[:-1]).all() and tokenizer.eos_token_id in ids
    print(f"draft-tokens.pt: {len(ids)} ids, the end token among them")

ids = tokenizer(last[0]["prompt"] + last[0]["text"], return_tensors="pt").input_ids
expected = logits(AutoModelForCausalLM.from_pretrained(outputs / "merged"), ids)
without = distance(logits(AutoModelForCausalLM.from_pretrained(base), ids), expected)
snippets = re.findall(r"```python\n(.*?)```", (outputs / "SERVE.md").read_text(encoding="utf-8"), re.DOTALL)
adapters = [path.name for path in outputs.glob("adapter*")]
assert len(snippets) == 1 + len(adapters), f"{len(snippets)} snippets for the model and {adapters}"
os.chdir(outputs)
for snippet in snippets:
    # The page names the base as the user did, which may be an id on the hub.
    here = re.sub(r'(base = \w+\.from_pretrained\()"(?:[^"\\]|\\.)*"', lambda found: found[1] + repr(str(base)), snippet)
    names = {}
    with warnings.catch_warnings():
        # PEFT only warns about an adapter that fits no module, and goes on with the base.
        warnings.filterwarnings("error", message=".*(adapter keys|did not match).*")
        exec(here, names)
    found = distance(logits(names["model"], ids), expected)
    print(f"{snippet.splitlines()[-1]}\n    logits within {found:.1e} of the merged model's (base alone: {without:.1e})")
    assert found < 0.02 < without
