"""Compares GGUF files with those of llama.cpp's own converter: not part of the test suite, which has no Python.

    pip install torch transformers numpy
    python tests/peers/gguf_convert.py LLAMA_CPP golden                     writes tests/fixtures/gguf.jsonl
    python tests/peers/gguf_convert.py LLAMA_CPP compare MERGED FILE.gguf   a file of `export --gguf`, and merged/ of the run
    python tests/peers/gguf_convert.py LLAMA_CPP adapter ADAPTER BASE FILE.gguf      a file of `export --gguf-adapter`

LLAMA_CPP is a folder with llama.cpp's sources, from which `conversion` and `gguf` are taken. Tensors must be equal byte by
byte; those with an exponential or a power may differ in the last bit. Keys must be equal, except the model's name and what
is listed as ADDED below. The converter knows a tokenizer by the tokens of a text, which those of the fixtures do not give, so
its name is set to the one of the file. The converter of adapters knows neither rsLoRA nor the alphas of adapters of a lower rank, so
`lora_b` is compared with what gives PEFT's scale.

The converter reads `merged/`, whose trained tensors are rounded to the type of the base; ours are made from the trained values.
Where that is a difference (a trained tensor of a bf16 base that is stored in another type), it is counted and bounded.
"""

import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np

llama_cpp = Path(sys.argv[1])
sys.path[:0] = [str(llama_cpp / "gguf-py"), str(llama_cpp)]

import gguf
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
from conversion.base import TextModel

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
MODELS = {name: FIXTURES / "others" / name for name in ["qwen2", "qwen3", "llama", "llama_rope3", "mistral", "gemma3"]}
MODELS["qwen35"] = FIXTURES / "qwen35/checkpoint"
MODELS["qwen35_trained"] = FIXTURES / "qwen35/checkpoint_trained_bf16"
TYPES = {"f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}

# Keys that the converter does not write for every family or model, and that have the value llama.cpp assumes, or that are
# needed where the converter's file would be computed wrongly.
ADDED = {"attention.key_length", "attention.value_length", "rope.dimension_count", "attention.sliding_window_pattern"}
ADDED |= {"attention.recurrent_layers", "tokenizer.ggml.add_space_prefix", "rope.freq_base"}
# Computed with functions whose last bit depends on the library.
ROUNDED = ("ssm_a", "rope_freqs.weight")


def convert(model, kind, out, pre=None, no_mtp=False):
    """Writes a file with the converter's own code. Without `pre`, it has no tokenizer."""
    hparams = ModelBase.load_hparams(model, False)
    chosen = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    one = type("Chosen", (chosen,), {"model_arch": chosen.model_arch, "no_mtp": no_mtp} | ({} if pre else {"set_vocab": lambda self: None}))
    one(model, gguf.LlamaFileType[TYPES[kind]], out, eager=True, hparams=hparams).write()
    return gguf.GGUFReader(out)


def keys_of(reader):
    """Returns the values by key; long arrays as their length and checksum."""
    keys = {}
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.name", "general.basename", "general.finetune", "general.version"):
            continue
        value = field.contents()
        if isinstance(value, list) and len(value) > 16:
            value = [len(value), zlib.crc32(json.dumps(value).encode())]
        keys[name] = value
    return keys


def tensors_of(reader):
    tensors = {}
    for tensor in reader.tensors:
        shape = [int(n) for n in tensor.shape]
        described = {"shape": shape, "type": tensor.tensor_type.name}
        if tensor.name.endswith(ROUNDED):
            described["values"] = [float(x) for x in tensor.data.flatten()]
        else:
            described["crc32"] = zlib.crc32(tensor.data.tobytes())
        tensors[tensor.name] = described
    return tensors


def golden():
    """Writes what the converter makes of the fixtures: a line for the keys of each model, and one for each tensor."""
    lines = []
    for name, model in MODELS.items():
        tensors = {}
        for kind in TYPES:
            with tempfile.TemporaryDirectory() as folder:
                reader = convert(model, kind, Path(folder) / "theirs.gguf")
                keys = {key: value for key, value in keys_of(reader).items() if not key.startswith("tokenizer.")}
                for tensor, described in tensors_of(reader).items():
                    line = tensors.setdefault(tensor, {"model": name, "tensor": tensor, "shape": described["shape"]})
                    line[kind] = [described["type"], described.get("crc32") or described["values"]]
        del keys["general.file_type"]
        lines += [{"model": name, "keys": keys}] + [tensors[tensor] for tensor in sorted(tensors)]
    (FIXTURES / "gguf.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{len(lines)} lines in {FIXTURES / 'gguf.jsonl'}")


def is_rounding(ours, theirs, name):
    """Returns whether two tensors of one type and shape differ by no more than bf16 and a block of q8_0 round."""
    one, two = (next(tensor for tensor in reader.tensors if tensor.name == name) for reader in (ours, theirs))
    if (one.tensor_type, list(one.shape)) != (two.tensor_type, list(two.shape)):
        return False
    one, two = (gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in (one, two))
    blocks = np.abs(two).reshape(-1, 32).max(axis=1, keepdims=True) if two.size % 32 == 0 else np.abs(two).max()
    bound = np.broadcast_to(blocks * (2**-8 + 1.01 / 127), (two.size // 32, 32) if two.size % 32 == 0 else two.shape)
    return bool((np.abs(one - two).reshape(bound.shape) <= bound).all())


def compare(model, file):
    ours = gguf.GGUFReader(file)
    kind = {1: "f16", 32: "bf16", 7: "q8_0"}[ours.fields["general.file_type"].contents()]
    pre = ours.fields["tokenizer.ggml.pre"].contents()
    with tempfile.TemporaryDirectory() as folder:
        # The converter takes a Qwen3.5 without an MTP head only if told so.
        no_mtp = not any(name.endswith("nextn_predict_layers") for name in ours.fields)
        theirs = convert(model, kind, Path(folder) / "theirs.gguf", pre, no_mtp)
        wrong = []
        mine, other = keys_of(ours), keys_of(theirs)
        arch = mine["general.architecture"]
        for key in sorted(mine.keys() | other.keys()):
            if mine.get(key) != other.get(key):
                if key not in other and (key.removeprefix(f"{arch}.") in ADDED or key.startswith("general.base_model")):
                    print(f"only ours: {key} = {mine[key]}")
                elif key == "tokenizer.ggml.add_sep_token" and other[key] is False:
                    print(f"only theirs, the default: {key} = False")
                else:
                    wrong.append(f"{key}: {mine.get(key)!r}, and theirs {other.get(key)!r}")
        mine, other, rounded = tensors_of(ours), tensors_of(theirs), 0
        for name in sorted(mine.keys() | other.keys()):
            one, two = mine.get(name), other.get(name)
            if one and two and "values" in one and one["shape"] == two["shape"]:
                same = np.allclose(one["values"], two["values"], rtol=3e-7, atol=0)
            else:
                same = one == two
            if not same and one and two and is_rounding(ours, theirs, name):
                rounded += 1
            elif not same:
                wrong.append(f"{name}: {one}, and theirs {two}")
    if rounded:
        print(f"{rounded} tensors differ by the rounding of merged/ to the type of its base")
    print("\n".join(wrong) or f"{len(mine)} tensors and {len(ours.fields)} keys are those of the converter")
    sys.exit(bool(wrong))


def compare_adapter(adapter, base, file):
    ours = gguf.GGUFReader(file)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "theirs.gguf"
        script = llama_cpp / "convert_lora_to_gguf.py"
        subprocess.run([sys.executable, script, "--base", base, "--outfile", out, adapter], check=True)
        theirs = {tensor.name: tensor.data for tensor in gguf.GGUFReader(out).tensors}
        mine = {tensor.name: tensor.data for tensor in ours.tensors}
        config = json.loads((adapter / "adapter_config.json").read_text())
        alpha = ours.fields["adapter.lora.alpha"].contents()
        wrong = sorted(mine.keys() ^ theirs.keys())
        for name in mine.keys() & theirs.keys():
            expected = theirs[name]
            if name.endswith(".lora_b"):
                rank = expected.shape[1]
                # PEFT's scale of all adapters; llama.cpp's is alpha / rank.
                scale = config["lora_alpha"] / (config["r"] ** 0.5 if config["use_rslora"] else config["r"])
                expected = expected * np.float32(scale * rank / alpha)
            if not np.allclose(mine[name], expected, rtol=2e-7, atol=0):
                wrong.append(name)
    print("\n".join(wrong) or f"{len(mine)} tensors are those of the converter, with PEFT's scale")
    sys.exit(bool(wrong))


if sys.argv[2] == "golden":
    golden()
elif sys.argv[2] == "adapter":
    compare_adapter(*(Path(argument) for argument in sys.argv[3:6]))
else:
    compare(Path(sys.argv[3]), Path(sys.argv[4]))
