"""Compares the tokens that llama.cpp generates from a GGUF file with those of transformers: not part of the test suite.

    pip install torch transformers xllamacpp
    python tests/peers/gguf_run.py MERGED FILE.gguf [--base BASE.gguf] [--prompts 8] [--tokens 24]

MERGED is `merged/` of the run that FILE was exported from. With `--base`, FILE is an adapter, which llama.cpp adds to that
file. The text is greedy, in fp32 on the CPU. A difference is reported with the distance of the two best logits: a tie within
the rounding of the file's type may fall either way.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import xllamacpp
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

parser = argparse.ArgumentParser()
parser.add_argument("merged")
parser.add_argument("file")
parser.add_argument("--base")
parser.add_argument("--prompts", type=int, default=8)
parser.add_argument("--tokens", type=int, default=24)
arguments = parser.parse_args()

# The class of a family may replace parts of tokenizer.json, which sparktune takes as it is.
tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.merged)
model = AutoModelForCausalLM.from_pretrained(arguments.merged, dtype=torch.float32).eval()

params = xllamacpp.CommonParams()
params.model.path = arguments.base or arguments.file
if arguments.base:
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(arguments.file, 1.0)]
params.n_ctx = 1024
params.n_parallel = 1
params.cpuparams.n_threads = 2
params.warmup = False
# In f32, as in transformers, as far as llama.cpp can.
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)

TEXTS = [
    "The quick brown fox",
    "What is the capital of France?",
    "def add(a, b):\n    return",
    "Näïve café 北京 🚀 3.14159 'll",
    "   leading spaces\n\n\nand lines",
    "List three colours:",
    "Once upon a time, in 1984,",
    "x = [1, 2, 3]",
]


# The characters that stand for bytes in byte-level tokens: printable ones for themselves, all others from 256 on.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = {chr(byte): byte for byte in PRINTABLE}
BYTES |= {chr(256 + n): byte for n, byte in enumerate(byte for byte in range(256) if byte not in PRINTABLE)}
is_byte_level = "Ġ" in json.loads((Path(arguments.merged) / "tokenizer.json").read_text())["model"]["vocab"]


def bytes_of(ids):
    """Returns the bytes of tokens; special ones have none."""
    out = b""
    for token in tokenizer.convert_ids_to_tokens(ids, skip_special_tokens=True):
        if is_byte_level:
            out += bytes(BYTES[character] for character in token)
        elif token.startswith("<0x"):
            out += bytes([int(token[3:5], 16)])
        else:
            out += token.replace("\u2581", " ").encode()
    return out


wrong = 0
for text in TEXTS[: arguments.prompts]:
    chat = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) if tokenizer.chat_template else text
    ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        out = model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=arguments.tokens, return_dict_in_generate=True,
            output_logits=True, top_k=None, top_p=None, temperature=None, repetition_penalty=1.0,
        )
    expected = out.sequences[0][len(ids) :].tolist()
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    while expected and expected[-1] in ends:
        expected.pop()
    request = {"n_predict": arguments.tokens, "temperature": 0.0, "top_k": 1, "cache_prompt": False}
    request |= {"repeat_penalty": 1.0, "samplers": ["top_k"], "logprobs": 1}
    # llama.cpp adds the first token itself where the tokenizer does.
    begins = tokenizer.bos_token or ""
    for prompt in [rendered, rendered.removeprefix(begins)]:
        answer = server.handle_completions(request | {"prompt": prompt})
        counted = answer["usage"]["prompt_tokens"]
        if counted == len(ids):
            break
    else:
        wrong += 1
        print(f"{text!r}: llama.cpp reads {counted} tokens, and transformers {len(ids)}")
    # An entry may be of several tokens, whose bytes make a character, and special tokens have no text.
    found = bytes(byte for token in answer["choices"][0]["logprobs"]["content"] for byte in token["bytes"])
    same = next((n for n in range(len(expected), -1, -1) if found.startswith(bytes_of(expected[:n]))), 0)
    # llama.cpp drops the beginning of a character at the end of a text.
    unfinished = bytes(range(0x80, 0x100))
    if found.rstrip(unfinished) == bytes_of(expected).rstrip(unfinished):
        print(f"{text!r}: the same {len(expected)} tokens after {counted} of the prompt: {tokenizer.decode(expected)[:40]!r}")
    else:
        best = out.logits[min(same, len(out.logits) - 1)][0].topk(2).values.tolist()
        print(f"{text!r}: differs at token {same}, where the two best logits differ by {best[0] - best[1]:.2e}")
        wrong += best[0] - best[1] > 0.05
sys.exit(bool(wrong))
