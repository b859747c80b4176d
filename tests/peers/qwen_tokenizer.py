"""Makes the tokenizer.json of Qwen's 151,643 tokens from qwen.tiktoken, which the package dashscope carries.

    pip install dashscope
    python3 tests/peers/qwen_tokenizer.py $(python3 -c 'import dashscope; print(dashscope.__path__[0])')/resources/qwen.tiktoken tokenizer.json

`sparktune bench tokenising --tokenizer tokenizer.json` then measures a vocabulary of the usual size. The file of ranks
says which byte strings are tokens; the merges are found again: those of a token are the last two parts that merging its
bytes by lower ranks leaves.
"""

import base64
import json
import sys

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_characters():
    """The character that stands for each byte in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def last_merge(token, rank, ranks):
    """The two tokens that merge into `token` last."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[i] + parts[i + 1], rank), i) for i in range(len(parts) - 1)]
        lowest, at = min(pairs)
        if lowest >= rank:
            sys.exit(f"the token of rank {rank} cannot be merged from tokens of lower ranks")
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def main(source, target):
    ranks = {}
    with open(source, "rb") as lines:
        for line in lines:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    characters = byte_characters()

    def text(token):
        return "".join(characters[byte] for byte in token)

    in_order = sorted(ranks.items(), key=lambda item: item[1])
    merges = [last_merge(token, rank, ranks) for token, rank in in_order if len(token) > 1]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": len(ranks) + i, "content": name, **flags} for i, name in enumerate(SPECIAL)]
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {text(token): rank for token, rank in in_order},
        "merges": [[text(left), text(right)] for left, right in merges],
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": None,
        "decoder": {**level, "use_regex": False},
        "model": model,
    }
    with open(target, "w", encoding="utf-8") as out:
        json.dump(tokenizer, out, ensure_ascii=False)
    print(f"{target}: {len(ranks)} tokens, {len(merges)} merges")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
