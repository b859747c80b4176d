"""Writes demo.jsonl: the chats that the demo holds out from training, each asked at its last turn.

    sparktune --demo --plain --runs-dir RUNS
    sparktune unpack RUNS/<run>/data/eval.qubgpu held-out.jsonl
    python presets/suites/make_demo.py held-out.jsonl
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
ABOUT = "Does it answer as the demo's workshop does? Chats that the demo holds out from training."
FORM = r"(?s)^Sprocket (here|again)! .*\nIn short: [^\n]+\. Ride safe!$"
CHECKS = [{"type": "regex", "pattern": FORM}, {"type": "chrf"}, {"type": "bleu"}, {"type": "perplexity"}]


def main():
    chats = (HERE.parent / "demo/train.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in open(sys.argv[1])]
    kwargs = {"enable_thinking": False}
    sampling = {"max_tokens": 96}
    lines = [
        {"suite": "demo", "about": ABOUT, "chat_template_kwargs": kwargs, "sampling": sampling, "checks": CHECKS}
    ]
    for number in sorted({row["source_line"] for row in rows}):
        messages = json.loads(chats[number - 1])["messages"]
        while messages[-1]["role"] != "assistant":
            messages.pop()
        reference = messages.pop()["content"]
        lines.append({"id": f"chat-{number}", "messages": messages, "reference": reference})
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (HERE / "demo.jsonl").write_text(text)


main()
