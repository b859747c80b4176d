"""Decoding on the CPU next to transformers' `generate`: the same tokens, and the speed of both in one run.

    decoding.py SPARKTUNE [--family qwen3|qwen3_5|both] [--threads N] [--rounds N] [--prompt N] [--tokens N] [--dtype float32]

Needs torch and transformers (requirements.txt of the fixtures). Makes random models of at least 150 M parameters in a
temporary folder. Ours is the worker process of the program, over its lines of JSON; theirs is `generate` with its cache, greedy,
in the same number format. Rounds of both alternate, because a shared machine is faster at one time than at another, and the
medians of all rounds are printed. A token that differs is printed with the gap between the two best logits.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures/qwen35/checkpoint"
PARSER = argparse.ArgumentParser()
PARSER.add_argument("sparktune")
PARSER.add_argument("--family", default="both", choices=["qwen3", "qwen3_5", "both"])
PARSER.add_argument("--threads", type=int, default=os.cpu_count())
PARSER.add_argument("--rounds", type=int, default=5)
PARSER.add_argument("--prompt", type=int, default=128)
PARSER.add_argument("--tokens", type=int, default=48)
PARSER.add_argument("--dtype", default="float32")
ARGUMENTS = PARSER.parse_args()
os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = str(ARGUMENTS.threads)
# OpenMP's threads sleep while they wait: with their default, to spin, they take busy cores from each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from transformers import AutoModelForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM
from transformers import StoppingCriteria

torch.set_num_threads(ARGUMENTS.threads)
VOCAB = 32_768


def make(family: str, folder: Path) -> None:
    """Writes a random checkpoint in bf16, as published ones are, with the tokenizer of the fixtures."""
    torch.manual_seed(1)
    common = {"vocab_size": VOCAB, "hidden_size": 1024, "intermediate_size": 3072, "tie_word_embeddings": True}
    common |= {"max_position_embeddings": 8192, "num_attention_heads": 16, "bos_token_id": 1, "eos_token_id": 2}
    if family == "qwen3":
        config = Qwen3Config(**common, num_hidden_layers=10, num_key_value_heads=8, head_dim=64)
        model = Qwen3ForCausalLM(config)
    else:
        config = Qwen3_5TextConfig(
            **common | {"intermediate_size": 3584},
            num_hidden_layers=8,
            num_key_value_heads=4,
            head_dim=64,
            layer_types=["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 3 + ["full_attention"],
            linear_num_key_heads=8,
            linear_num_value_heads=16,
            linear_key_head_dim=64,
            linear_value_head_dim=64,
        )
        model = Qwen3_5ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((FIXTURE / file).read_bytes())
    print(f"{family}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters")


class Ours:
    def __init__(self, folder: Path) -> None:
        command = [ARGUMENTS.sparktune, "infer-worker", str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ready = self.read()
        assert ready["event"] == "ready", ready

    def read(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def run(self, prompts: list[list[int]], count: int) -> tuple[float, float, list[list[int]]]:
        began = time.perf_counter()
        for i, prompt in enumerate(prompts):
            sampling = {"temperature": 0, "max_tokens": count, "ignore_eos": True}
            request = {"op": "generate", "id": str(i), "prompt_token_ids": prompt, "sampling": sampling}
            self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        tokens, first, done = [[] for _ in prompts], {}, 0
        while done < len(prompts):
            answer = self.read()
            assert answer["event"] in ("accepted", "text", "done"), answer
            if answer["event"] == "text":
                i = int(answer["id"])
                first.setdefault(i, time.perf_counter() - began)
                tokens[i] += [token["id"] for token in answer["tokens"]]
            elif answer["event"] == "done":
                done += 1
        total = time.perf_counter() - began
        # Until every answer has its first token, as in a batch of transformers.
        last_first = max(first.values())
        return last_first, total, tokens


class Theirs:
    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, ARGUMENTS.dtype)).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0

    def generate(self, prompts: list[list[int]], count: int, **more):
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            return self.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, **more
            )

    def run(self, prompts: list[list[int]], count: int) -> tuple[float, float, list[list[int]]]:
        first = []
        began = time.perf_counter()

        class Clock(StoppingCriteria):
            """Stops nothing. It is asked after every token, for any number of sequences."""

            def __call__(self, input_ids, scores, **_) -> torch.Tensor:
                first.append(time.perf_counter() - began)
                return torch.zeros(len(input_ids), dtype=torch.bool)

        out = self.generate(prompts, count, stopping_criteria=[Clock()])
        first_token = first[0]
        total = time.perf_counter() - began
        return first_token, total, out[:, len(prompts[0]) :].tolist()


def compare(theirs: Theirs, prompts, ours: list[list[int]], expected: list[list[int]]) -> None:
    for prompt, got, want in zip(prompts, ours, expected, strict=True):
        if got == want:
            continue
        at = next(i for i, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pair[1])
        with torch.inference_mode():
            logits = theirs.model(torch.tensor([prompt + want[:at]])).logits[0, -1]
        best = logits.float().topk(2).values
        print(f"  token {at} differs: {got[at]} and {want[at]}; the two best logits are {best[0] - best[1]:.2e} apart")


def main() -> None:
    families = ["qwen3", "qwen3_5"] if ARGUMENTS.family == "both" else [ARGUMENTS.family]
    for family in families:
        with tempfile.TemporaryDirectory() as folder:
            make(family, Path(folder))
            ours, theirs = Ours(Path(folder)), Theirs(Path(folder))
            for count in (1, 4):
                prompts = [[(7 * i * i + 31 * s + 5) % VOCAB for i in range(ARGUMENTS.prompt)] for s in range(count)]
                measured = {"ours": [], "theirs": []}
                for _ in range(ARGUMENTS.rounds):
                    results = {}
                    for name, side in (("ours", ours), ("theirs", theirs)):
                        first, total, tokens = side.run(prompts, ARGUMENTS.tokens)
                        rate = count * (ARGUMENTS.tokens - 1) / max(total - first, 1e-9)
                        measured[name].append((first, rate))
                        results[name] = tokens
                compare(theirs, prompts, results["ours"], results["theirs"])
                median = {
                    name: [statistics.median(column) for column in zip(*rows)] for name, rows in measured.items()
                }
                (our_first, our_rate), (their_first, their_rate) = median["ours"], median["theirs"]
                print(
                    f"  {count} sequence(s): first token {our_first * 1000:.0f} ms against {their_first * 1000:.0f} ms"
                    f" (×{their_first / our_first:.2f}), {our_rate:.1f} tokens/s against {their_rate:.1f}"
                    f" (×{our_rate / their_rate:.2f})",
                    flush=True,
                )
            ours.process.stdin.close()
            ours.process.wait()


if __name__ == "__main__":
    main()
