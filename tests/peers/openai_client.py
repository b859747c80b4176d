#!/usr/bin/env python3
"""Talks to `sparktune serve` with OpenAI's own client: SPARKTUNE_TOKEN=... openai_client.py http://127.0.0.1:7171 MODEL

Needs the package `openai`. The chat template of the model must know tools; nothing is asked about what the model says. Each check
prints a line, and the first one that fails ends the script with exit code 1. The server is a new one, with nothing else to do.
"""

import os
import sys
import threading
import time

import openai

base, model = sys.argv[1:3]
token = os.environ["SPARKTUNE_TOKEN"]
client = openai.OpenAI(base_url=f"{base}/v1", api_key=token, max_retries=0, timeout=120)
turns = [{"role": "user", "content": "Say something"}]
short = {"model": model, "messages": turns, "max_completion_tokens": 8, "temperature": 0}


def check(what, is_so):
    print(("ok: " if is_so else "FAILED: ") + what, flush=True)
    if not is_so:
        sys.exit(1)


def text(message):
    return (getattr(message, "reasoning_content", None) or "") + (message.content or "")


check("models are listed", model in [m.id for m in client.models.list()])
check("a model is found by its id", client.models.retrieve(model).id == model)

whole = client.chat.completions.create(**short)
check("an answer has text, a reason and usage",
      text(whole.choices[0].message) and whole.choices[0].finish_reason in ("stop", "length")
      and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens)
check("the usage tells of drafts", whole.usage.drafted_tokens >= whole.usage.accepted_tokens >= 0)

chunks = list(client.chat.completions.create(**short, stream=True, stream_options={"include_usage": True}))
streamed = "".join(text(chunk.choices[0].delta) for chunk in chunks if chunk.choices)
check("a stream is the same answer", streamed == text(whole.choices[0].message))
check("the last chunk has the usage", chunks[-1].usage == whole.usage and not chunks[-1].choices)

several = client.chat.completions.create(**{**short, "temperature": 1}, n=3, seed=7, logprobs=True, top_logprobs=2)
again = client.chat.completions.create(**{**short, "temperature": 1}, n=3, seed=7)
check("several answers with a seed are the same again",
      [text(c.message) for c in several.choices] == [text(c.message) for c in again.choices])
logprobs = several.choices[1].logprobs.content
check("tokens have log-probabilities", len(logprobs) >= 1 and all(len(t.top_logprobs) == 2 for t in logprobs))

tool = {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}
with_tool = client.chat.completions.create(**short, tools=[tool])
check("tools go through the template", with_tool.usage.prompt_tokens > whole.usage.prompt_tokens)
call = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
said = turns + [{"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call-1", "content": "3"}]
check("calls and their results are part of a conversation",
      client.chat.completions.create(**{**short, "messages": said}, tools=[tool]).choices)

done = client.completions.create(model=model, prompt=["Once", "Twice"], max_tokens=4, temperature=0, stop=["\n\n\n"])
check("text is continued", len(done.choices) == 2 and done.object == "text_completion")
pieces = "".join(c.choices[0].text for c in client.completions.create(
    model=model, prompt="Once", max_tokens=4, temperature=0, stream=True))
check("and streamed", pieces == done.choices[0].text)


def refusal(kind, call):
    try:
        call()
    except kind as error:
        return error
    return None


error = refusal(openai.BadRequestError, lambda: client.chat.completions.create(**short, logit_bias={"1": 5}))
check("what is not supported is refused by name", error and error.param == "logit_bias")
error = refusal(openai.BadRequestError, lambda: client.chat.completions.create(
    **short, response_format={"type": "json_object"}))
check("so is a format of the answer", error and error.param == "response_format")
error = refusal(openai.NotFoundError, lambda: client.chat.completions.create(**{**short, "model": "no-such"}))
check("an unknown model is not found", error and error.code == "model_not_found")
stranger = openai.OpenAI(base_url=f"{base}/v1", api_key="wrong", max_retries=0)
check("without the token there is nothing", refusal(openai.AuthenticationError, stranger.models.list))

# A client that stops reading in the middle of an answer leaves room for the next.
long = {**short, "max_completion_tokens": 3000, "temperature": 1, "n": 8, "extra_body": {"ignore_eos": True}}
with client.chat.completions.create(**long, stream=True) as stream:
    next(iter(stream))
began = time.monotonic()
client.chat.completions.create(**short)
check(f"a stream that is left ends (the next answer after {time.monotonic() - began:.1f} s)", True)

held, busy = [], []


def hold():
    try:
        held.append(client.chat.completions.create(**long, stream=True))
    except openai.RateLimitError as error:
        busy.append(error)


threads = [threading.Thread(target=hold) for _ in range(7)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
check("too many answers are refused with 429 and a time to come back",
      busy and all(error.response.headers["retry-after"] for error in busy))
for stream in held:
    stream.close()
patient = openai.OpenAI(base_url=f"{base}/v1", api_key=token, max_retries=5, timeout=120)
check("and a client that comes back is answered", patient.chat.completions.create(**short).choices)
