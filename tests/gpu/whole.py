"""Loss and gradients of a whole random model: ours beside transformers' on the same weights and the same tokens.

    whole.py --json FILE --folder FOLDER [--tiny]

FOLDER is what `sparktune bench --gpu whole --model FOLDER` wrote: a model, and `ours.safetensors` with tokens and our gradients.
transformers computes both in fp32, which is what our results are compared with, and in bf16, whose distance shows what rounding
alone does. Our distance may be half as much again.
"""

import argparse
import pathlib
import sys

from rows import Rows, read, skip, torch_or_skip

# What build.sh took along stands behind the machine's own packages.
sys.path.append(str(pathlib.Path(__file__).resolve().parent / "packages"))

# Least distances that pass: of the loss, of a gradient in relative L2.
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 2e-3, 2e-2
MORE_THAN_ROUNDING = 1.5


def distance(torch, found, expected):
    """Relative L2 distance, computed in double."""
    found, expected = found.double().flatten(), expected.double().flatten()
    return float(torch.linalg.vector_norm(found - expected) / torch.linalg.vector_norm(expected))


def computed(torch, device, folder, ids, names, dtype):
    """Loss and gradients by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").to(device).train()
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in names)
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return float(loss.detach()), {name: parameters[name].grad.float().cpu() for name in names}


def compare(torch, device, folder, ours):
    """Yields the fields of one row each: the loss, then every gradient."""
    from safetensors.torch import load_file

    stored = load_file(folder / "ours.safetensors")
    ids, names = stored["ids"].to(device), ours["gradients"]
    loss, gradients = computed(torch, device, folder, ids, names, torch.float32)
    rounded_loss, rounded = computed(torch, device, folder, ids, names, torch.bfloat16)
    off = abs(ours["loss"] - loss) / loss
    off_rounded = abs(rounded_loss - loss) / loss
    yield "loss", off, max(LOSS_TOLERANCE, MORE_THAN_ROUNDING * off_rounded), f"{ours['loss']:.4f}, transformers {loss:.4f} nats"
    for name in names:
        theirs = distance(torch, rounded[name], gradients[name])
        error = distance(torch, stored[name], gradients[name])
        yield name, error, max(GRADIENT_TOLERANCE, MORE_THAN_ROUNDING * theirs), f"transformers in bf16 {theirs:.1e}"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--json", required=True)
    arguments.add_argument("--folder", type=pathlib.Path, required=True)
    arguments.add_argument("--like", type=pathlib.Path, required=True, help="the row that sparktune wrote")
    arguments.add_argument("--tiny", action="store_true")
    asked = arguments.parse_args()
    torch, device = torch_or_skip(asked.tiny)
    try:
        import transformers
    except ImportError:
        skip(f"transformers is not importable by {sys.executable}")
    if not hasattr(transformers, "Qwen3_5ForCausalLM"):
        skip(f"transformers {transformers.__version__} has no Qwen3.5")
    ours = next((row for row in read(asked.like) if "gradients" in row), None)
    if ours is None or ours.get("loss") is None:
        skip("sparktune has written no model to compare")
    rows = Rows(asked.json)
    for name, error, tolerance, note in compare(torch, device, asked.folder, ours):
        rows.add(name=f"{ours['size']} {name}", error=error, tolerance=tolerance, note=note)


if __name__ == "__main__":
    main()
