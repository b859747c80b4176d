"""Models that a stranger wrote by hand: templates, tokenizers, weights and configurations that mean harm."""

import json
import struct

from harness import MODEL, refusal

BIG = 10**10
BEFORE = "{% for m in messages %}"
AFTER = (
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def loop(body, times=99_999):
    return f"{{% for i in range({times}) %}}{body}{{% endfor %}}"


def grown(step, start, times=60):
    return f"{{% set ns = namespace(s={start}) %}}{loop('{% set ns.s = ' + step + ' %}', times)}"


# Made when they are needed: what this program holds counts as memory of the programs that it starts.
def template_cases():
    """What stands before each message of a plain template."""
    return {
        "loop in a loop": loop(loop("")),
        "loop in a loop with output": loop(loop("x")),
        "a long text 99,999 times": loop("{{ 'x' * 99999 }}"),
        "sort in a loop": loop("{% set x = range(99999)|reverse|sort %}"),
        "a text that doubles": grown("ns.s ~ ns.s", "'ab'"),
        "a text that doubles by join": grown("[ns.s, ns.s]|join", "'ab'"),
        "a text that doubles by replace": grown("ns.s|replace('a', 'aa')", "'a'"),
        "a text that doubles by format": grown("'%s%s'|format(ns.s, ns.s)", "'ab'"),
        "a list that doubles": grown("ns.s + ns.s", "[1]"),
        "a list of itself": grown("[ns.s, ns.s]", "[]") + "{{ ns.s }}",
        "a multiplied text": f"{{{{ 'x' * {BIG} }}}}",
        "a multiplied list": f"{{{{ [1] * {BIG} }}}}",
        "batch": f"{{{{ [1]|batch({BIG}, 0)|list|length }}}}",
        "slice": f"{{{{ [1]|slice({BIG})|list|length }}}}",
        "range": f"{{{{ range({BIG})|list|length }}}}",
        "indent": f"{{{{ 'x\\ny'|indent({BIG}) }}}}",
        "center": f"{{{{ 'x'|center({BIG}) }}}}",
        "wordwrap": f"{{{{ ('x' * 99999)|wordwrap(1)|length }}}}{loop('')}",
        "format with a width": f"{{{{ '%{BIG}d'|format(1) }}}}",
        "a power": "{{ 9 ** 9 ** 9 ** 9 }}",
        "not, 50,000 times": f"{{{{ {'not ' * 50_000}1 }}}}",
        "minus, 100,000 times": f"{{{{ {'-' * 100_000}1 }}}}",
        "attributes, 100,000 deep": f"{{{{ m{'.b' * 100_000} }}}}",
        "items, 60,000 deep": f"{{{{ m{'[0]' * 60_000} }}}}",
        "filters, 50,000 in a row": f"{{{{ 1{'|int' * 50_000} }}}}",
        "tilde, 100,000 times": f"{{{{ {'1~' * 100_000}1 }}}}",
        "plus, 100,000 times": f"{{{{ {'1+' * 100_000}1 }}}}",
        "and, 50,000 times": f"{{{{ {'1 and ' * 40_000}1 }}}}",
        "powers, 80,000 times": f"{{{{ {'1**' * 80_000}1 }}}}",
        "tests, 40,000 times": f"{{{{ 1{' is odd' * 30_000} }}}}",
        "compared, 60,000 times": f"{{{{ {'1<' * 100_000}1 }}}}",
        "if else, 20,000 deep": f"{{{{ {'1 if 1 else ' * 20_000}1 }}}}",
        "parentheses, 100,000 deep": f"{{{{ {'(' * 100_000}1{')' * 100_000} }}}}",
        "lists, 100,000 deep": f"{{{{ {'[' * 100_000}{']' * 100_000} }}}}",
        "objects, 40,000 deep": f"{{{{ {'{1:' * 40_000}1{'}' * 40_000} }}}}",
        "calls, 50,000 deep": f"{{{{ {'m(' * 60_000}{')' * 60_000} }}}}",
        "ifs, 12,000 deep": "{% if 1 %}" * 12_000 + "{% endif %}" * 12_000,
        "loops, 5,000 deep": "{% for i in [1] %}" * 5_000 + "{% endfor %}" * 5_000,
        "a list nested 99,999 deep, printed": grown("[ns.s]", "[]", 99_999) + "{{ ns.s }}",
        "a list nested 99,999 deep, compared": grown("[ns.s]", "[]", 99_999) + "{{ ns.s == [ns.s] }}",
        "a list nested 99,999 deep, as JSON": grown("[ns.s]", "[]", 99_999) + "{{ ns.s|tojson }}",
        "a list nested 99,999 deep, dropped": grown("[ns.s]", "[]", 99_999),
        "a macro that calls itself": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "a recursive loop": "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
        "an error of 1 MB with escapes": "{{ raise_exception('\x1b[2J\u202e' ~ 'no ' * 300000) }}",
        "an include": "{% include '/etc/passwd' %}",
        "an import of itself": "{% import 'chat_template.jinja' as x %}{{ x }}",
        "a template of 300 KiB": f"{{# {'x' * (300 << 10)} #}}",
        "unclosed, 100,000 times": "{{" * 100_000,
        "a block with a NUL and escapes": "{% \0\x1b[2J %}",
    }


def templates(context):
    row = context.row("hand-made chat templates")
    for case, harm in template_cases().items():
        if row.wants(case):
            with context.place() as place:
                place.chats(3)
                place.model(chat_template__jinja=BEFORE + harm + AFTER)
                done = place.run("check", "train.jsonl", "--model", "model")
                # Two threads may each take what one may.
                row.tried(case, refusal(done, "chat_template.jinja", seconds=20), "accepted" if done.code == 0 else "refused in words", done)


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(kind, parts):
    return {"type": "Sequence", kind: parts}


def added(*tokens, **more):
    """Added tokens, as pairs of an id and a text."""
    plain = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, **more}
    return {"added_tokens": [{"id": id, "content": text, **plain} for id, text in tokens]}


def split(regex):
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}}


def cut_to(length, direction, stride):
    return {"truncation": {"direction": direction, "max_length": length, "strategy": "LongestFirst", "stride": stride}}


def padded(strategy, multiple):
    plain = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    return {"padding": {"strategy": strategy, "pad_to_multiple_of": multiple, **plain}}


def processed(*single):
    return {"post_processor": {"type": "TemplateProcessing", "single": list(single), "pair": [], "special_tokens": {}}}


def tokenizer_cases():
    """What is put in place of a part of the tokenizer; a path has dots."""
    return {
        "Precompiled of zeros": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}},
        "Precompiled of ones": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////////////w=="}},
        "Precompiled of a wrong size": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AQAAAP8="}},
        "empty Precompiled": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        "an empty regex": {"normalizer": replace({"Regex": ""}, "a")},
        "an empty text to replace": {"normalizer": replace({"String": ""}, "a")},
        "a regex that backtracks": {"normalizer": replace({"Regex": "(a|a)*$"}, "a" * 99)},
        "a split by an empty regex": split(""),
        "a split that backtracks": split("(\\w+\\s?)+(\\w+\\s?)+$"),
        "a broken regex": split("(("),
        "a regex of 1 MB": {"normalizer": replace({"Regex": "(a?)" * 250_000}, "a")},
        "regexes 20,000 deep": {"normalizer": replace({"Regex": "(" * 20_000 + "a" + ")" * 20_000}, "a")},
        "a repeated repetition": {"normalizer": replace({"Regex": "((a{1,999}){1,999}){1,999}"}, "a")},
        "Prepend of 1 MB": {"normalizer": {"type": "Prepend", "prepend": "a" * 1_000_000}},
        "six times a hundred": {"normalizer": sequence("normalizers", [replace({"String": "a"}, "a" * 100)] * 6)},
        "normalizers 10,000 deep": {"normalizer": "DEEP"},
        "100,000 normalizers": {"normalizer": sequence("normalizers", [{"type": "NFC"}] * 100_000)},
        "no model": {"model": None},
        "an empty vocabulary": {"model.vocab": {}},
        "ids that are negative": {"model.vocab": {"a": -1}},
        "ids beyond 32 bits": {"model.vocab": {"a": 2**40}},
        "the largest id": {"model.vocab": {"a": 2**32 - 1}},
        "the same id for all": {"model.vocab": {chr(97 + i): 0 for i in range(26)}},
        "merges of tokens that are not there": {"model.merges": [["zzz", "yyy"]]},
        "merges without a second part": {"model.merges": ["a"]},
        "the same merge 100,000 times": {"model.merges": [["a", "b"]] * 100_000},
        "a token of 10 MB": {"model.vocab": {"a" * 10_000_000: 0}},
        "a dropout of 0.5": {"model.dropout": 0.5},
        "a dropout of -1": {"model.dropout": -1},
        "a dropout that is no number": {"model.dropout": "x"},
        "an unknown token that is not there": {"model.unk_token": "<nowhere>", "model.byte_fallback": True},
        "prefix and suffix": {"model.continuing_subword_prefix": "##" * 5000, "model.end_of_word_suffix": "</w>" * 5000},
        "WordPiece": {"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "b", "continuing_subword_prefix": "#", "max_input_chars_per_word": 0}},
        "WordLevel": {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "a"}},
        "Unigram": {"model": {"type": "Unigram", "unk_id": 5, "vocab": [["a", -1.0]]}},
        "Unigram without a number": {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", None]]}},
        "Unigram of infinite scores": {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 1e308], ["b", -1e308]]}},
        "an unknown kind": {"model": {"type": "Other"}},
        "an empty added token": added((489, "")),
        "an added token with a huge id": added((2**31, "<|im_end|>")),
        "100,000 added tokens": added(*((489 + i, f"<{i}>") for i in range(100_000)), lstrip=True, rstrip=True, normalized=True),
        "an added token with escapes": added((489, "\x1b[2J\u202e")),
        "a truncation to nothing": cut_to(0, "Right", 0),
        "a truncation with a longer stride": cut_to(2, "Left", 9),
        "a padding to a billion": padded({"Fixed": 10**9}, None),
        "a padding to multiples of nothing": padded("BatchLongest", 0),
        "a template of tokens that are not there": processed({"SpecialToken": {"id": "x", "type_id": 0}}),
        "a template of 100,000 tokens": processed(*[{"Sequence": {"id": "A", "type_id": 0}}] * 100_000),
        "a template of the second sequence": processed({"Sequence": {"id": "B", "type_id": 0}}),
        "a metaspace of a long text": {"pre_tokenizer": {"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always", "split": True}},
        "fixed lengths of nothing": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        "a delimiter": {"pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": "\0"}},
        "no decoder": {"decoder": {"type": "Strip", "content": "", "start": 2**31, "stop": 2**31}},
        "a version of the future": {"version": "9.9"},
        "a list": [],
        "a number": 7,
        "an empty text": "",
    }  # fmt: skip


def tokenizers(context):
    row = context.row("hand-made tokenizer.json")
    original = (MODEL / "tokenizer.json").read_text()
    for case, change in tokenizer_cases().items():
        if not row.wants(case):
            continue
        content = json.loads(original)
        for path, value in (change or {}).items() if isinstance(change, dict) else ():
            *outer, last = path.split(".")
            (content[outer[0]] if outer else content)[last] = value
        text = json.dumps(content) if isinstance(change, dict) else json.dumps(change)
        deep = '{"type": "Sequence", "normalizers": [' * 10_000 + "]}" * 10_000
        with context.place() as place:
            place.chats(3)
            place.model(tokenizer__json=text.replace('"DEEP"', deep))
            done = place.run("check", "train.jsonl", "--model", "model")
            # One that is whole, but fits nothing, shows in the examples.
            row.tried(case, refusal(done, "tokenizer.json", "this tokenizer", "too long", seconds=20), "accepted" if done.code == 0 else "refused in words", done)


# A change of config.json: a path with dots and the value in its place.
CONFIGS = {
    "hidden_size": [0, -1, 1, 63, 2**31, 2**62, 1.5, "64", None],
    "num_hidden_layers": [0, 1, 2**31, 2**62],
    "num_attention_heads": [0, 3, 2**32],
    "num_key_value_heads": [0, 3],
    "head_dim": [0, 31, 2**40],
    "vocab_size": [0, 1, 2**31, 2**62],
    "intermediate_size": [0, 2**40],
    "rms_norm_eps": [0, -1, 1e308],
    "layer_types": [[], ["other"] * 4, ["full_attention"] * 4],
    "linear_num_value_heads": [0, 3],
    "linear_conv_kernel_dim": [0, 2**31],
    "rope_parameters": [{}, {"rope_theta": 0}],
    "max_position_embeddings": [0, 2**62],
    "eos_token_id": [2**31, -1],
}


def weights(context):
    row = context.row("hand-made safetensors and config.json, through a short training")
    content = (MODEL / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    config = json.loads((MODEL / "config.json").read_bytes())
    for case, make in WEIGHTS.items():
        made = make(json.loads(json.dumps(header)), data)
        trained(context, row, case, "model.safetensors", model__safetensors=made)
    for key, values in CONFIGS.items():
        for value in values:
            text = {**config["text_config"], key: value}
            made = json.dumps({**config, "text_config": text})
            trained(context, row, f"{key} = {json.dumps(value)[:20]}", "config.json", config__json=made)


def trained(context, row, case, name, **files):
    if row.wants(case):
        with context.place() as place:
            place.chats()
            model = place.model(**files)
            done = place.run(*place.train("--max-steps", "2", model=model))
            # A wrong size in either file shows in the other, and a model that is whole shows what it is by its numbers.
            shown = ["model.safetensors", "config.json", "tensor", "loss became NaN", "does not fit", "vocabulary ends", "hidden size"]
            row.tried(case, refusal(done, name, *shown), "trained" if done.code == 0 else "refused in words", done)


def file_of(header, data, length=None):
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + data


def with_first(**changes):
    """Changes what the header says of the first tensor."""

    def made(header, data):
        name = next(name for name in header if name != "__metadata__")
        header[name].update({key: change(header[name][key]) if callable(change) else change for key, change in changes.items()})
        return file_of(header, data)

    return made


WEIGHTS = {
    "empty": lambda header, data: b"",
    "seven bytes": lambda header, data: b"\0" * 7,
    "a header of 2⁶⁴ bytes": lambda header, data: file_of(header, data, 2**64 - 1),
    "a header beyond the file": lambda header, data: file_of(header, data, 2**31),
    "a header of nothing": lambda header, data: file_of({}, b""),
    "a header that is a list": lambda header, data: file_of([], data),
    "a header 100,000 deep": lambda header, data: struct.pack("<Q", 200_000) + b"[" * 100_000 + b"]" * 100_000,
    "a header of 90 MB": lambda header, data: file_of(header | {"__metadata__": {"x": "y" * 90_000_000}}, data),
    "half of the data": lambda header, data: file_of(header, data[: len(data) // 2]),
    "more data": lambda header, data: file_of(header, data + bytes(999)),
    "a range that ends before it begins": with_first(data_offsets=lambda range: range[::-1]),
    "a range beyond the file": with_first(data_offsets=lambda range: [range[0], 2**62]),
    "a range of negative numbers": with_first(data_offsets=[-8, -4]),
    "a range over others": with_first(data_offsets=lambda range: [range[0] + 8, range[1] + 8]),
    "a shape of huge numbers": with_first(shape=[2**63, 2]),
    "a shape of nothing": with_first(shape=[0]),
    "a shape of a thousand numbers": with_first(shape=[1] * 1000),
    "another type": with_first(dtype="I64"),
    "an unknown type": with_first(dtype="\x1b[2J"),
    "no tensor": lambda header, data: file_of({"__metadata__": {}}, data),
    "a name with escapes": lambda header, data: file_of(header | {"\x1b[2J\u202e": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, data),
    "all zero": lambda header, data: file_of(header, bytes(len(data))),
    "all NaN": lambda header, data: file_of(header, b"\0\0\xc0\x7f" * (len(data) // 4)),
    "all infinite": lambda header, data: file_of(header, b"\0\0\x80\x7f" * (len(data) // 4)),
    "the largest numbers": lambda header, data: file_of(header, b"\xff\xff\x7f\x7f" * (len(data) // 4)),
}
