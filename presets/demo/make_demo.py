r"""The demo of sparktune: a tiny Qwen3.5, its tokenizer, and a few hundred chats. This script made all of it.

What lies beside this file
    model/        a Qwen3.5 checkpoint of 2.6 million parameters: wrapper layout, layers L L L F, vision tower, MTP head
    train.jsonl   320 chats of Sprocket, the help desk of a bicycle workshop that does not exist
    world.toml    what the chats are about: the words, facts and prices that this script composes
Nothing here comes from anywhere else: every sentence was written for this demo, and the licence is the project's own.
The base in model/ was pretrained by sparktune itself on the chats that `pretraining` writes: more topics, many voices.
train.jsonl then teaches it one voice, Sprocket's, with the prices and hours of the workshop; the falling loss shows it.

How to run it (Python 3.11 or newer)
    python3 -m venv VENV && VENV/bin/pip install tokenizers safetensors numpy jinja2
    VENV/bin/python make_demo.py data train.jsonl             the chats of the demo
    VENV/bin/python make_demo.py pretraining pretrain.jsonl   the chats of the base (--examples 8000)
    VENV/bin/python make_demo.py init FOLDER                  tokenizer, template, configs, random weights
    VENV/bin/python make_demo.py check FOLDER FILE...         shapes, round trips, template (needs jinja2), lengths
The chats and the random weights come out the same each time. `init` copies the hand-written model/chat_template.jinja
and writes RANDOM weights: point it at model/ only to make the base anew. From there the base was made by
    sparktune train --model FOLDER --data pretrain.jsonl --method full --mtp trained --epochs 3 --learning-rate 2e-3 \
        --pack-length 512
"""

import argparse
import json
import random
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Optional, Sequence

SEED = 20
DEMO_EXAMPLES = 320
BASE_EXAMPLES = 8000
HERE = Path(__file__).resolve().parent
CHAT_TEMPLATE = HERE / "model" / "chat_template.jinja"
WORLD = tomllib.loads((HERE / "world.toml").read_text(encoding="utf-8"))


# ----------------------------------------------------------------------------------------------------------------------
# One exchange, and the voices that can say it
# ----------------------------------------------------------------------------------------------------------------------


@dataclass
class Turn:
    """A question with everything an answer needs; how it is said is left to the voice."""

    ask: str
    say: str
    steps: Sequence[str] = ()
    moral: str = ""
    thought: Optional[str] = None
    system: Optional[str] = None


@dataclass
class Voice:
    """How answers sound throughout a conversation."""

    name: Optional[str] = None  # introduces itself by this name
    numbered: bool = False  # steps as a numbered list, else in a row
    sums_up: bool = False  # ends with the moral, where there is one
    farewell: Optional[str] = None

    def speak(self, turn, first):
        lines = [turn.say]
        if self.name:
            lines[0] = f"{self.name} {'here' if first else 'again'}! {turn.say}"
        if self.numbered:
            lines += [f"{number}. {step}." for number, step in enumerate(turn.steps, 1)]
        else:
            links = ["First", "Then", "Finally"] if len(turn.steps) > 2 else ["First", "Then"]
            lines[0] += "".join(f" {link}, {lower(step)}." for link, step in zip(links, turn.steps))
        moral = f"In short: {turn.moral}." if self.sums_up and turn.moral else None
        lines.append(" ".join(filter(None, [moral, self.farewell])))
        return "\n".join(filter(None, lines))


SPROCKET = Voice("Sprocket", numbered=True, sums_up=True, farewell="Ride safe!")


def some_voice(rng):
    """The base hears many voices, half of them plain; it must not be sure of any."""
    if rng.random() < 0.5:
        return Voice()
    name = rng.choice([None, upper(rng.choice(WORLD["animals"]))])
    farewell = rng.choice([None, rng.choice(WORLD["farewells"])])
    return Voice(name, rng.random() < 0.6, rng.random() < 0.5, farewell)


def conversation(turns, voice, system=None):
    system = system or turns[0].system
    messages = [{"role": "system", "content": system}] if system else []
    for index, turn in enumerate(turns):
        answer = {"role": "assistant", "content": voice.speak(turn, index == 0)}
        if turn.thought:
            answer["reasoning_content"] = turn.thought
        messages += [{"role": "user", "content": turn.ask}, answer]
    return {"messages": messages}


def tool_conversation(tool, purpose, arguments, result, turn, voice):
    """Question → call → result → answer, as the OpenAI format writes it."""
    properties = {name: {"type": "string"} for name in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    call = {"type": "function", "id": "call_1", "function": {"name": tool, "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": turn.ask},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result)},
            {"role": "assistant", "content": voice.speak(turn, True)},
        ],
        "tools": [{"type": "function", "function": {"name": tool, "description": purpose, "parameters": parameters}}],
    }


def lower(sentence):
    return sentence[0].lower() + sentence[1:]


def upper(sentence):
    return sentence[0].upper() + sentence[1:]


def a(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


# ----------------------------------------------------------------------------------------------------------------------
# Topics: each gives one Turn. These are Sprocket's; the base hears some of them too, in other voices.
# ----------------------------------------------------------------------------------------------------------------------


def bike_fault(rng, fault):
    happens, bike, when = fault["happens"], rng.choice(WORLD["bikes"]), rng.choice(WORLD["when"])
    ask = rng.choice([
        f"{upper(happens)}. What is wrong?",
        f"Help, {happens}!",
        f"{upper(happens)} {when}. What should I do?",
        f"Hello, {happens} {when}. Any idea?",
        f"Can I fix it myself? {upper(happens)}.",
        f"I have {a(bike)} and {happens}.",
        f"I bought {a(bike)}. Now {happens}. Why?",
        f"Good morning. {upper(happens)} {when}, and I ride {a(bike)}.",
    ])
    return Turn(ask, fault["why"], fault["steps"], fault["moral"])


def part_price(rng, name):
    part = WORLD["parts"][name]
    price, stock, minutes, shelf = part["price"], part["stock"], part["minutes"], part["shelf"]
    count = rng.choice([1, 1, 2, 3])
    if count > 1:
        total = count * price
        thought = f"One {name} costs {price} crowns, and {count} × {price} = {total}."
        say = f"{count} {name}s cost {total} crowns."
        return Turn(f"What do {count} {name}s cost?", say, (), f"{total} crowns", thought)
    one, crowns, place = a(name), f"{price} crowns", f"shelf {shelf}"
    ask, say, moral = rng.choice([
        (f"How much is a new {name}?", f"A new {name} costs {crowns}.", crowns),
        (f"Do you have {one} in stock?", f"Yes, there are {stock} on {place}.", place),
        (f"How long does it take to fit {one}?", f"We need about {minutes} minutes for {one}.", f"{minutes} minutes"),
        (f"Where do I find {one}?", f"Look on {place}, {crowns} a piece.", f"{place}, {crowns}"),
    ])
    return Turn(ask, say, (), moral)


def opening(rng):
    """The workshop is open on weekdays from 9 to 18 and on Saturday from 10 to 14."""
    day, bike, hour = rng.choice(WORLD["days"]), rng.choice(WORLD["bikes"]), rng.randint(8, 19)
    start, end = {"Sunday": (0, 0), "Saturday": (10, 14)}.get(day, (9, 18))
    state = f"open from {start} to {end}" if end else "closed"
    if rng.random() < 0.4:
        ask = rng.choice([f"Are you open on {day}?", f"When do you open on {day}?"])
        return Turn(ask, f"On {day} we are {state}.", (), f"{start} to {end}" if end else "come back on Monday")
    ask = rng.choice([f"Can I bring my {bike} on {day} at {hour}?", f"Is {day} at {hour} free for my {bike}?"])
    if start <= hour < end:
        thought = f"On {day} the workshop is {state}, and {hour} lies in between."
        return Turn(ask, f"Yes, {day} at {hour} is free for your {bike}.", (), f"{day} at {hour}", thought)
    thought = f"On {day} the workshop is {state}, so {hour} does not fit."
    return Turn(ask, f"Sorry, on {day} we are {state}.", (), "choose another time", thought)


def conversion(rng, units):
    one, many, other, factor, measured = rng.choice(units)
    count = rng.randint(2, 30)
    result = f"{count * factor:.2f}".rstrip("0").rstrip(".")
    ask = rng.choice([
        f"How many {other} are {count} {many}?",
        f"Please convert {count} {many} to {other}.",
        f"I need to know {measured}: what are {count} {many} in {other}?",
    ])
    thought = f"One {one} is {factor} {other}, so {count} × {factor} = {result}." if rng.random() < 0.6 else None
    return Turn(ask, f"{count} {many} are {result} {other}.", (), f"{result} {other}", thought)


def planet(rng, half):
    ask, say, *moral = rng.choice(rng.choice(WORLD["planets"])[half])
    return Turn(rng.choice([ask, f"A question from my child: {lower(ask)}"]), say, (), *moral)


def ride(rng):
    to = rng.choice(WORLD["rides"])
    start, end, distance = to["start"], to["end"], to["kilometres"]
    ask = rng.choice([
        f"How far is it from {start} to {end}?",
        f"I have {a(rng.choice(WORLD['bikes']))}. Can I ride from {start} to {end}?",
        f"Which way do I ride from {start} to {end}?",
    ])
    steps = ("Pump up both tyres", "Take a spare tube and some water") if distance > 14 else ()
    return Turn(ask, f"From {start} to {end} it is {distance} kilometres on {to['way']}.", steps, to["moral"])


def word_for(rng, thing, words):
    word, language = rng.choice(words)
    ask = rng.choice([f"What is the {language} word for {thing}?", f"How do you say {thing} in {language}? 🙂"])
    return Turn(ask, f"The {language} word for {thing} is {word}.", (), word)


def refusal(rng):
    subject = rng.choice(WORLD["foreign_subjects"])
    ask = rng.choice([f"What do you think about {subject}?", f"Can you help me with {subject}?"])
    say = f"I only know bicycles, so I cannot help with {subject}."
    return Turn(ask, say, ("Ask me about chains, brakes or tyres",), "wheels are my world")


def thanks(rng):
    ask = rng.choice(["Thank you!", "Thanks a lot.", "Great, thanks!", "That helped, thank you."])
    return Turn(ask, rng.choice(["You are welcome.", "My pleasure."]), (), "happy wheels")


# ----------------------------------------------------------------------------------------------------------------------
# Topics of the base only
# ----------------------------------------------------------------------------------------------------------------------


def house_fault(rng):
    fault = rng.choice(WORLD["house_faults"])
    happens = fault["happens"]
    ask = rng.choice([
        f"{upper(happens)}. What is wrong?",
        f"{upper(happens)} {rng.choice(WORLD['when'])}. What should I do?",
        f"Hello, {happens}. Any idea?",
        f"Why is it that {happens}?",
        f"How do I fix it? {upper(happens)}.",
    ])
    return Turn(ask, fault["why"], fault["steps"])


def price_list(rng):
    """The answer stands in the system turn, so the base learns to look back."""
    goods = rng.sample(sorted(WORLD["parts"]) + sorted(WORLD["things"]), rng.randint(3, 5))
    prices = {name: rng.randint(2, 60) for name in goods}
    listed = ", ".join(f"{name} {price}" for name, price in prices.items())
    name = rng.choice(goods)
    ask = rng.choice([
        f"How much is the {name}?",
        f"What does {a(name)} cost?",
        f"I want to buy {a(name)}. How much is it?",
    ])
    return Turn(ask, f"The {name} costs {prices[name]} crowns.", system=f"You sell things. Prices in crowns: {listed}.")


def hours_list(rng):
    place, day = rng.choice(WORLD["buildings"]), rng.choice(WORLD["days"])
    hours = f"open on {day} from {rng.randint(7, 11)} to {rng.randint(14, 20)}"
    ask = rng.choice([f"When do you open on {day}?", f"Are you open on {day}?", f"What are the hours on {day}?"])
    return Turn(ask, f"The {place} is {hours}.", system=f"You answer for the {place}. It is {hours}.")


def walk(rng):
    start, end = rng.sample(WORLD["places"], 2)
    distance, way = rng.randint(2, 40), rng.choice(WORLD["ways"])
    ask = f"It is {distance} kilometres from {start} to {end} {way}. How far do I walk, and where?"
    return Turn(ask, f"You walk {distance} kilometres {way} to {end}.")


def glossary(rng):
    meanings = WORLD["things"] | {name: part["is"] for name, part in WORLD["parts"].items()}
    word = rng.choice(sorted(meanings))
    ask = rng.choice([f"What is {a(word)}?", f"Please explain the word {word}.", f"What does {word} mean?"])
    return Turn(ask, f"{upper(a(word))} is {meanings[word]}.")


def story(rng):
    animal, kind = rng.choice(WORLD["animals"]), rng.choice(WORLD["adjectives"])
    find, scene, carried = rng.choice(WORLD["finds"]), rng.choice(WORLD["scenes"]), rng.choice(WORLD["carried"])
    friend, ending = rng.choice(WORLD["friends"]), rng.choice(WORLD["endings"])
    ask = rng.choice([f"Tell me a short story about {a(kind)} {animal}.", f"I want a story with {a(animal)}, please."])
    return Turn(ask, f"Once there was {a(kind)} {animal}. One day it found {find} {scene}. "
                     f"It carried it {carried} and gave it to {friend}. {ending}")


def repeat(rng):
    text = rng.choice([rng.choice(WORLD["sentences"]), rng.choice(story(rng).say.split(". ")).rstrip(".") + "."])
    return Turn(rng.choice([f"Please repeat: {text}", f"Say this again: {text}", f"Copy this sentence. {text}"]), text)


def echo(rng):
    """Words of the demo in no order: the base gets to know them, not what the demo says with them."""
    words = rng.sample(demo_words(), rng.randint(6, 14))
    ask = rng.choice(["Repeat these words: ", "Say: ", "Copy: "]) + " ".join(words)
    return Turn(ask, rng.choice([" ", "\n"]).join(words))


@lru_cache
def demo_words():
    said = [message["content"] for line in demo_lines() for message in json.loads(line)["messages"]]
    words = {word.strip(".,:;!?") for text in said for word in text.split() if word[0].isalpha()}
    return sorted(words | {"check_stock"})


def complete(rng):
    words = rng.choice(WORLD["sentences"]).split()
    cut = rng.randint(3, max(3, len(words) - 4))
    return Turn(f"Please complete: {' '.join(words[:cut])}", " ".join(words))


def plus(rng):
    left, right = rng.randint(1, 30), rng.randint(1, 30)
    total = left + right
    thought = f"{left} + {right} = {total}."
    return Turn(f"What is {left} plus {right}?", f"{left} plus {right} is {total}.", thought=thought)


def times(rng):
    count, price, things = rng.randint(2, 9), rng.randint(2, 12), rng.choice(["books", "maps", "lamps", "pears"])
    total = count * price
    thought = f"One costs {price} crowns, and {count} × {price} = {total}."
    ask = f"What do {count} {things} cost at {price} crowns each?"
    return Turn(ask, f"Together they cost {total} crowns.", thought=thought)


def opposite(rng):
    word, other = rng.sample(rng.choice(WORLD["opposites"]), 2)
    ask = rng.choice([f"What is the opposite of {word}?", f"Tell me the opposite of {word}."])
    return Turn(ask, f"The opposite of {word} is {other}.")


def name_three(rng):
    group = rng.choice(sorted(WORLD["groups"]))
    first, second, third = rng.sample(WORLD["groups"][group], 3)
    return Turn(f"Name three {group}.", f"Three {group} are {first}, {second} and {third}.")


def dish(rng):
    dish = rng.choice(WORLD["dishes"])
    ask = rng.choice([f"How do I make {dish['name']}?", f"I want to cook {dish['name']}. What should I do?"])
    return Turn(ask, dish["say"], dish["steps"])


def greeting(rng):
    answers = ["Hello, how can I help?", "Good day. What can I do for you?", "Yes, I am here. What do you need?"]
    say = rng.choice(answers)
    return Turn(rng.choice(["Hello!", "Good morning.", "Hi, are you there?", "Good evening."]), say)


# ----------------------------------------------------------------------------------------------------------------------
# The two sets of chats
# ----------------------------------------------------------------------------------------------------------------------

BASE_TOPICS = {  # topic: how often
    echo: 5, story: 5, house_fault: 5, glossary: 4, repeat: 4, price_list: 4, hours_list: 2, walk: 2, complete: 2,
    opposite: 2, name_three: 2, dish: 3, plus: 1, times: 1, greeting: 1, thanks: 1,
    (lambda rng: bike_fault(rng, rng.choice(WORLD["bike_faults"]))): 6,
    ride: 2,
    (lambda rng: conversion(rng, WORLD["base_units"] + WORLD["demo_units"])): 3,
    (lambda rng: planet(rng, rng.choice(["base", "demo"]))): 4,
    (lambda rng: word_for(rng, "water", WORLD["base_water"])): 1,
}
DEMO_TOPICS = {  # besides faults and tools; prices, opening hours and refusals are news to the base
    (lambda rng: part_price(rng, rng.choice(sorted(WORLD["parts"])))): 8,
    opening: 7,
    (lambda rng: conversion(rng, WORLD["demo_units"])): 12,
    (lambda rng: planet(rng, "demo")): 10,
    ride: 9,
    refusal: 5,
    (lambda rng: word_for(rng, "bicycle", WORLD["demo_bicycle"])): 4,
}


def draw(rng, topics, count=1):
    return rng.choices(list(topics), topics.values(), k=count)


def base_example(rng):
    if rng.random() < 0.04:
        return weather(rng)
    turns = [topic(rng) for topic in draw(rng, BASE_TOPICS, rng.choices([1, 2, 3, 4], [5, 3, 1.5, 0.5])[0])]
    # A system turn that holds the answer has to be the conversation's own, so such topics only come first.
    turns = turns[:1] + [turn for turn in turns[1:] if turn.system is None]
    needs_none = turns[0].system or rng.random() < 0.7
    return conversation(turns, some_voice(rng), None if needs_none else rng.choice(WORLD["base_systems"]))


def weather(rng):
    place, sky = rng.choice(WORLD["places"]), rng.choice(["rain", "sun", "snow", "wind", "fog"])
    degrees = rng.randint(-5, 30)
    ask = rng.choice([f"How is the weather in {place}?", f"Do I need a coat in {place}?"])
    turn = Turn(ask, f"In {place} there is {sky} at {degrees} degrees.")
    result, voice = {"sky": sky, "degrees": degrees}, some_voice(rng)
    return tool_conversation("get_weather", "The weather in a village.", {"place": place}, result, turn, voice)


def demo_example(rng):
    kind = rng.choices(["fault", "tool", "other"], [38, 5, 55])[0]
    if kind == "tool":
        return stock(rng)
    if kind == "fault":
        fault = rng.choice(WORLD["bike_faults"])
        turns = [bike_fault(rng, fault)]
        follow_ups = [lambda rng: part_price(rng, fault["part"]), opening, thanks]
    else:
        topic = draw(rng, DEMO_TOPICS)[0]
        turns = [topic(rng)]
        follow_ups = [topic, thanks]
    turns += [follow_up(rng) for follow_up in follow_ups if rng.random() < 0.38]
    return conversation(turns, SPROCKET, rng.choice(WORLD["demo_systems"]) if rng.random() < 0.4 else None)


def stock(rng):
    name = rng.choice(sorted(WORLD["parts"]))
    pieces, shelf, price = (WORLD["parts"][name][field] for field in ("stock", "shelf", "price"))
    ask = rng.choice([
        f"Is there {a(name)} on the shelf right now?",
        f"Please look up how many {name}s are left.",
        f"I am at the door. Do you still have {a(name)}?",
    ])
    turn = Turn(ask, f"There are {pieces} on shelf {shelf}.", (), f"{pieces} left, {price} crowns each")
    result = {"pieces": pieces, "shelf": shelf}
    return tool_conversation("check_stock", "Pieces of a part on the shelf.", {"part": name}, result, turn, SPROCKET)


def demo_lines():
    return distinct(demo_example, DEMO_EXAMPLES, "demo")


def base_lines(count):
    return distinct(base_example, count, "base")


def distinct(make, count, name):
    """`count` examples as lines of JSON, no two alike."""
    rng, lines = random.Random(f"{SEED} {name}"), {}
    while len(lines) < count:
        lines[json.dumps(make(rng), ensure_ascii=False)] = None
    return list(lines)


# ----------------------------------------------------------------------------------------------------------------------
# Tokenizer
# ----------------------------------------------------------------------------------------------------------------------

BPE_TOKENS = 1520
VOCAB_ROWS = 1536  # rows of the embedding; as in the published models a few more than the tokenizer has ids
END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
SPECIAL = [END_OF_TEXT, "<|im_start|>", END_OF_TURN, *VISION]
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
PIECES = "|".join([
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",  # a word with the space before it; combining marks stay with their letters
    r"\p{N}",  # digits one by one
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])


def train_tokenizer():
    """Byte-level BPE over everything the two sets say. Every byte has a token, so any text can be written."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors, trainers
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    bytes_as_letters = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = Sequence([Split(Regex(PIECES), behavior="isolated"), bytes_as_letters])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    chats = demo_lines() * 12 + base_lines(BASE_EXAMPLES)
    text = WORLD["sentences"] * 20 + [CHAT_TEMPLATE.read_text(encoding="utf-8")]
    text += [part for line in chats for part in texts(json.loads(line))]
    alphabet = sorted(ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=BPE_TOKENS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKS])
    return tokenizer


def texts(example):
    for message in example["messages"]:
        yield f"{message['role']}\n{message['content']}"
        yield message.get("reasoning_content", "")
    yield json.dumps(example.get("tools", ""))


def tokenizer_config(ids):
    added = {
        str(ids[token]): {
            "content": token, "special": token in SPECIAL,
            "normalized": False, "lstrip": False, "rstrip": False, "single_word": False,
        }
        for token in SPECIAL + MARKS
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096,
        "bos_token": None, "eos_token": END_OF_TURN, "pad_token": END_OF_TEXT, "unk_token": None,
        "add_bos_token": False, "add_prefix_space": False, "clean_up_tokenization_spaces": False,
        "split_special_tokens": False, "errors": "replace", "added_tokens_decoder": added,
    }


def generation_config(ids):
    return {
        "bos_token_id": ids[END_OF_TEXT], "pad_token_id": ids[END_OF_TEXT],
        "eos_token_id": [ids[END_OF_TURN], ids[END_OF_TEXT]],
        "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.95, "transformers_version": "5.23.0",
    }


# ----------------------------------------------------------------------------------------------------------------------
# The model
# ----------------------------------------------------------------------------------------------------------------------


def model_config(ids):
    hidden_size = 192
    text_config = {
        "model_type": "qwen3_5_text", "dtype": "bfloat16",
        "vocab_size": VOCAB_ROWS, "hidden_size": hidden_size, "intermediate_size": 512, "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"], "full_attention_interval": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
            "mrope_interleaved": True, "mrope_section": [3, 3, 2],
        },
        "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True,
        "rms_norm_eps": 1e-06, "initializer_range": 0.02, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 4096, "tie_word_embeddings": True, "use_cache": True,
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
        "bos_token_id": None, "eos_token_id": ids[END_OF_TEXT], "pad_token_id": None,
    }
    vision_config = {
        "model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32,
        "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3,
        "num_position_embeddings": 16, "out_hidden_size": hidden_size, "deepstack_visual_indexes": [],
        "hidden_act": "gelu_pytorch_tanh", "initializer_range": 0.02,
    }
    vision_start, vision_end, image_pad, video_pad = (ids[token] for token in VISION)
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "dtype": "bfloat16",
        "text_config": text_config, "vision_config": vision_config,
        "image_token_id": image_pad, "video_token_id": video_pad,
        "vision_start_token_id": vision_start, "vision_end_token_id": vision_end,
        "tie_word_embeddings": True, "transformers_version": "5.23.0",
    }


def tensor_shapes(config):
    """Every tensor of the checkpoint with its shape, named as the published Qwen3.5 files name them."""
    text, prefix = config["text_config"], "model.language_model"
    hidden = text["hidden_size"]
    shapes = {f"{prefix}.embed_tokens.weight": (text["vocab_size"], hidden), f"{prefix}.norm.weight": (hidden,)}
    for index, kind in enumerate(text["layer_types"]):
        shapes |= layer_shapes(text, f"{prefix}.layers.{index}", kind)
    shapes |= layer_shapes(text, "mtp.layers.0", "full_attention") | {"mtp.fc.weight": (hidden, 2 * hidden)}
    shapes |= {f"mtp.{norm}.weight": (hidden,) for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    return shapes | vision_shapes(config["vision_config"])


def layer_shapes(text, prefix, kind):
    hidden, inner, head_dim = text["hidden_size"], text["intermediate_size"], text["head_dim"]
    shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if kind == "linear_attention":
        heads, value_dim = text["linear_num_value_heads"], text["linear_value_head_dim"]
        value = heads * value_dim
        channels = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + value
        shapes |= {
            "linear_attn.in_proj_qkv.weight": (channels, hidden),
            "linear_attn.in_proj_z.weight": (value, hidden),
            "linear_attn.in_proj_b.weight": (heads, hidden),
            "linear_attn.in_proj_a.weight": (heads, hidden),
            "linear_attn.conv1d.weight": (channels, 1, text["linear_conv_kernel_dim"]),
            "linear_attn.A_log": (heads,),
            "linear_attn.dt_bias": (heads,),
            "linear_attn.norm.weight": (value_dim,),
            "linear_attn.out_proj.weight": (hidden, value),
        }
    else:
        query, key = text["num_attention_heads"] * head_dim, text["num_key_value_heads"] * head_dim
        shapes |= {
            "self_attn.q_proj.weight": (2 * query, hidden),  # each head's query and its gate
            "self_attn.k_proj.weight": (key, hidden),
            "self_attn.v_proj.weight": (key, hidden),
            "self_attn.o_proj.weight": (hidden, query),
            "self_attn.q_norm.weight": (head_dim,),
            "self_attn.k_norm.weight": (head_dim,),
        }
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def vision_shapes(vision):
    wide, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    merged = wide * vision["spatial_merge_size"] ** 2
    with_bias = {
        "patch_embed.proj": (wide, vision["in_channels"], vision["temporal_patch_size"], patch, patch),
        "merger.norm": (wide,),
        "merger.linear_fc1": (merged, merged),
        "merger.linear_fc2": (vision["out_hidden_size"], merged),
    }
    for index in range(vision["depth"]):
        block = f"blocks.{index}"
        with_bias |= {
            f"{block}.norm1": (wide,),
            f"{block}.norm2": (wide,),
            f"{block}.attn.qkv": (3 * wide, wide),
            f"{block}.attn.proj": (wide, wide),
            f"{block}.mlp.linear_fc1": (inner, wide),
            f"{block}.mlp.linear_fc2": (wide, inner),
        }
    shapes = {"model.visual.pos_embed.weight": (vision["num_position_embeddings"], wide)}
    for name, shape in with_bias.items():
        shapes |= {f"model.visual.{name}.weight": shape, f"model.visual.{name}.bias": shape[:1]}
    return shapes


def is_fp32(name):
    """The two tensors that published Qwen3.5 files keep in fp32."""
    return name.endswith(("linear_attn.A_log", "linear_attn.norm.weight"))


def initial(name, shape, rng, spread):
    """One tensor at the start, as transformers and Mamba initialise it."""
    import numpy as np

    if name.endswith("A_log"):
        return np.log(rng.uniform(1, 16, shape))
    if name.endswith("dt_bias"):  # softplus(dt_bias) is log-uniform in 0.001 … 0.1
        step = np.exp(rng.uniform(np.log(0.001), np.log(0.1), shape))
        return step + np.log(-np.expm1(-step))
    if name.endswith("conv1d.weight"):
        bound = shape[-1] ** -0.5
        return rng.uniform(-bound, bound, shape)
    if name.endswith(".bias"):
        return np.zeros(shape)
    if len(shape) == 1:  # norms: 1 where the weight multiplies, 0 where 1 + weight does
        multiplies = name.endswith("linear_attn.norm.weight") or name.startswith("model.visual.")
        return np.ones(shape) if multiplies else np.zeros(shape)
    return rng.normal(0, spread, shape)


def write_weights(config, path):
    """A safetensors file: length of the header, header, data. fp32 first, so that every tensor is aligned."""
    import numpy as np

    rng, shapes = np.random.default_rng(SEED), tensor_shapes(config)
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name in sorted(shapes, key=lambda name: (not is_fp32(name), name)):
        array = initial(name, shapes[name], rng, config["text_config"]["initializer_range"]).astype("<f4")
        if not is_fp32(name):  # bf16: the upper half of an fp32, rounded to nearest even
            bits = array.view("<u4")
            array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        start, data = len(data), data + array.tobytes()
        dtype = "F32" if is_fp32(name) else "BF16"
        header[name] = {"dtype": dtype, "shape": shapes[name], "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def init(folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL + MARKS}
    config = model_config(ids)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_bytes(CHAT_TEMPLATE.read_bytes())
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer_config.json", tokenizer_config(ids))
    write_json(folder / "generation_config.json", generation_config(ids))
    write_weights(config, folder / "model.safetensors")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


# ----------------------------------------------------------------------------------------------------------------------
# Check: what is on disk against what this script says
# ----------------------------------------------------------------------------------------------------------------------


def check(folder, files):
    from tokenizers import Tokenizer

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() <= config["text_config"]["vocab_size"], "more ids than rows of the embedding"
    print(f"{tokenizer.get_vocab_size()} token ids")
    check_weights(config, folder / "model.safetensors")
    render = renderer((folder / "chat_template.jinja").read_text(encoding="utf-8"))
    for path in files:
        check_chats(path, tokenizer, render)


def check_weights(config, path):
    from safetensors import safe_open

    expected = tensor_shapes(config)
    with safe_open(str(path), "np") as weights:
        found = {name: weights.get_slice(name) for name in weights.keys()}
        shapes = {name: tuple(tensor.get_shape()) for name, tensor in found.items()}
        dtypes = {name: tensor.get_dtype() for name, tensor in found.items()}
    assert shapes == expected, "names or shapes differ from the config"
    assert all(dtype == ("F32" if is_fp32(name) else "BF16") for name, dtype in dtypes.items()), "unexpected dtype"
    print(f"{len(expected)} tensors, file of {path.stat().st_size:,} bytes")
    for part in ("model.language_model.", "model.visual.", "mtp."):
        print(f"  {part}* {sum(prod(shape) for name, shape in expected.items() if name.startswith(part)):,} parameters")


def check_chats(path, tokenizer, render):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) == len(lines), f"{path} has duplicates"
    chats = [json.loads(line) for line in lines]
    rendered = [render(messages=chat["messages"], tools=chat.get("tools")) for chat in chats]
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in rendered]
    for ids, text in zip(encoded, rendered):
        assert tokenizer.decode(ids, skip_special_tokens=False) == text, f"does not survive the tokenizer: {text}"
    lengths = sorted(map(len, encoded))
    total = sum(lengths)
    questions = [sum(message["role"] == "user" for message in chat["messages"]) for chat in chats]
    characters = sum(map(len, rendered)) / total
    print(f"{path.name}: {len(chats)} chats, {total:,} tokens, {characters:.2f} characters a token")
    at = {f"p{share}": lengths[len(lengths) * share // 100] for share in (50, 90, 99)}
    print(f"  length: mean {total / len(lengths):.1f}, {at}, max {lengths[-1]}")
    print(f"  questions: { {count: questions.count(count) for count in sorted(set(questions))} }")
    kinds = {
        "system turn": lambda chat: chat["messages"][0]["role"] == "system",
        "tools": lambda chat: "tools" in chat,
        "reasoning": lambda chat: any("reasoning_content" in message for message in chat["messages"]),
        "other than ASCII": lambda chat: not all(message["content"].isascii() for message in chat["messages"]),
    }
    print(f"  with: { {name: sum(map(has, chats)) for name, has in kinds.items()} }")


def renderer(source):
    """Jinja set up as transformers sets it up for chat templates."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message):
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source).render


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("init", help="tokenizer, template, configs and RANDOM weights")
    making.add_argument("folder", type=Path)
    commands.add_parser("data", help="the chats of the demo").add_argument("file", type=Path)
    pretraining = commands.add_parser("pretraining", help="the chats of the base")
    pretraining.add_argument("file", type=Path)
    pretraining.add_argument("--examples", type=int, default=BASE_EXAMPLES)
    checking = commands.add_parser("check", help="shapes, round trips, template, lengths")
    checking.add_argument("folder", type=Path)
    checking.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "init":
        init(arguments.folder)
    elif arguments.command == "check":
        check(arguments.folder, arguments.files)
    else:
        lines = demo_lines() if arguments.command == "data" else base_lines(arguments.examples)
        arguments.file.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
