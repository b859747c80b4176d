"""Training steps of the same shapes by transformers and peft, the way their users train: bf16, fused AdamW, no recompute.

    peers.py --json FILE [--seconds N] [--tiny]

Randomly initialised models, one document of 5,376 fresh random tokens a step, every token with a loss, clipping at 1. With
flash-linear-attention where it can be imported, else with transformers' own loop over chunks. Full fine-tuning keeps weights and
moments in bf16, which moves fewer bytes than sparktune's fp32 masters: an advantage for the peer.
"""

import argparse
import gc
import importlib.util
import pathlib
import statistics
import sys
import time

import shapes
from rows import Clock, Rows, skip, torch_or_skip

# What build.sh took along stands behind the machine's own packages, which were made for its PyTorch.
sys.path.append(str(pathlib.Path(__file__).resolve().parent / "packages"))

WARM_UP, TIMED = 3, 5
TARGETS = "q_proj k_proj v_proj o_proj in_proj_qkv in_proj_z in_proj_a in_proj_b out_proj gate_proj up_proj down_proj".split()
TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 512,
    "head_dim": 32,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096,
}


def model(torch, device, config, method, rank):
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    text = Qwen3_5TextConfig(**config, full_attention_interval=4, rope_parameters=rope, use_cache=False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            made = Qwen3_5ForCausalLM(text)
    finally:
        torch.set_default_dtype(before)
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
        made = get_peft_model(made, lora, autocast_adapter_dtype=False)
    return made.train()


class Steps:
    """One model in training; `checkpointing` computes layers again in the backward pass."""

    def __init__(self, torch, device, config, method, rank, length, checkpointing):
        self.torch, self.device, self.length = torch, device, length
        self.vocabulary = config["vocab_size"]
        self.model = model(torch, device, config, method, rank)
        if checkpointing:
            self.model.enable_input_require_grads()
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.trained = trained
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=device.type == "cuda")

    def step(self):
        """One optimizer step; seconds by the clock, between two synchronisations."""
        ids = self.torch.randint(0, self.vocabulary, (1, self.length), device=self.device)
        self.wait()
        began = time.perf_counter()
        loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.wait()
        return time.perf_counter() - began, float(loss.detach())

    def wait(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()


def measured(torch, device, config, method, rank, length, checkpointing):
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    steps = Steps(torch, device, config, method, rank, length, checkpointing)
    for _ in range(WARM_UP):
        steps.step()
    seconds, losses = zip(*(steps.step() for _ in range(TIMED)))
    step_s = statistics.median(seconds)
    return {
        "step_ms": step_s * 1e3,
        "tokens_per_s": length / step_s,
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "loss": losses[-1],
    }


def attempt(torch, device, *how):
    """The measured fields, or None where memory does not suffice. Nothing of the attempt is left in memory."""
    try:
        return measured(torch, device, *how)
    except torch.OutOfMemoryError:
        return None
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def run(torch, device, rows, clock, size, config, method, rank, length, peer):
    """One row; with recompute when the memory does not suffice without."""
    row = {"name": f"{size} {method}", "size": size, "method": method, "pack": length, "peer": peer}
    if not clock.has_room():
        rows.add(**row, skipped="no time is left")
        return
    plain = attempt(torch, device, config, method, rank, length, False)
    if plain:
        rows.add(**row, **plain)
    elif again := attempt(torch, device, config, method, rank, length, True):
        rows.add(**row, **again, note="with recompute: memory did not suffice without")
    else:
        rows.add(**row, skipped="there is not enough memory, not even with recompute")
    clock.done()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--json", required=True)
    arguments.add_argument("--seconds", type=float, default=float("inf"))
    arguments.add_argument("--tiny", action="store_true")
    asked = arguments.parse_args()
    clock = Clock(asked.seconds * 0.9)
    torch, device = torch_or_skip(asked.tiny)
    for package in ("transformers", "peft"):
        if importlib.util.find_spec(package) is None:
            skip(f"{package} is not importable by {sys.executable}")
    import peft
    import transformers

    if not hasattr(transformers, "Qwen3_5ForCausalLM"):
        skip(f"transformers {transformers.__version__} has no Qwen3.5")
    rows = Rows(asked.json)
    how = f"transformers {transformers.__version__} + peft {peft.__version__}"
    fast = [("fla", "flash-linear-attention"), ("causal_conv1d", "causal-conv1d")]
    for module, name in fast:
        if importlib.util.find_spec(module) is None:
            rows.add(name=f"with {name}", skipped=f"{module} is not importable by {sys.executable}")
        else:
            how += f" + {name}"
    if asked.tiny:
        for method in ("lora", "full"):
            run(torch, device, rows, clock, "tiny", TINY, method, 4, 96, how)
        return
    sizes = shapes.sizes()
    for size in ("2B", "0.8B"):
        for method in ("lora", "full"):
            run(torch, device, rows, clock, size, sizes[size], method, shapes.RANK, shapes.PACK, how)


if __name__ == "__main__":
    main()
