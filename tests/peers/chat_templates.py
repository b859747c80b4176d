"""Renders conversations as a server does and compares with sparktune: not part of the test suite, which has no Python.

    pip install transformers jinja2
    pip download trl --no-deps && unzip trl-*.whl 'trl/chat_templates/*'    # the official templates of many families
    python tests/peers/chat_templates.py trl/chat_templates target/release/sparktune [--only WORD]

Takes a folder of *.jinja files and the program. For each template, each conversation below and each of three sets of
template variables, it compares byte for byte with what `sparktune check --show` renders. Templates are rendered by
transformers itself, which needs no torch for that; messages are prepared as in vLLM (`renderers/chat_utils/` and
`renderers/hf.py` of October 2026): arguments are objects, and content is one text or a list of parts, whichever vLLM
finds that the template reads. An inline <think> becomes reasoning where the template writes reasoning into a block but
does not look for it in the content, as sparktune does on purpose.

A cell of the table is the worst result over the variables:
    equal       The same text. Each trained turn follows the prompt that a server sends. Where the template marks the
                assistant's text with {% generation %}, exactly that text is trained.
    noted       The same text. A trained turn follows another text than a server's prompt, and sparktune's report says so.
    refused     Both refuse the conversation.
    as written  The text that the template makes of the messages as they are written. What vLLM makes of them differs,
                because it writes one text as a list of a part, `null` as nothing, or a string of arguments as an object.
    unclear     sparktune rejects the line, because it cannot tell which of its tokens to train.
    unusable    sparktune refuses the template.
    DIFFERENT   Anything else.
The last four are described below the table. The exit code is 1 if anything is unusable or different.
"""

import argparse
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jinja2
import transformers
from jinja2 import nodes
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

CHECKPOINT = Path(__file__).resolve().parent.parent / "fixtures/qwen35/checkpoint"
VARIABLES = [{}, {"enable_thinking": True}, {"enable_thinking": False}]
WORDS = ["equal", "refused", "noted", "as written", "unclear", "unusable", "DIFFERENT"]

# sparktune's strftime_now is in UTC.
os.environ["TZ"] = "UTC"
time.tzset()


def turn(role, content, **fields):
    return {"role": role, "content": content, **fields}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": 'A city, <b>not</b> a "county"'},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "days": {"type": "integer", "nullable": True},
        "tags": {"type": "array", "items": {"type": "string"}},
        "area": {"type": "object", "properties": {"radius": {"type": "number"}}, "required": ["radius"]},
    },
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"Returns the {name} & more", "parameters": SCHEMA}}
    for name in ["weather", "forecast"]
]
ASKED = [turn("system", "Be brief."), turn("user", "How is the weather in Zürich?")]
# The answers of tools, and nothing else, contain this word.
ANSWERS = "degrees"
ANSWERED = [
    turn("tool", '{"degrees": 21, "sky": "<clear>"}', tool_call_id="call00001", name="weather"),
    turn("assistant", "It's 21 °C & clear."),
]
ARGUMENTS = {"city": "Zürich", "days": 3}
VALUES = {
    "city": 'it\'s "here"\n<there>',
    **{"yes": True, "no": False, "none": None, "half": 0.5, "one": 1.0, "Whole": 2**53, "empty": {}, "blank": ""},
    **{"tags": ["a", "it's", None, True], "area": {"name": "b\\c", "radius": 1.0, "in": []}, "tiny": 2.5e-07, "huge": 1e22},
}
CONVERSATIONS = {
    "plain": [turn("user", 'Hello <b>, it\'s "me" & 😀 '), turn("assistant", " Hi!\n\nWhat now?\n")],
    "system": [turn("system", "  Be brief.\n"), turn("user", "Hello"), turn("assistant", "Hi")],
    "turns": [
        *[turn("user", "One"), turn("assistant", "1"), turn("user", "Two\n"), turn("assistant", "2")],
        *[turn("user", "?"), turn("assistant", "3")],
    ],
    "reasoning": [
        turn("user", "One"),
        turn("assistant", "1", reasoning_content="First\nthought"),
        turn("user", "Two"),
        turn("assistant", "2", reasoning_content="Second thought\n"),
    ],
    "inline": [
        turn("user", "One"),
        turn("assistant", "<think>\nFirst\nthought\n</think>\n\n1"),
        turn("user", "Two"),
        turn("assistant", "<think>\nSecond thought\n</think>\n\n2"),
    ],
    "calls": ASKED + [turn("assistant", None, tool_calls=[call("weather", json.dumps(ARGUMENTS))])] + ANSWERED,
    "objects": ASKED
    + [
        turn(
            "assistant",
            "I look.",
            reasoning_content="Both.",
            tool_calls=[call("weather", ARGUMENTS), call("forecast", {}, "call00002")],
        ),
        *[ANSWERED[0], turn("tool", parts("No", "degrees."), tool_call_id="call00002", name="forecast"), ANSWERED[1]],
        turn("user", "Thanks"),
        turn("assistant", "Bye", reasoning_content="Be polite."),
    ],
    "values": ASKED + [turn("assistant", "", tool_calls=[call("weather", json.dumps(VALUES))])] + ANSWERED,
    "parts": [
        turn("system", parts("Be", "brief.")),
        turn("user", parts("One", "two\n")),
        turn("assistant", parts("Three", "four")),
    ],
    "developer": [turn("developer", "Be brief."), turn("user", "Hello"), turn("assistant", "Hi")],
}


def tools_of(messages):
    return TOOLS if any("tool_calls" in message for message in messages) else None


class Preparation(NamedTuple):
    """What vLLM does to messages before it renders them."""

    of_content: bool = True
    of_arguments: bool = True


AS_WRITTEN = [Preparation(of_content=False), Preparation(of_content=False, of_arguments=False)]


class Template:
    """A chat template as transformers renders it, and how vLLM prepares messages for it."""

    def __init__(self, source, special_tokens):
        self.source, self.special_tokens = source, special_tokens
        self.has_marks = re.search(r"{%-?\s*generation\s*-?%}", source) is not None
        tree = _compile_jinja_template(source).environment.parse(source)
        self.takes_parts = loops_over_content(tree)
        self.moves_thinking = False
        self.moves_thinking = self.leaves_thinking_in_the_answer()

    def leaves_thinking_in_the_answer(self):
        def text_of(answer):
            try:
                return self.render([turn("user", "Question"), answer])[0]
            except Exception:
                return None

        inline = text_of(turn("assistant", "<think>\nReasoning\n</think>\n\nAnswer"))
        apart = text_of(turn("assistant", "Answer", reasoning_content="Reasoning"))
        return apart is not None and "Reasoning" in apart and inline != apart

    def render(self, messages, tools=None, add_generation_prompt=False, variables=None, preparation=Preparation()):
        """Returns the text and the ranges that the template marks, or raises what the template raises."""
        (text,), marked = render_jinja_template(
            [[self.prepared(message, preparation) for message in messages]],
            tools,
            chat_template=self.source,
            add_generation_prompt=add_generation_prompt,
            return_assistant_tokens_mask=self.has_marks,
            **self.special_tokens,
            **(variables or {}),
        )
        return text, joined(range for ranges in marked for range in ranges)

    def prepared(self, message, preparation):
        """Returns a message as vLLM gives it to a template."""
        role, content, reasoning = message["role"], message["content"], message.get("reasoning_content")
        if self.moves_thinking and reasoning is None and role == "assistant" and isinstance(content, str):
            if found := re.fullmatch(r"\s*<think>(.*?)</think>(.*)", content, re.DOTALL):
                reasoning, content = found[1].strip("\n"), found[2].lstrip("\n")
        if preparation.of_content:
            texts = [part["text"] for part in content] if isinstance(content, list) else [content]
            texts = [text for text in texts if text is not None]
            content = parts(*texts) if self.takes_parts and role != "tool" else "\n".join(filter(None, texts))
        result = turn(role, content)
        if reasoning is not None:
            # transformers adds the third name that templates use, `thinking`.
            result |= {"reasoning": reasoning, "reasoning_content": reasoning}
        if "tool_calls" in message:
            result["tool_calls"] = copy.deepcopy(message["tool_calls"])
            for function in (made["function"] for made in result["tool_calls"]):
                if preparation.of_arguments and isinstance(function["arguments"], str):
                    function["arguments"] = json.loads(function["arguments"])
        if role == "developer":
            result["tools"] = None
        return result | {name: message[name] for name in ["tool_call_id", "name"] if name in message}


def joined(ranges):
    """Returns ranges in order, in which none is empty or ends where the next begins."""
    result = []
    for start, end in ranges:
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], end)
        elif start < end:
            result.append((start, end))
    return result


def loops_over_content(tree):
    """Returns whether vLLM finds that a template takes lists of parts: it loops over the content of a message, or over
    something that is called `content`."""

    def is_sliced(node):
        return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)

    def reads(node, names, key=None):
        while isinstance(node, (nodes.Filter, nodes.Test)) or is_sliced(node):
            node = node.node
        if key is None:
            return isinstance(node, nodes.Name) and node.name in names
        by_name = isinstance(node, nodes.Getattr) and node.attr == key
        by_key = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == key
        return (by_name or by_key) and isinstance(node.node, nodes.Name) and node.node.name in names

    assigned = [node for node in tree.find_all(nodes.Assign) if isinstance(node.target, nodes.Name)]
    loops = list(tree.find_all(nodes.For))
    lists = {"messages"}
    for _ in assigned:
        lists |= {node.target.name for node in assigned if reads(node.node, lists)}
    messages = {loop.target.name for loop in loops if isinstance(loop.target, nodes.Name) and reads(loop.iter, lists)}
    return any(reads(loop.iter, messages, "content") or reads(loop.iter, {"content"}) for loop in loops)


def checked(program, folder, template, variables):
    """Returns what sparktune says about each conversation: a list of spans, or the reason why there are none; and the names
    of those that it says a server would send another prompt for. The first is a text if it refuses the template."""
    data, rejected = folder / "data.jsonl", folder / "rejected.jsonl"
    rejected.unlink(missing_ok=True)
    command = [program, "check", data, "--model", folder, "--chat-template", template, "--rejected", rejected, "--json"]
    # Of the examples that are shown, two are from the middle and the end.
    command += ["--think", "train", "--max-rejected", "1", "--show", str(len(CONVERSATIONS) + 2), "--template-kwargs"]
    ask = lambda sent: subprocess.run([str(word) for word in [*command, json.dumps(sent)]], capture_output=True, text=True)
    done = ask(variables)
    if "the chat template reads no variable" in done.stderr:
        # It refuses variables without effect. transformers takes them, and renders the same as without.
        done = ask({})
    if not done.stdout.startswith("{"):
        return done.stderr.strip() or f"exit code {done.returncode} without a word", set()
    found, names = json.loads(done.stdout), list(CONVERSATIONS)
    said = dict.fromkeys(names, {"kind": "lost", "reason": "the line is neither shown nor rejected"})
    if rejected.exists():
        said |= {names[line["line"] - 1]: line for line in map(json.loads, rejected.open(encoding="utf-8"))}
    said |= {names[example["line"] - 1]: example["spans"] for example in found.get("examples", [])}
    unlike = [found["report"]["template"][of] for of in ("unlike_served", "earlier_unlike_served")]
    assert all(turns["examples"] == len(turns["first"]) for turns in unlike), "more conversations than a report names"
    return said, {names[place["line"] - 1] for turns in unlike for place in turns["first"]}


def trained_in(spans):
    """Returns the text of the spans and its trained ranges."""
    text, ranges = "", []
    for span in spans:
        assert not span["left_out"], "a conversation is too long to be shown whole"
        if span["trained"]:
            ranges.append((len(text), len(text) + len(span["text"])))
        text += span["text"]
    return text, joined(ranges)


def difference(ours, theirs):
    at = len(os.path.commonprefix([ours, theirs]))
    begin = max(0, at - 30)
    return f"from character {at} on {ours[begin : at + 50]!r} instead of {theirs[begin : at + 50]!r}"


def follows_prompts(text, ranges, messages, prompt_of):
    """Returns whether each trained turn follows the prompt that a server sends for it, which may reach into the turn."""
    for i in (i for i, message in enumerate(messages) if message["role"] == "assistant"):
        try:
            prompt = prompt_of(messages[:i])
        except Exception:
            return False
        start = next((start for start, end in ranges if end > len(prompt)), len(text))
        if not text.startswith(prompt) or start > len(prompt):
            return False
    return True


def compare(template, name, variables, said, is_unlike):
    """Returns a word for the table, and a description."""
    messages = CONVERSATIONS[name]
    tools = tools_of(messages)
    words = []
    for preparation in [Preparation(), *AS_WRITTEN]:
        render = partial(template.render, tools=tools, variables=variables, preparation=preparation)
        words.append(compare_rendered(render, messages, template.has_marks, said, is_unlike))
        if words[-1][0] != "DIFFERENT":
            return words[-1] if preparation == Preparation() else ("as written", words[0][1])
    prepared, as_written, _ = (detail for _, detail in words)
    return "DIFFERENT", prepared if prepared == as_written else f"{prepared}; as the messages are written, {as_written}"


def compare_rendered(render, messages, has_marks, said, is_unlike):
    try:
        expected, marked = render(messages)
    except Exception as error:
        if not isinstance(said, dict):
            return "DIFFERENT", f"renders what transformers refuses: {type(error).__name__}: {error}"
        return ("refused" if said["kind"] == "template_refused" else "unclear"), said["reason"]
    if isinstance(said, dict):
        return ("unclear" if said["kind"] == "uncertain_mask" else "DIFFERENT"), f"{said['kind']}: {said['reason']}"
    text, ranges = trained_in(said)
    if text != expected:
        return "DIFFERENT", difference(text, expected)
    trained, marked = ([text[start:end] for start, end in spans] for spans in (ranges, marked))
    if has_marks and trained != marked:
        return "DIFFERENT", f"trains {trained} instead of the marked {marked}"
    if any(ANSWERS in piece for piece in trained):
        return "DIFFERENT", f"trains the answer of a tool: {trained}"
    follows = follows_prompts(text, ranges, messages, lambda before: render(before, add_generation_prompt=True)[0])
    if follows == is_unlike:
        names = "names" if is_unlike else "does not name"
        return "DIFFERENT", f"its report {names} a turn that follows another prompt than a server's"
    return ("equal" if follows else "noted"), ""


def model_folder(folder):
    """Makes a model without weights, whose tokenizer has a `bos_token`, and the data. Returns its special tokens."""
    for file in ["tokenizer.json", "generation_config.json"]:
        shutil.copy(CHECKPOINT / file, folder)
    config = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["max_position_embeddings"] = 1 << 18
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    config = json.loads((CHECKPOINT / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["bos_token"] = "<|endoftext|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    lines = [{"messages": messages, "tools": tools_of(messages)} for messages in CONVERSATIONS.values()]
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return {name: token for name, token in config.items() if name.endswith("_token") and isinstance(token, str)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("templates", type=Path)
    parser.add_argument("program", type=Path)
    parser.add_argument("--only", default="", metavar="WORD", help="take only the templates with this word in their name")
    asked = parser.parse_args()
    files = sorted(file for file in asked.templates.glob("*.jinja") if asked.only in file.name)
    if not files:
        parser.error(f"There is no *.jinja file with '{asked.only}' in its name in the folder {asked.templates}.")
    if not asked.program.is_file():
        parser.error(f"There is no program {asked.program}. Build it with `cargo build --release`.")

    counts, details = dict.fromkeys(WORDS, 0), []
    print(f"| template | {' | '.join(CONVERSATIONS)} |\n|{'---|' * (len(CONVERSATIONS) + 1)}")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        special_tokens = model_folder(folder)
        for file in files:
            try:
                template = Template(file.read_text(encoding="utf-8"), special_tokens)
            except jinja2.TemplateSyntaxError as error:
                sys.exit(f"jinja2 cannot compile {file}, line {error.lineno}: {error}. Remove the file, or repair it.")
            worst = dict.fromkeys(CONVERSATIONS, "equal")
            for variables in VARIABLES:
                said, unlike = checked(asked.program.resolve(), folder, file.resolve(), variables)
                for name in CONVERSATIONS:
                    if isinstance(said, str):
                        word, detail = "unusable", said
                    else:
                        word, detail = compare(template, name, variables, said[name], name in unlike)
                    counts[word] += 1
                    worst[name] = max(worst[name], word, key=WORDS.index)
                    if word not in ["equal", "noted", "refused"]:
                        details.append((word, file.stem, "all" if word == "unusable" else name, variables, detail))
            print(f"| {file.stem} | {' | '.join(worst.values())} |", flush=True)

    print()
    seen = set()
    for word, *place, variables, detail in sorted(details, key=lambda detail: detail[:3]):
        if (key := (word, *place, detail)) not in seen:
            seen.add(key)
            print(f"{word} {' '.join(place)} {json.dumps(variables)}: {detail}")
    sizes = f"{len(files)} templates, {len(CONVERSATIONS)} conversations, {len(VARIABLES)} sets of variables"
    print(f"\ntransformers {transformers.__version__}, jinja2 {jinja2.__version__}: {sizes}:")
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    sys.exit(1 if counts["DIFFERENT"] or counts["unusable"] else 0)


if __name__ == "__main__":
    main()
