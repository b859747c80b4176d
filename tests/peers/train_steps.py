"""A peer for `sparktune bench`: trains a model on given packs with transformers and peft, one optimizer step at a time.

    pip install torch transformers peft                      (docker/Dockerfile.peers has pinned versions, for CUDA)
    python tests/peers/train_steps.py --model FOLDER --packs FILE --method lora|full [options]

The program that measures writes the packs, starts this script, and asks for one step whenever it wants one. It can so make
its own steps in between, and a busy machine treats both alike. This file stands alone: it imports nothing of the repository.

Packs: a file of JSON Lines, one object for each pack, in the order of training.

    {"step": 1, "input_ids": [5, 7, …], "labels": [-100, 7, …], "cu_seqlens": [0, 37, 130]}

step        the optimizer step that the pack belongs to. Packs of one step are consecutive lines; steps count up from 1.
input_ids   [T] tokens of one or more examples, one after the other.
labels      [T] not shifted; -100 where a token has no loss. The first token of an example never has one, whatever is written.
cu_seqlens  borders of the examples, from 0 to T. Positions start at 0 in each example, so they are not in the file.

Protocol: a line on standard input, a line of JSON on standard output. Everything else, such as warnings of the libraries,
goes to standard error.

    (start)  {"event": "ready", "protocol": 1, "peer": "transformers 5.23.0 + peft 0.21.2", "device": …, "layout": …, …}
    step     {"event": "step", "step": 1, "loss": 2.31, "grad_norm": 0.8, "learning_rate": 1e-4, "wall_s": 0.52,
              "cpu_s": 1.01, "tokens": 512, "trained_tokens": 301}
    quit     {"event": "finished", "steps": 5, "peak_rss_bytes": …, "peak_device_bytes": null}

After its last step the file starts again from the first. The end of the input means `quit`. When anything fails, the last line
is {"event": "error", "message": …} and the exit code is 1 (2 for wrong options).

loss            nats: the sum of the token losses of all packs of the step over the number of their trained tokens, before
                the step's update. Not a mean of means.
wall_s, cpu_s   of forward, backward, clipping and update, between two synchronisations with the device; reading the file and
                moving tokens to the device come before. cpu_s is the processor time of all threads of this process.
                OpenMP's threads are told to sleep while they wait (OMP_WAIT_POLICY=passive, unless the environment says
                otherwise). With their default, to spin, this peer took up to 20 times as long on 2 busy cores.
tokens          all tokens of the step, padding not counted.
peak_rss_bytes  highest resident memory of the process, loading included; peak_device_bytes is of torch's allocator on the GPU.

What is trained as sparktune does it: AdamW as in torch, weight decay on tensors of two or more dimensions only, clipping by the
global norm, and its schedule: step `i` of `--total-steps`, from 0, has `lr · (i+1)/warmup` during warm-up, then a half cosine
from `lr` down to `lr · min_lr_ratio`. By default everything is fp32. With `--dtype bfloat16` products run in bf16 (autocast):
full fine-tuning keeps fp32 weights, and with LoRA the frozen base is bf16 and the adapter fp32. `--adapter` starts from an
adapter in PEFT's format, which sets its rank and scaling too; without it a fresh one is drawn from `--seed`. All linears of
the layers are adapted. A folder with config.json alone gives random weights, for measuring time only.

Layout: how the examples of a pack are run. Each of these is exact: every example gets the loss it has alone.

    packed   the whole pack in one row. Families with attention alone: transformers blocks the examples from each other by their
             positions. Qwen3.5: only on a GPU with flash-linear-attention and causal-conv1d; without them transformers has no
             reset of convolution and state (5.23 raises an error). Held against `single` on short examples before use.
    padded   the examples of a pack as the rows of one batch, padded on the right.
    single   one example after the other.

`--layout auto` takes `packed` where it is exact, else the quicker of the other two on the first step. The line `ready` says
which, and why.

`--library unsloth` trains with Unsloth as its documentation shows it, on a GPU, one example at a time: the baseline of the
Qwen3.5 recipe, with the versions of docker/Dockerfile.peers. It has never been run by us.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

PROTOCOL = 1
# How far the loss of a short example may be from its loss alone, in nats. A missing reset changes some by 0.2 and more.
EXACT = {"float32": 2e-4, "bfloat16": 2e-2}
PROBES, PROBE_LENGTH = 8, 16


class Failure(Exception):
    """What the one who started this has to know. The text says what to do."""


# ---- packs -----------------------------------------------------------------------------------------------------------


def read_steps(path, torch):
    """The packs by step; each pack is a list of examples, pairs of int64 tokens and labels."""
    steps = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                pack = json.loads(line)
                step, ids, labels, borders = (pack[key] for key in ("step", "input_ids", "labels", "cu_seqlens"))
            except (ValueError, KeyError, TypeError) as error:
                raise Failure(f"{path}:{number}: not a pack ({error!r})") from error
            if borders[0] != 0 or borders[-1] != len(ids) or len(ids) != len(labels) or sorted(set(borders)) != borders:
                raise Failure(f"{path}:{number}: cu_seqlens do not divide the {len(ids)} tokens, or labels are not as many")
            if step != len(steps) + 1 and step != len(steps):
                raise Failure(f"{path}:{number}: step {step} follows step {len(steps)}")
            if step > len(steps):
                steps.append([])
            ids, labels = torch.tensor(ids), torch.tensor(labels)
            labels[torch.tensor(borders[:-1])] = -100
            steps[-1].append([(ids[a:b], labels[a:b]) for a, b in zip(borders, borders[1:])])
    if not steps:
        raise Failure(f"{path} has no packs")
    return steps


def trained_tokens(packs):
    return sum(int((labels != -100).sum()) for pack in packs for _, labels in pack)


# ---- layouts: a pack as the batches that the model is given, one after the other -------------------------------------


def packed(pack, torch, linear_attention):
    ids, labels = (torch.cat(part)[None] for part in zip(*pack))
    lengths = torch.tensor([len(example) for example, _ in pack])
    batch = {"input_ids": ids, "labels": labels, "position_ids": torch.cat([torch.arange(n) for n in lengths])[None]}
    if linear_attention:
        borders = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int()])
        batch |= {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders}
        batch |= {"max_length_q": int(lengths.max()), "max_length_k": int(lengths.max())}
        batch["seq_idx"] = torch.repeat_interleave(torch.arange(len(lengths)), lengths)[None].int()
    return [batch]


def padded(pack, torch, linear_attention):
    from torch.nn.utils.rnn import pad_sequence

    ids, labels = zip(*pack)
    batch = {
        "input_ids": pad_sequence(ids, batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }
    if len({len(example) for example in ids}) > 1:
        batch["attention_mask"] = pad_sequence([torch.ones_like(example) for example in ids], batch_first=True)
    return [batch]


def single(pack, torch, linear_attention):
    return [{"input_ids": ids[None], "labels": labels[None]} for ids, labels in pack]


LAYOUTS = {"packed": packed, "padded": padded, "single": single}


# ---- models ----------------------------------------------------------------------------------------------------------


def load_with_transformers(asked, torch, device):
    from transformers import AutoConfig, AutoModelForCausalLM

    half = asked.dtype == "bfloat16"
    dtype = torch.bfloat16 if half and asked.method == "lora" else torch.float32
    if any(asked.model.glob("*.safetensors")):
        model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=dtype)
    else:
        torch.manual_seed(asked.seed)
        config = AutoConfig.from_pretrained(asked.model)
        model = AutoModelForCausalLM.from_config(getattr(config, "text_config", config), dtype=dtype)
    model = model.to(device)
    if asked.method == "full":
        return model
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(asked.seed)
    settings = {"r": asked.rank, "lora_alpha": asked.alpha, "use_rslora": asked.rslora, **asked.patterns}
    config = LoraConfig(**settings, lora_dropout=0.0, target_modules=linears(model, torch), task_type="CAUSAL_LM")
    return get_peft_model(model, config)


def load_with_unsloth(asked, torch, device):
    """As Unsloth's documentation and the Qwen3.5 recipe show it: no 4-bit, gradient checkpointing on."""
    from unsloth import FastModel

    longest = asked.longest
    model, _ = FastModel.from_pretrained(
        str(asked.model), max_seq_length=longest, dtype=None, load_in_4bit=False, full_finetuning=asked.method == "full"
    )
    if asked.method == "lora":
        settings = {"r": asked.rank, "lora_alpha": asked.alpha, "lora_dropout": 0, "bias": "none", "use_rslora": asked.rslora}
        targets = linears(model, torch)
        model = FastModel.get_peft_model(model, **settings, target_modules=targets, random_state=asked.seed)
    return model


def linears(model, torch):
    """The last components of the names of all linears inside decoder layers, the vision tower and MTP head left out."""
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    inside = [name for name in names if ".layers." in name and "visual" not in name and "mtp" not in name]
    return sorted({name.rsplit(".", 1)[-1] for name in inside})


def adapter_settings(folder):
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    patterns = {name: config.get(name, {}) for name in ["rank_pattern", "alpha_pattern"]}
    return config["r"], config["lora_alpha"], config.get("use_rslora", False), patterns


def put_adapter(model, folder, torch):
    """Overwrites the fresh adapter by the one in `folder`, whichever class that one was trained on."""
    from safetensors.torch import load_file

    def place(name):
        return name.split("layers.", 1)[-1].replace(".default", "")

    stored = {place(name): tensor for name, tensor in load_file(folder / "adapter_model.safetensors").items()}
    own = {place(name): parameter for name, parameter in model.named_parameters() if "lora_" in name}
    if stored.keys() != own.keys():
        difference = sorted(stored.keys() ^ own.keys())
        raise Failure(f"{folder} is an adapter of other linears: {len(difference)} tensors differ, such as {difference[0]}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(stored[name])


# ---- training --------------------------------------------------------------------------------------------------------


class Trainer:
    """A model in training on the steps of a file."""

    def __init__(self, asked, torch, device, model, steps):
        self.asked, self.torch, self.device, self.steps, self.done = asked, torch, device, steps, 0
        self.model = model.train()
        config = getattr(model.config, "text_config", model.config)
        self.linear_attention = "linear_attention" in (getattr(config, "layer_types", None) or [])
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in self.trained if p.ndim >= 2], "weight_decay": asked.weight_decay},
            {"params": [p for p in self.trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        settings = {"lr": asked.learning_rate, "betas": (asked.beta1, asked.beta2), "eps": asked.eps, "fused": True}
        self.optimizer = torch.optim.AdamW([group for group in groups if group["params"]], **settings)
        self.layout, self.layout_reason = None, None

    def choose_layout(self):
        wanted, asked_for = self.asked.layout, "asked for"
        if wanted in ("auto", "packed"):
            error = self.packing_error()
            if isinstance(error, float) and error <= EXACT[self.asked.dtype]:
                self.layout = "packed"
                self.layout_reason = f"exact: losses of packed examples are within {error:.1e} nats of those alone"
                return
            why = error if isinstance(error, str) else f"an example's loss is {error:.1e} nats from the one alone"
            if wanted == "packed":
                raise Failure(f"this peer cannot pack exactly: {why}. Use --layout auto")
            took = {name: self.time_layout(name) for name in ("padded", "single")}
            self.layout = min(took, key=took.get)
            seconds = ", ".join(f"{name} {time:.3f} s" for name, time in took.items())
            self.layout_reason = f"packed is not exact here ({why.rstrip('.')}); the first pack took {seconds}"
            return
        self.layout, self.layout_reason = wanted, asked_for

    def packing_error(self):
        """The largest distance of an example's loss in a pack from its loss alone, or a text where packing fails.

        The examples are short pieces of those in the file: what leaks over a border shows in the first tokens after it.
        """
        tokens = (ids for step in self.steps for pack in step for ids, _ in pack)
        pieces = (piece for ids in tokens for piece in ids.split(PROBE_LENGTH) if len(piece) > 1)
        pack = [(piece, self.labels_of(piece)) for piece, _ in zip(pieces, range(PROBES))]
        losses = []
        try:
            with self.torch.no_grad():
                for index, (ids, labels) in enumerate(pack):
                    # One example's labels at a time, so that errors cannot cancel.
                    only = [(other, trained if i == index else trained * 0 - 100) for i, (other, trained) in enumerate(pack)]
                    both = [*self.batches([[(ids, labels)]], "single"), *self.batches([only], "packed")]
                    alone, among_others = (self.loss(batch, len(ids) - 1).item() for batch in both)
                    losses.append(abs(alone - among_others))
        except (ValueError, RuntimeError, NotImplementedError) as error:
            return str(error).splitlines()[0]
        return max(losses, default=0.0)

    def labels_of(self, ids):
        labels = ids.clone()
        labels[0] = -100
        return labels

    def time_layout(self, name):
        """Seconds of the shorter of two forward and backward passes over the first pack; of the processors' time on the CPU."""
        best = math.inf
        clock = self.now if self.device.type == "cuda" else time.process_time
        for _ in range(2):
            began = clock()
            for batch in self.batches(self.steps[0][:1], name):
                if (batch["labels"] != -100).any():
                    self.loss(batch, 1).backward()
            best = min(best, clock() - began)
            self.optimizer.zero_grad(set_to_none=True)
        return best

    def now(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter()

    def batches(self, packs, layout):
        made = [batch for pack in packs for batch in LAYOUTS[layout](pack, self.torch, self.linear_attention)]
        tensor = self.torch.is_tensor
        return [{key: x.to(self.device) if tensor(x) else x for key, x in batch.items()} for batch in made]

    def loss(self, batch, count):
        """The sum of the token losses over `count`."""
        with self.torch.autocast(self.device.type, self.torch.bfloat16, enabled=self.asked.dtype == "bfloat16"):
            return self.model(**batch, use_cache=False, num_items_in_batch=count).loss

    def learning_rate(self):
        """Of the next step; the schedule of src/train/schedule.rs."""
        peak, warmup, step = self.asked.learning_rate, self.asked.warmup_steps, self.done
        if step < warmup:
            return peak * (step + 1) / warmup
        total = self.asked.total_steps or len(self.steps)
        progress = min((step - warmup) / max(total - warmup, 1), 1.0)
        lowest = self.asked.min_lr_ratio
        return peak * (lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * progress)))

    def step(self):
        packs = self.steps[self.done % len(self.steps)]
        count, rate = trained_tokens(packs), self.learning_rate()
        batches = [batch for batch in self.batches(packs, self.layout) if (batch["labels"] != -100).any()]
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        began, processor = self.now(), time.process_time()
        losses = []
        for batch in batches:
            loss = self.loss(batch, count)
            loss.backward()
            losses.append(loss.detach())
        norm = self.torch.nn.utils.clip_grad_norm_(self.trained, self.asked.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        wall, processor = self.now() - began, time.process_time() - processor
        self.done += 1
        return {
            "event": "step",
            "step": self.done,
            "loss": sum(loss.item() for loss in losses),
            "grad_norm": norm.item(),
            "learning_rate": rate,
            "wall_s": wall,
            "cpu_s": processor,
            "tokens": sum(len(ids) for pack in packs for ids, _ in pack),
            "trained_tokens": count,
        }


def peak_rss_bytes():
    """As the kernel counts it; what getrusage says would include the process that started this one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


# ---- the conversation ------------------------------------------------------------------------------------------------


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="a folder in Hugging Face's layout")
    parser.add_argument("--packs", type=Path, required=True, help="the file of packs")
    parser.add_argument("--method", choices=("lora", "full"), required=True)
    parser.add_argument("--library", choices=("transformers", "unsloth"), default="transformers")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, help="of torch on the CPU; by default as many as torch takes")
    parser.add_argument("--layout", choices=("auto", *LAYOUTS), default="auto")
    parser.add_argument("--adapter", type=Path, help="an adapter in PEFT's format to start from")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=float, help="twice the rank by default")
    parser.add_argument("--rslora", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of a fresh adapter and of random weights")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--min-lr-ratio", type=float, default=0.1)
    parser.add_argument("--warmup-steps", type=int, default=0)
    parser.add_argument("--total-steps", type=int, help="where the cosine ends; by default the steps in the file")
    parser.add_argument("--beta1", type=float, default=0.9)
    parser.add_argument("--beta2", type=float, default=0.95)
    parser.add_argument("--eps", type=float, default=1e-8)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--clip-norm", type=float, default=1.0)
    asked = parser.parse_args()
    if asked.library == "unsloth" and (asked.device, asked.layout) != ("cuda", "single"):
        parser.error("--library unsloth needs --device cuda and --layout single")
    asked.patterns = {}
    if asked.adapter:
        asked.rank, asked.alpha, asked.rslora, asked.patterns = adapter_settings(asked.adapter)
    asked.alpha = asked.alpha or 2.0 * asked.rank
    return asked


def prepare(asked):
    """The trainer, and the line that says it is ready."""
    # Read when torch is loaded. On a busy machine threads that spin while they wait take up to 20 times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if asked.library == "unsloth":
        # As in the recipe's baseline, nothing is compiled.
        os.environ.update(UNSLOTH_COMPILE_DISABLE="1", TORCHDYNAMO_DISABLE="1")
        import unsloth  # has to be imported before transformers
    import torch
    import transformers

    if asked.device == "cuda" and not torch.cuda.is_available():
        raise Failure("torch sees no CUDA device. Use --device cpu")
    if asked.threads:
        torch.set_num_threads(asked.threads)
    device = torch.device(asked.device)
    steps = read_steps(asked.packs, torch)
    asked.longest = max(len(ids) for step in steps for pack in step for ids, _ in pack)
    model = (load_with_unsloth if asked.library == "unsloth" else load_with_transformers)(asked, torch, device)
    if asked.adapter:
        put_adapter(model, asked.adapter, torch)
    trainer = Trainer(asked, torch, device, model, steps)
    trainer.choose_layout()
    peer = f"transformers {transformers.__version__}"
    if asked.method == "lora":
        import peft

        peer += f" + peft {peft.__version__}"
    if asked.library == "unsloth":
        peer = f"unsloth {unsloth.__version__} on {peer}"
    ready = {
        "event": "ready",
        "protocol": PROTOCOL,
        "peer": peer,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ["OMP_WAIT_POLICY"],
        "dtype": asked.dtype,
        "method": asked.method,
        "layout": trainer.layout,
        "layout_reason": trainer.layout_reason,
        "steps_in_file": len(steps),
        "trained_parameters": sum(parameter.numel() for parameter in trainer.trained),
        "rss_bytes": peak_rss_bytes(),
    }
    return trainer, ready


def main():
    asked = options()
    # Standard output belongs to the protocol: whatever a library prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(event):
        finite = {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in event.items()}
        answers.write(json.dumps(finite) + "\n")
        answers.flush()

    try:
        trainer, ready = prepare(asked)
        answer(ready)
        for line in sys.stdin:
            if line.strip() == "quit":
                break
            if line.strip() != "step":
                raise Failure(f"`{line.strip()}` is not a command: send `step` or `quit`")
            answer(trainer.step())
        on_gpu = trainer.device.type == "cuda"
        peak = trainer.torch.cuda.max_memory_allocated() if on_gpu else None
        answer({"event": "finished", "steps": trainer.done, "peak_rss_bytes": peak_rss_bytes(), "peak_device_bytes": peak})
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:
        message = str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
        answer({"event": "error", "message": message})
        sys.exit(1)


if __name__ == "__main__":
    main()
