"""Loads what a run left with transformers and PEFT, and compares: not part of the test suite, which has no Python.

    pip install torch transformers peft
    python tests/peers/load_outputs.py RUN_FOLDER BASE_FOLDER

Checks, in fp32 on the CPU: the merged model generates the text that the run recorded as its last samples; adapter on base
gives the logits of the merged model (but for the merged weights' rounding to their stored type); the tokenizer's chat
template renders; the tokens to draft from, where the run chose some, are a list that SGLang's way of loading takes.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

run, base = Path(sys.argv[1]), Path(sys.argv[2])
events = [json.loads(line) for file in sorted((run / "events").iterdir()) for line in file.open()]
samples = [event for event in events if event["kind"] == "sample"]
last = [event for event in samples if event["step"] == samples[-1]["step"]]

for folder in ["merged", "merged-mtp"]:
    if not (run / "outputs" / folder).is_dir():
        continue
    path = run / "outputs" / folder
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for sample in last:
        ids = tokenizer(sample["prompt"], return_tensors="pt").input_ids
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=sample["tokens"])
        text = tokenizer.decode(out[0, ids.shape[1] :])
        assert text == sample["text"], f"{folder}:\n{text!r}\ninstead of\n{sample['text']!r}"
    print(f"{folder}: {len(last)} recorded samples generated again, token for token")

assert tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False, add_generation_prompt=True)

if (run / "outputs" / "draft-tokens.pt").is_file():
    ids = torch.tensor(torch.load(run / "outputs" / "draft-tokens.pt", weights_only=True), dtype=torch.int64)
    assert ids.dim() == 1 and (ids[1:] > ids[:-1]).all() and tokenizer.eos_token_id in ids
    print(f"draft-tokens.pt: {len(ids)} ids, the end token among them")

if (run / "outputs" / "adapter").is_dir():
    from peft import PeftModel

    ids = tokenizer(last[0]["prompt"] + last[0]["text"], return_tensors="pt").input_ids
    with torch.no_grad():
        merged = AutoModelForImageTextToText.from_pretrained(run / "outputs" / "merged", dtype=torch.float32)
        expected = merged(ids).logits
        plain = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
        without = plain(ids).logits
        adapted = PeftModel.from_pretrained(plain, run / "outputs" / "adapter")
        got = adapted(ids).logits
    distance = ((got - expected).norm() / expected.norm()).item()
    untrained = ((without - expected).norm() / expected.norm()).item()
    print(f"adapter on base: logits within {distance:.1e} of the merged model's (base alone: {untrained:.1e})")
    assert distance < 0.02 < untrained
