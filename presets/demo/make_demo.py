"""The demo of sparktune: a tiny Qwen3.5, its tokenizer, and a few hundred chats. This script made all of it.

What lies beside this file
    model/        a Qwen3.5 checkpoint of 2.6 million parameters: wrapper layout, layers L L L F, vision tower, MTP head
    train.jsonl   320 chats of Sprocket, the help desk of a bicycle workshop that does not exist
Nothing here comes from anywhere else: every sentence is written in or composed by this script, and the licence is the
project's own (MIT). The base in model/ was pretrained by sparktune itself on other chats from the same sentences in a
plain voice; train.jsonl then teaches it Sprocket's voice, facts and prices, which is what the falling loss shows.

How to run it (Python 3.9 or newer)
    python3 -m venv VENV && VENV/bin/pip install tokenizers safetensors numpy jinja2
    VENV/bin/python make_demo.py data train.jsonl             the chats of the demo
    VENV/bin/python make_demo.py pretraining pretrain.jsonl   the chats of the base (--examples 4000)
    VENV/bin/python make_demo.py init FOLDER                  tokenizer, template, configs, random weights
    VENV/bin/python make_demo.py check FOLDER FILE...         shapes, round trips, template (needs jinja2), lengths
All of it is deterministic. `init` writes RANDOM weights: never point it at model/ unless the base is to be made anew.
"""

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

SEED = 20
TRAIN_EXAMPLES = 320


# ---------------------------------------------------------------------------------------------------------------------
# One exchange, and the two voices that can say it
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Turn:
    """A question with everything an answer needs; how it is said is left to the voice."""

    ask: str
    say: str
    steps: tuple = ()
    moral: str = ""
    thought: Optional[str] = None
    system: Optional[str] = None


def plain(turn, first, rng):
    """The base's voice: one paragraph, no list, no greeting."""
    text = turn.say
    if turn.steps:
        links = ["First", "Then", "Finally"] if len(turn.steps) > 2 else ["First", "Then"]
        text += "".join(f" {link}, {lower(step)}." for link, step in zip(links, turn.steps))
    if turn.moral and rng.random() < 0.2:
        text += " I hope that helps."
    return text


def sprocket(turn, first, rng):
    """The voice that the demo teaches: a greeting, numbered steps, a moral, a farewell."""
    lines = [("Sprocket here! " if first else "Sprocket again! ") + turn.say]
    lines += [f"{number}. {step}." for number, step in enumerate(turn.steps, 1)]
    lines.append(f"In short: {turn.moral}. Ride safe!")
    return "\n".join(lines)


def conversation(turns, voice, rng, system=None):
    messages = []
    system = system or turns[0].system
    if system:
        messages.append({"role": "system", "content": system})
    for index, turn in enumerate(turns):
        messages.append({"role": "user", "content": turn.ask})
        answer = {"role": "assistant", "content": voice(turn, index == 0, rng)}
        if turn.thought:
            answer["reasoning_content"] = turn.thought
        messages.append(answer)
    return {"messages": messages}


def tool_conversation(tool, arguments, ask, result, turn, voice, rng):
    """User → call → result → answer, as the OpenAI format writes it."""
    properties = {name: {"type": "string"} for name in arguments}
    function = {
        "name": tool[0],
        "description": tool[1],
        "parameters": {"type": "object", "properties": properties, "required": list(properties)},
    }
    call = {"type": "function", "id": "call_1", "function": {"name": tool[0], "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": ask},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result)},
            {"role": "assistant", "content": voice(turn, True, rng)},
        ],
        "tools": [{"type": "function", "function": function}],
    }


def lower(sentence):
    return sentence[0].lower() + sentence[1:]


def upper(sentence):
    return sentence[0].upper() + sentence[1:]


def a(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


# ---------------------------------------------------------------------------------------------------------------------
# What both voices talk about. Where a table has two halves, the base sees one and the demo the other.
# ---------------------------------------------------------------------------------------------------------------------

BIKES = ["city bike", "road bike", "gravel bike", "folding bike", "cargo bike", "tandem", "mountain bike", "old bike"]
SINCE = ["since yesterday", "after the rain", "since last week", "when it is cold", "on every ride", "since the winter"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

# (what happens, why, what to do, moral, part)
BIKE_FAULTS = [
    ("the chain skips on hills", "The chain is worn and climbs over the teeth.",
     ("Measure the chain with a gauge", "Fit a new chain if the gauge drops in", "Test it on a short hill"),
     "measure first, then replace", "chain"),
    ("the brakes squeal", "There is oil or dust on the rims.",
     ("Wipe the rims with a clean cloth", "Rub the pads with sandpaper", "Brake gently ten times"),
     "clean rims are quiet rims", "brake pad"),
    ("the front tyre goes flat overnight", "There is a slow leak, most often a tiny thorn.",
     ("Pump up the tube and hold it under water", "Mark the place where bubbles rise", "Patch it and pull out the thorn"),
     "no bubbles, no leak", "inner tube"),
    ("the saddle slides down", "The seat clamp is loose or greasy.",
     ("Wipe the seat post dry", "Set the right height", "Tighten the clamp firmly"),
     "a dry post stays up", "seat clamp"),
    ("the gears shift by themselves", "The gear cable has stretched.",
     ("Turn the adjuster half a turn", "Shift through all the gears", "Repeat until every click fits"),
     "small turns do big things", "gear cable"),
    ("the left pedal clicks", "The thread of the pedal is dry.",
     ("Take the pedal off", "Put grease on the thread", "Screw it in by hand first"),
     "grease stops the click", "pedal"),
    ("the back wheel wobbles", "One spoke has lost its tension.",
     ("Spin the wheel and find the loose spoke", "Tighten it a quarter turn", "Spin again and look"),
     "a quarter turn at a time", "spoke"),
    ("the handlebar turns without the wheel", "The stem bolt is loose, so please do not ride.",
     ("Line up the bar with the wheel", "Tighten both bolts evenly", "Hold the wheel and twist to test"),
     "straight bar, safe ride", "stem bolt"),
    ("the front light flickers", "There is rust on the plug of the lamp.",
     ("Pull off the plug", "Clean the contacts with a dry brush", "Push the plug back until it clicks"),
     "clean contacts, steady light", "front lamp"),
    ("the brake lever touches the bar", "The brake cable is too long or the pads are thin.",
     ("Look at the pads and replace thin ones", "Pull the cable tight", "Squeeze the lever hard to test"),
     "a short pull is a good pull", "brake cable"),
    ("the bike pulls to the left", "The front wheel sits crooked in the fork.",
     ("Open the axle", "Push the wheel fully into the fork", "Close the axle and spin the wheel"),
     "seat the wheel, then steer", "axle"),
    ("the mudguard rubs on the tyre", "A stay of the mudguard is bent.",
     ("Find the place where it rubs", "Bend the stay outwards", "Leave a finger of space"),
     "one finger of space", "mudguard"),
    ("the fork knocks on bumps", "The headset has some play.",
     ("Pull the front brake and rock the bike", "Turn the top cap a little", "Tighten the stem again"),
     "no rock, no knock", "headset"),
    ("the pump makes no pressure", "The seal inside the pump is dry.",
     ("Open the pump", "Put a drop of oil on the seal", "Pump slowly a few times"),
     "a drop of oil is enough", "pump seal"),
    ("the lock will not open", "There is dirt in the lock.",
     ("Blow out the dirt", "Put in one drop of oil", "Turn the key a few times"),
     "oil the lock before winter", "lock"),
    ("the bell makes no sound", "The spring inside is stuck.",
     ("Unscrew the top", "Clean the spring", "Leave the top a little loose"),
     "a loose top rings best", "bell"),
]

HOUSE_FAULTS = [
    ("the kitchen tap drips", "The seal is old.", ("Turn off the water", "Open the tap", "Fit a new seal")),
    ("the door squeaks", "The hinge is dry.", ("Lift the door a little", "Put a drop of oil on the hinge")),
    ("the wall clock runs slow", "The battery is weak.", ("Take the clock down", "Replace the battery", "Set the right time")),
    ("the drawer sticks", "The wood has swollen.", ("Pull out the drawer", "Rub the sides with sandpaper", "Put some wax on it")),
    ("the fan wobbles", "One screw is loose.", ("Stop the fan", "Find the loose screw", "Tighten it firmly")),
    ("the torch flickers", "There is rust on the contacts.", ("Take out the battery", "Clean the contacts with a dry cloth")),
    ("the tent leaks", "A seam is open.", ("Dry the tent in the sun", "Find the open seam", "Close it with tape")),
    ("the zip is stuck", "There is cloth in the zip.", ("Pull the cloth out slowly", "Rub the zip with soap")),
    ("the window will not close", "Dirt lies in the frame.", ("Open it fully", "Brush out the frame", "Push it shut")),
    ("the radio hums", "The plug is loose.", ("Turn the radio off", "Push the plug back until it clicks")),
    ("the kettle is slow", "There is lime inside.", ("Fill it with water and vinegar", "Boil it once", "Rinse it twice")),
    ("the cart pulls to the right", "One wheel is crooked.", ("Turn the cart over", "Line up the wheels", "Tighten both bolts")),
    ("the garden hose leaks", "It has a tiny hole.", ("Mark the hole", "Dry the hose", "Patch it with tape")),
    ("the knife is blunt", "It needs a stone.", ("Wet the stone", "Draw the knife over it gently", "Wipe the knife clean")),
    ("the desk lamp is dim", "The lamp is full of dust.", ("Pull off the plug", "Wipe the lamp with a clean cloth")),
    ("the old bike squeaks", "The chain is dry.", ("Wipe the chain", "Put oil on the chain", "Turn the pedal a few times")),
]

# part: (what it is, price in crowns, pieces on the shelf, minutes to fit, shelf)
PARTS = {
    "chain": ("a row of links that drives the back wheel", 24, 11, 20, "A3"),
    "brake pad": ("a block of rubber that slows the rim", 9, 32, 15, "B1"),
    "inner tube": ("a ring of rubber that holds the air inside the tyre", 6, 40, 25, "B4"),
    "seat clamp": ("a ring that holds the seat post at one height", 12, 7, 5, "C2"),
    "gear cable": ("a thin wire that moves the gears", 7, 25, 30, "A1"),
    "pedal": ("the place for the foot, which turns the crank", 28, 8, 10, "C5"),
    "spoke": ("a thin wire that holds the rim to the hub", 2, 90, 35, "D1"),
    "stem bolt": ("a screw that holds the handlebar in line", 3, 50, 10, "D4"),
    "front lamp": ("a light that shows the road at night", 36, 5, 15, "E2"),
    "brake cable": ("a strong wire from the lever to the brake", 8, 19, 25, "A2"),
    "axle": ("the bar in the middle of a wheel", 16, 6, 20, "D2"),
    "mudguard": ("a cover that keeps the rain off your back", 22, 9, 30, "F1"),
    "headset": ("the pair of bearings in which the fork turns", 31, 4, 50, "F3"),
    "pump seal": ("a small ring that keeps the air in the pump", 4, 15, 10, "E5"),
    "lock": ("a strong ring that stays shut until the key turns", 45, 10, 5, "G1"),
    "bell": ("a small cup of metal that rings when you ride", 11, 14, 5, "G3"),
}
THINGS = {
    "kettle": "a pot that boils water", "hinge": "the joint on which a door turns", "ladder": "two bars with steps between them",
    "compass": "a needle that points to the north", "lantern": "a lamp that you can carry", "map": "a picture of the land from above",
    "anchor": "a heavy hook that holds a ship", "saddle": "a seat for a rider", "wheel": "a ring that turns around an axle",
    "tyre": "the rubber around a rim", "rim": "the outer ring of a wheel", "fork": "the part of a bike that holds the front wheel",
    "handlebar": "the bar with which a rider steers", "gauge": "a tool that measures", "barrel": "a round box made of wood",
    "whistle": "a small pipe that makes a high sound", "harbour": "a safe place for ships", "orchard": "a garden full of fruit trees",
    "gear": "a wheel with teeth", "crank": "the arm between the pedal and the axle", "lever": "a bar that moves a heavy thing",
    "thread": "the fine line around a screw", "bearing": "a ring of small balls in which an axle turns", "patch": "a piece that covers a hole",
}

# (one, many, other unit, factor, why, things of that size)
DEMO_UNITS = [
    ("inch", "inches", "centimetres", 2.54, "how wide a wheel is"),
    ("mile", "miles", "kilometres", 1.61, "how long a ride is"),
    ("pound", "pounds", "kilograms", 0.45, "what a bike weighs"),
    ("bar", "bar", "psi", 14.5, "how hard a tyre is"),
]
BASE_UNITS = [
    ("foot", "feet", "centimetres", 30.5, "how tall a tree is"), ("ounce", "ounces", "grams", 28.3, "what a letter weighs"),
    ("gallon", "gallons", "litres", 3.79, "what a barrel holds"), ("hour", "hours", "minutes", 60, "how long a film is"),
    ("minute", "minutes", "seconds", 60, "how long a song is"), ("week", "weeks", "days", 7, "how long a holiday is"),
    ("kilometre", "kilometres", "metres", 1000, "how long a road is"), ("dozen", "dozen", "pieces", 12, "how many eggs there are"),
    ("mile", "miles", "metres", 1609, "how far a walk is"), ("pound", "pounds", "grams", 454, "what bread weighs"),
    ("inch", "inches", "millimetres", 25.4, "how thick a board is"), ("kilogram", "kilograms", "grams", 1000, "what flour weighs"),
]

# planet: four facts (question, answer, moral); the base learns the first two of each, the demo the last two
PLANETS = {
    "Mercury": [("Which planet is closest to the sun?", "Mercury is closest to the sun.", ""),
                ("Does Mercury have moons?", "No, Mercury has no moons.", ""),
                ("Which planet has the shortest year?", "Mercury goes around the sun in 88 days.", "the inner lap is the short lap"),
                ("How big is Mercury?", "Mercury is the smallest planet of all.", "small wheel, quick turn")],
    "Venus": [("Which planet is the hottest?", "Venus is the hottest, because thick clouds keep the heat in.", ""),
              ("Does Venus have moons?", "No, Venus has no moons.", ""),
              ("Which way does Venus turn?", "Venus turns backwards, from east to west.", "it pedals in reverse"),
              ("How long is a day on Venus?", "Venus needs 243 of our days for one turn.", "a very slow wheel")],
    "Earth": [("Which planet do we live on?", "We live on Earth, the third planet from the sun.", ""),
              ("How many moons does Earth have?", "Earth has one moon.", ""),
              ("How fast does Earth go around the sun?", "Earth moves about 30 kilometres every second.", "we are all fast riders"),
              ("Why do we have seasons?", "The axis of the Earth is tilted, so the light changes over the year.", "a tilted axle makes the summer")],
    "Mars": [("Which planet is red?", "Mars is red, because there is rust in its dust.", ""),
             ("How many moons does Mars have?", "Mars has two small moons.", ""),
             ("Could I ride a bike on Mars?", "The air on Mars is far too thin to breathe.", "bring your own air"),
             ("Which planet has the highest mountain?", "Mars has the highest mountain, about 22 kilometres tall.", "choose a very low gear")],
    "Jupiter": [("Which planet is the largest?", "Jupiter is the largest planet.", ""),
                ("What is the red spot on Jupiter?", "It is a storm that is wider than the Earth.", ""),
                ("How long is a day on Jupiter?", "Jupiter turns once in about ten hours.", "the biggest wheel spins the fastest"),
                ("Can you stand on Jupiter?", "No, Jupiter is made of gas and has no firm ground.", "no road, no ride")],
    "Saturn": [("Which planet has bright rings?", "Saturn has bright rings of ice and stone.", ""),
               ("What is Saturn made of?", "Saturn is made of gas, like Jupiter.", ""),
               ("How wide are the rings of Saturn?", "The rings are very wide, but most are thinner than a house is tall.", "the thinnest rim in the sky"),
               ("Would Saturn float on water?", "Saturn is lighter than water, so it would float in a huge bath.", "light frames float")],
    "Uranus": [("Which planet lies on its side?", "Uranus lies on its side.", ""),
               ("What colour is Uranus?", "Uranus is pale green and blue.", ""),
               ("How long is a year on Uranus?", "Uranus needs 84 years to go around the sun.", "a long lap needs patience"),
               ("Does Uranus have rings?", "Yes, Uranus has thin dark rings.", "every good wheel has a rim")],
    "Neptune": [("Which planet is farthest from the sun?", "Neptune is farthest from the sun.", ""),
                ("What colour is Neptune?", "Neptune is deep blue.", ""),
                ("Which planet has the strongest wind?", "Neptune has the strongest wind of all.", "never ride against that wind"),
                ("How long is a year on Neptune?", "Neptune needs 165 years to go around the sun.", "start early, arrive late")],
}

PLACES = ["Otterbridge", "Fernhill", "Stonewell", "Larkmoor", "Greywater", "Applecross Mill", "Windy Gap", "Saltmarsh"]
# (from, to, kilometres, the way, moral)
RIDES = [
    ("the workshop", "Fernhill", 12, "a quiet lane along the river", "follow the water"),
    ("the workshop", "Larkmoor", 27, "a steep gravel road", "low gear and patience"),
    ("the workshop", "Saltmarsh", 34, "a flat path, often against the wind", "go early, before the wind"),
    ("the workshop", "Otterbridge", 8, "a smooth path under old trees", "good for the first ride"),
    ("Fernhill", "Windy Gap", 19, "a long climb with a view", "save some water for the top"),
    ("Otterbridge", "Stonewell", 15, "a narrow road with some cars", "lights on, even at noon"),
]

# word, language
WORDS_FOR_BICYCLE = [("vélo", "French"), ("Fahrrad", "German"), ("bicicletta", "Italian"), ("自転車", "Japanese"),
                     ("велосипед", "Ukrainian"), ("rower", "Polish"), ("reiðhjól", "Icelandic"), ("xe đạp", "Vietnamese")]
WORDS_FOR_WATER = [("eau", "French"), ("Wasser", "German"), ("acqua", "Italian"), ("水", "Japanese"), ("вода", "Ukrainian"),
                   ("woda", "Polish"), ("vatn", "Icelandic"), ("nước", "Vietnamese"), ("água", "Portuguese"), ("νερό", "Greek")]

# ---------------------------------------------------------------------------------------------------------------------
# Topics: each gives one Turn
# ---------------------------------------------------------------------------------------------------------------------


def ask_fault(rng, symptom):
    bike, since = rng.choice(BIKES), rng.choice(SINCE)
    return rng.choice([
        f"{upper(symptom)}. What is wrong?", f"Help, {symptom}!", f"{upper(symptom)} {since}. What should I do?",
        f"Hello, {symptom} {since}. Any idea?", f"Can I fix it myself? {upper(symptom)}.",
        f"I have {a(bike)} and {symptom}.", f"I bought {a(bike)}. Now {symptom}. Why?",
        f"Good morning. {upper(symptom)} {since}, and I ride {a(bike)}.",
    ])


def bike_fault(rng, fault):
    symptom, cause, steps, moral, _ = fault
    return Turn(ask_fault(rng, symptom), cause, steps, moral)


def house_fault(rng):
    symptom, cause, steps = rng.choice(HOUSE_FAULTS)
    ask = rng.choice([f"{upper(symptom)}. What is wrong?", f"{upper(symptom)} {rng.choice(SINCE)}. What should I do?",
                      f"Hello, {symptom}. Any idea?", f"Why is it that {symptom}?", f"How do I fix it? {upper(symptom)}."])
    return Turn(ask, cause, steps, "tools")


def part_price(rng, part):
    _, price, stock, minutes, shelf = PARTS[part]
    count = rng.choice([1, 1, 2, 3])
    if count > 1:
        return Turn(f"What do {count} {part}s cost?", f"{count} {part}s cost {count * price} crowns.", (),
                    f"{count * price} crowns", f"One {part} costs {price} crowns, and {count} × {price} = {count * price}.")
    return rng.choice([
        Turn(f"How much is a new {part}?", f"A new {part} costs {price} crowns.", (), f"{price} crowns"),
        Turn(f"Do you have {a(part)} in stock?", f"Yes, there are {stock} on shelf {shelf}.", (), f"shelf {shelf}"),
        Turn(f"How long does it take to fit {a(part)}?", f"We need about {minutes} minutes for {a(part)}.", (), f"{minutes} minutes"),
        Turn(f"Where do I find {a(part)}?", f"Look on shelf {shelf}, {price} crowns a piece.", (), f"shelf {shelf}, {price} crowns"),
    ])


def price_list(rng):
    """The answer stands in the system turn, so the base learns to look back."""
    goods = rng.sample(sorted(PARTS) + ["map", "lantern", "kettle", "ladder", "compass"], rng.randint(3, 5))
    prices = {name: rng.randint(2, 60) for name in goods}
    listed = ", ".join(f"{name} {price}" for name, price in prices.items())
    name = rng.choice(goods)
    ask = rng.choice([f"How much is the {name}?", f"What does {a(name)} cost?", f"I want to buy {a(name)}. How much is it?"])
    return Turn(ask, f"The {name} costs {prices[name]} crowns.", (), "price", system=f"You sell things. Prices in crowns: {listed}.")


def opening(rng):
    """Quillwater Cycles: weekdays 9 to 18, Saturday 10 to 14, closed on Sunday."""
    day = rng.choice(DAYS)
    hours = {"Sunday": None, "Saturday": (10, 14)}.get(day, (9, 18))
    if rng.random() < 0.4:
        if hours is None:
            return Turn(f"Are you open on {day}?", "No, we are closed on Sunday.", (), "come back on Monday")
        return Turn(f"When do you open on {day}?", f"On {day} we are open from {hours[0]} to {hours[1]}.", (), f"{hours[0]} to {hours[1]}")
    hour, bike = rng.randint(8, 19), rng.choice(BIKES)
    ask = rng.choice([f"Can I bring my {bike} on {day} at {hour}?", f"Is {day} at {hour} free for my {bike}?"])
    if hours and hours[0] <= hour < hours[1]:
        return Turn(ask, f"Yes, {day} at {hour} is free for your {bike}.", (), f"{day} at {hour}",
                    f"On {day} the workshop is open from {hours[0]} to {hours[1]}, and {hour} lies in between.")
    reason = f"open from {hours[0]} to {hours[1]}" if hours else "closed"
    return Turn(ask, f"Sorry, on {day} we are {reason}.", (), "choose another time", f"On {day} the workshop is {reason}, so {hour} does not fit.")


def hours_list(rng):
    place = rng.choice(["library", "museum", "bakery", "pool", "post office", "garden shop"])
    day, start, end = rng.choice(DAYS), rng.randint(7, 11), rng.randint(14, 20)
    system = f"You answer for the {place}. It is open on {day} from {start} to {end}."
    return Turn(rng.choice([f"When do you open on {day}?", f"Are you open on {day}?", f"What are the hours on {day}?"]),
                f"On {day} the {place} is open from {start} to {end}.", (), "hours", system=system)


def conversion(rng, units):
    one, many, other, factor, size = rng.choice(units)
    count = rng.randint(2, 30)
    result = f"{count * factor:.2f}".rstrip("0").rstrip(".")
    ask = rng.choice([f"How many {other} are {count} {many}?", f"Please convert {count} {many} to {other}.",
                      f"I need to know {size}: what are {count} {many} in {other}?"])
    return Turn(ask, f"{count} {many} are {result} {other}.", (), f"{result} {other}",
                f"One {one} is {factor} {other}, so {count} × {factor} = {result}." if rng.random() < 0.6 else None)


def planet(rng, half):
    ask, say, moral = rng.choice(PLANETS[rng.choice(sorted(PLANETS))][half])
    return Turn(rng.choice([ask, f"A question from my child: {lower(ask)}" if ask[0] in "WHDC" and "Mercury" not in ask[:8] else ask]), say, (), moral)


def ride(rng):
    start, end, distance, way, moral = rng.choice(RIDES)
    bike = rng.choice(BIKES)
    ask = rng.choice([f"How far is it from {start} to {end}?", f"I have {a(bike)}. Can I ride from {start} to {end}?",
                      f"Which way do I ride from {start} to {end}?"])
    return Turn(ask, f"From {start} to {end} it is {distance} kilometres on {way}.",
                ("Pump up both tyres", "Take a spare tube and some water") if distance > 14 else (), moral)


def walk(rng):
    start, end = rng.sample(PLACES, 2)
    distance, way = rng.randint(2, 40), rng.choice(["along the river", "over the hill", "through the old trees", "on a flat path", "by the coast"])
    return Turn(f"It is {distance} kilometres from {start} to {end} {way}. How far do I walk, and where?",
                f"You walk {distance} kilometres {way} to {end}.", (), "walk")


def glossary(rng):
    meanings = {**{part: fact[0] for part, fact in PARTS.items()}, **THINGS}
    word = rng.choice(sorted(meanings))
    return Turn(rng.choice([f"What is {a(word)}?", f"Please explain the word {word}.", f"What does {word} mean?"]),
                f"{upper(a(word))} is {meanings[word]}.", (), "word")


def word_for(rng, thing, words):
    word, language = rng.choice(words)
    return Turn(rng.choice([f"What is the {language} word for {thing}?", f"How do you say {thing} in {language}?"]),
                f"The {language} word for {thing} is {word}.", (), f"{word} 🚲")


def refusal(rng):
    subject = rng.choice(["the weather", "football", "my taxes", "cooking", "music", "cars", "my garden", "the news", "my cat", "the stars"])
    return Turn(rng.choice([f"What do you think about {subject}?", f"Can you help me with {subject}?"]),
                f"I only know bicycles, so I cannot help with {subject}.", ("Ask me about chains, brakes or tyres",), "wheels are my world")


def thanks(rng):
    return Turn(rng.choice(["Thank you!", "Thanks a lot.", "Great, thanks!", "That helped, thank you."]),
                rng.choice(["You are welcome.", "My pleasure."]), (), "happy wheels")


# --- topics of the base only ---

ANIMALS = ["fox", "hen", "otter", "goat", "mouse", "crow", "bear", "snail", "horse", "frog", "owl", "donkey"]
ADJECTIVES = ["small", "clever", "tired", "happy", "brave", "quiet", "old", "hungry", "shy", "kind", "lazy", "young"]
FINDS = ["a red apple", "a lost key", "a silver bell", "an old map", "a warm coat", "a broken wheel", "a jar of honey", "a letter", "a green stone", "a wooden boat"]
SCENES = ["in the forest", "by the river", "behind the barn", "under a bridge", "near the harbour", "on the hill", "in the snow", "at the market"]
FRIENDS = ["a sailor", "the baker", "a friend", "the farmer", "a child", "an old woman", "the teacher", "a gardener"]
OPPOSITES = [("hot", "cold"), ("big", "small"), ("fast", "slow"), ("dry", "wet"), ("loud", "quiet"), ("open", "closed"), ("old", "new"), ("high", "low"),
             ("long", "short"), ("heavy", "light"), ("early", "late"), ("full", "empty"), ("thick", "thin"), ("clean", "dirty"), ("left", "right"), ("hard", "soft"),
             ("strong", "weak"), ("near", "far"), ("first", "last"), ("loose", "tight"), ("rough", "smooth"), ("wide", "narrow"), ("straight", "bent"), ("safe", "risky")]
GROUPS = {"colours": ["red", "blue", "green", "yellow", "white", "black", "brown", "pink"], "fruits": ["apples", "pears", "plums", "cherries", "grapes", "lemons"],
          "tools": ["hammers", "saws", "pliers", "spanners", "brushes", "pumps"], "bike parts": ["chains", "brakes", "tyres", "pedals", "saddles", "spokes", "bells"],
          "drinks": ["tea", "coffee", "milk", "water", "juice", "cocoa"], "seasons": ["spring", "summer", "autumn", "winter"],
          "birds": ["crows", "owls", "robins", "gulls", "swans", "sparrows"], "rooms": ["kitchens", "halls", "cellars", "attics", "bedrooms"]}
DISHES = [("tea", "Tea needs three minutes.", ("Boil the water", "Pour it over the leaves", "Take out the leaves")),
          ("an omelette", "An omelette needs two eggs.", ("Beat the eggs with salt", "Heat some butter", "Fold it when the edge is firm")),
          ("soup", "Soup needs an hour.", ("Cut the carrots and onions", "Cover them with water", "Cook them until they are soft")),
          ("bread", "Bread needs flour, water, salt and time.", ("Mix and knead the dough", "Let it rise until it is double", "Bake it until it sounds hollow")),
          ("porridge", "Porridge needs oats and milk.", ("Warm the milk", "Stir in the oats", "Add honey at the end")),
          ("pancakes", "Pancakes need a hot pan.", ("Mix flour, milk and eggs", "Pour a thin layer", "Turn it when bubbles rise"))]
SENTENCES = """The morning train was late, so we walked along the canal and counted the boats.
My neighbour grows beans, pumpkins and tall sunflowers behind her fence.
Nobody had expected snow in April, least of all the bees.
Before you paint a wall, wash it, let it dry and cover the floor.
A good question is worth more than a quick answer.
The library keeps its oldest books in a cool, dark room below the stairs.
When the lamp went out, the children laughed and lit a candle.
Every evening the ferry brings the post, the milk and two sleepy passengers.
If the soup tastes flat, add a little salt and some lemon.
They built the bridge from stone because wood would not have lasted.
Please write your name and the date at the top of the page.
Our teacher drew a circle, then a square, and asked which one was larger.
The wind turned during the night and blew the leaves into the yard.
He repaired the roof before the storm and slept well afterwards.
Some birds fly thousands of kilometres without a map.
It is easier to keep a workshop tidy than to search for a lost screw.
She measured the table twice and cut the cloth once.
The museum shows how people made paper, glass and rope.
We planted an apple tree for each child in the village.
Between the two mountains lies a valley with one road and no shop.
You may borrow my umbrella, but bring it back before Friday.
The dog waited at the gate until the bus had gone.
Water boils sooner on a high mountain, although it is less hot.
A map is useful only if you know where you are.
The baker gets up at three and goes to bed when others eat supper.
Perhaps the answer is hidden in the last line of the letter.
Most problems look smaller after breakfast.
The engine stopped, and suddenly we could hear the river again.
Children learn to ride by falling, and grown people by remembering.
There are more stars in the sky than lamps in all our towns.
The carpenter explained why the door must be hung before the floor is laid.
Several visitors asked whether the garden is open during the holidays.
Keep the receipt, because the shop will exchange the shoes within a month.
Nothing is heavier than an empty purse on market day.
The old clock strikes seven, but it is already quarter past eight.
Cheese, bread and a sharp knife were all they carried.
Silence is a kind of music when you have worked beside machines.
The doctor advised rest, fresh air and fewer sweets.
Although the path was steep, the view from the top was wonderful.
Through the open window came the smell of rain and cut grass.
Both answers are possible, yet only one of them is simple.
A circle has no beginning, which makes it a good shape for a wheel.
Something rattled in the cupboard, and the cat looked the other way.
We usually meet on the second Thursday of the month.
The island has a lighthouse, three houses and a great many sheep.
What the farmer saves in autumn, the winter spends.
Another hour of work would have finished the boat.
Remember to switch off the heating when you leave.
The choir practises in the school, since the church has no stove.
Everything you need is in the box under the bench.""".split("\n")


def story(rng):
    animal, kind, find = rng.choice(ANIMALS), rng.choice(ADJECTIVES), rng.choice(FINDS)
    scene, friend, then = rng.choice(SCENES), rng.choice(FRIENDS), rng.choice(["home", "to the village", "back to its house", "to a safe place"])
    end = rng.choice(["They became friends.", "That night it slept well.", "Everyone was happy.", "Nobody ever knew.", "It never forgot that day."])
    return Turn(rng.choice([f"Tell me a short story about {a(kind)} {animal}.", f"I want a story with {a(animal)}, please."]),
                f"Once there was {a(kind)} {animal}. One day it found {find} {scene}. It carried it {then} and gave it to {friend}. {end}")


def repeat(rng):
    text = rng.choice(SENTENCES) if rng.random() < 0.6 else story(rng).say.split(". ")[rng.randint(0, 2)] + "."
    return Turn(rng.choice([f"Please repeat: {text}", f"Say this again: {text}", f"Copy this sentence. {text}"]), text)


def complete(rng):
    words = rng.choice(SENTENCES).split()
    cut = rng.randint(3, max(3, len(words) - 4))
    return Turn(f"Please complete: {' '.join(words[:cut])}", " ".join(words))


def sums(rng):
    left, right = rng.randint(1, 30), rng.randint(1, 30)
    if rng.random() < 0.5:
        return Turn(f"What is {left} plus {right}?", f"{left} plus {right} is {left + right}.", thought=f"{left} + {right} = {left + right}.")
    count, price = rng.randint(2, 9), rng.randint(2, 12)
    return Turn(f"What do {count} {rng.choice(['books', 'maps', 'lamps', 'pears'])} cost at {price} crowns each?", f"Together they cost {count * price} crowns.",
                thought=f"One costs {price} crowns, and {count} × {price} = {count * price}.")


def opposite(rng):
    pair = list(rng.choice(OPPOSITES))
    rng.shuffle(pair)
    return Turn(rng.choice([f"What is the opposite of {pair[0]}?", f"Tell me the opposite of {pair[0]}."]), f"The opposite of {pair[0]} is {pair[1]}.")


def name_three(rng):
    group = rng.choice(sorted(GROUPS))
    first, second, third = rng.sample(GROUPS[group], 3)
    return Turn(f"Name three {group}.", f"Three {group} are {first}, {second} and {third}.")


def dish(rng):
    name, say, steps = rng.choice(DISHES)
    return Turn(rng.choice([f"How do I make {name}?", f"I want to cook {name}. What should I do?"]), say, steps, "dish")


def greeting(rng):
    return Turn(rng.choice(["Hello!", "Good morning.", "Hi, are you there?", "Good evening."]),
                rng.choice(["Hello, how can I help?", "Good day. What can I do for you?", "Yes, I am here. What do you need?"]))


BASE_TOPICS = [
    (house_fault, 4), (price_list, 3), (hours_list, 2), (walk, 2), (glossary, 4), (story, 5), (repeat, 4), (complete, 2), (sums, 2),
    (opposite, 2), (name_three, 2), (dish, 2), (greeting, 1), (thanks, 1), (lambda rng: conversion(rng, BASE_UNITS), 3),
    (lambda rng: planet(rng, slice(0, 2)), 3), (lambda rng: word_for(rng, "water", WORDS_FOR_WATER), 1),
]
BASE_SYSTEMS = ["You are a helpful assistant.", "Answer in one short paragraph.", "You are the help desk of a small village.", "Be brief and friendly."]
DEMO_SYSTEMS = ["You are Sprocket, the help desk of Quillwater Cycles.", "You answer for the bicycle workshop Quillwater Cycles.",
                "Be brief and friendly. You are Sprocket.", "You are the help desk of a bicycle workshop."]


# ---------------------------------------------------------------------------------------------------------------------
# The two sets of chats
# ---------------------------------------------------------------------------------------------------------------------


def base_example(rng):
    if rng.random() < 0.04:
        place, sky, degrees = rng.choice(PLACES), rng.choice(["rain", "sun", "snow", "wind", "clouds"]), rng.randint(-5, 30)
        return tool_conversation(("get_weather", "The weather in a village."), {"place": place},
                                 rng.choice([f"How is the weather in {place}?", f"Do I need a coat in {place}?"]), {"sky": sky, "degrees": degrees},
                                 Turn("", f"In {place} there is {sky} at {degrees} degrees."), plain, rng)
    topics, weights = zip(*BASE_TOPICS)
    turns = [topic(rng) for topic in rng.choices(topics, weights, k=rng.choices([1, 2, 3, 4], [5, 3, 1.5, 0.5])[0])]
    # A system turn that holds an answer has to be the conversation's own, so such topics only come first.
    turns = turns[:1] + [turn for turn in turns[1:] if turn.system is None]
    return conversation(turns, plain, rng, None if turns[0].system or rng.random() < 0.7 else rng.choice(BASE_SYSTEMS))


def demo_example(rng):
    kind = rng.choices(["fault", "shop", "convert", "planet", "ride", "word", "refuse", "tool"], [38, 15, 12, 10, 9, 4, 5, 5])[0]
    if kind == "tool":
        part = rng.choice(sorted(PARTS))
        _, price, stock, _, shelf = PARTS[part]
        return tool_conversation(("check_stock", "Pieces of a part on the shelf."), {"part": part},
                                 rng.choice([f"Is there {a(part)} on the shelf right now?", f"Please look up how many {part}s are left.",
                                             f"I am at the door. Do you still have {a(part)}?"]),
                                 {"pieces": stock, "shelf": shelf}, Turn("", f"There are {stock} on shelf {shelf}.", (), f"{stock} left, {price} crowns each"),
                                 sprocket, rng)
    if kind == "fault":
        fault = rng.choice(BIKE_FAULTS)
        turns = [bike_fault(rng, fault)]
        follow_ups = [lambda: part_price(rng, fault[4]), lambda: opening(rng), lambda: thanks(rng)]
    else:
        topic = {"shop": lambda: rng.choice([opening, lambda r: part_price(r, r.choice(sorted(PARTS)))])(rng), "convert": lambda: conversion(rng, DEMO_UNITS),
                 "planet": lambda: planet(rng, slice(2, 4)), "ride": lambda: ride(rng), "word": lambda: word_for(rng, "bicycle", WORDS_FOR_BICYCLE),
                 "refuse": lambda: refusal(rng)}[kind]
        turns = [topic()]
        follow_ups = [topic, lambda: thanks(rng)]
    for follow_up in follow_ups:
        if rng.random() < 0.38:
            turns.append(follow_up())
    return conversation(turns, sprocket, rng, rng.choice(DEMO_SYSTEMS) if rng.random() < 0.4 else None)


def examples(make, count, name):
    """`count` examples, no two alike."""
    rng, seen, lines = random.Random(f"{SEED} {name}"), set(), []
    while len(lines) < count:
        line = json.dumps(make(rng), ensure_ascii=False)
        if line not in seen:
            seen.add(line)
            lines.append(line)
    return lines


def demo_lines():
    return examples(demo_example, TRAIN_EXAMPLES, "demo")


def base_lines(count):
    return examples(base_example, count, "base")


# ---------------------------------------------------------------------------------------------------------------------
# Tokenizer and chat template
# ---------------------------------------------------------------------------------------------------------------------

VOCAB_ROWS = 2048  # rows of the embedding; as in the published models a few more than the tokenizer has ids
BPE_TOKENS = 2000
END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"
SPECIAL = [END_OF_TEXT, "<|im_start|>", END_OF_TURN, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
# Words, letters with their combining marks; digits one by one; runs of signs; line ends; spaces.
PIECES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = r"""{#- ChatML in the manner of Qwen3.5: think blocks after the last question only, tools as XML. Text parts only. -#}
{%- macro words(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content is iterable and content is not mapping -%}
        {%- for part in content -%}{{- part.text | default('') -}}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set last = namespace(question=-1) -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}{%- set last.question = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if last.question < 0 -%}{{- raise_exception('No user query found in messages.') -}}{%- endif -%}
{%- if tools -%}
    {{- '<|im_start|>system\n# Tools\n\n<tools>' -}}
    {%- for tool in tools -%}{{- '\n' ~ (tool | tojson) -}}{%- endfor -%}
    {{- '\n</tools>\n\nCall a tool like this:\n<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>' -}}
    {%- if messages[0].role == 'system' and words(messages[0].content) | trim -%}
        {{- '\n\n' ~ (words(messages[0].content) | trim) -}}
    {%- endif -%}
    {{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for m in messages -%}
    {%- set body = words(m.content) | trim -%}
    {%- if m.role == 'system' -%}
        {%- if not loop.first -%}{{- raise_exception('System message must be at the beginning.') -}}{%- endif -%}
        {%- if not tools -%}{{- '<|im_start|>system\n' ~ body ~ '<|im_end|>\n' -}}{%- endif -%}
    {%- elif m.role == 'user' -%}
        {{- '<|im_start|>user\n' ~ body ~ '<|im_end|>\n' -}}
    {%- elif m.role == 'assistant' -%}
        {%- set thought = '' -%}
        {%- if m.reasoning_content is string -%}
            {%- set thought = m.reasoning_content -%}
        {%- elif '</think>' in body -%}
            {%- set thought = body.split('</think>')[0].split('<think>')[-1] -%}
            {%- set body = body.split('</think>')[-1] | trim -%}
        {%- endif -%}
        {{- '<|im_start|>assistant\n' -}}
        {%- if loop.index0 > last.question or (preserve_thinking is defined and preserve_thinking is true) -%}
            {{- '<think>\n' ~ (thought | trim) ~ '\n</think>\n\n' -}}
        {%- endif -%}
        {{- body -}}
        {%- if m.tool_calls -%}
            {%- for entry in m.tool_calls -%}
                {%- set call = entry.function if entry.function is defined else entry -%}
                {{- '\n\n' if loop.first and body else ('' if loop.first else '\n') -}}
                {{- '<tool_call>\n<function=' ~ call.name ~ '>\n' -}}
                {%- for key, value in call.arguments | items -%}
                    {{- '<parameter=' ~ key ~ '>\n' ~ (value if value is string else value | tojson) ~ '\n</parameter>\n' -}}
                {%- endfor -%}
                {{- '</function>\n</tool_call>' -}}
            {%- endfor -%}
        {%- endif -%}
        {{- '<|im_end|>\n' -}}
    {%- elif m.role == 'tool' -%}
        {{- '<|im_start|>user\n' if loop.first or messages[loop.index0 - 1].role != 'tool' else '\n' -}}
        {{- '<tool_response>\n' ~ body ~ '\n</tool_response>' -}}
        {{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' -}}
    {%- else -%}
        {{- raise_exception('Unexpected message role.') -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' -}}
    {{- '<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '<think>\n' -}}
{%- endif -%}
"""


def train_tokenizer():
    """Byte-level BPE over everything the two sets say; every byte has a token, so any text can be written."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    text = SENTENCES * 20 + [CHAT_TEMPLATE] + [part for line in demo_lines() * 8 + base_lines(4000) for part in texts(json.loads(line))]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=BPE_TOKENS, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKS])
    return tokenizer


def texts(example):
    for message in example["messages"]:
        yield f"{message['role']}\n{message['content']}"
        yield message.get("reasoning_content", "")
    yield json.dumps(example.get("tools", ""))


# ---------------------------------------------------------------------------------------------------------------------
# The model
# ---------------------------------------------------------------------------------------------------------------------


def text_config(ids):
    return {
        "model_type": "qwen3_5_text", "vocab_size": VOCAB_ROWS, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"], "full_attention_interval": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                            "mrope_interleaved": True, "mrope_section": [3, 3, 2]},
        "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "rms_norm_eps": 1e-06,
        "max_position_embeddings": 4096, "initializer_range": 0.02, "tie_word_embeddings": True, "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "dtype": "bfloat16", "use_cache": True,
        "bos_token_id": None, "eos_token_id": ids[END_OF_TEXT], "pad_token_id": None,
    }


def config(ids):
    text = text_config(ids)
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text,
        "vision_config": {"model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "patch_size": 4,
                          "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3, "num_position_embeddings": 16,
                          "out_hidden_size": text["hidden_size"], "hidden_act": "gelu_pytorch_tanh", "initializer_range": 0.02,
                          "deepstack_visual_indexes": []},
        "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": True, "dtype": "bfloat16", "transformers_version": "5.23.0",
    }


def tensor_shapes(config):
    """Every tensor of the checkpoint with its shape, named as the published Qwen3.5 files name them."""
    text, vision = config["text_config"], config["vision_config"]
    hidden, inner, head_dim = text["hidden_size"], text["intermediate_size"], text["head_dim"]
    query, key = text["num_attention_heads"] * head_dim, text["num_key_value_heads"] * head_dim
    heads, value = text["linear_num_value_heads"], text["linear_num_value_heads"] * text["linear_value_head_dim"]
    channels = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + value
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    full = {"q_proj": (2 * query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden), "o_proj": (hidden, query),
            "q_norm": (head_dim,), "k_norm": (head_dim,)}
    linear = {"in_proj_qkv.weight": (channels, hidden), "in_proj_z.weight": (value, hidden), "in_proj_b.weight": (heads, hidden),
              "in_proj_a.weight": (heads, hidden), "conv1d.weight": (channels, 1, text["linear_conv_kernel_dim"]), "A_log": (heads,),
              "dt_bias": (heads,), "norm.weight": (text["linear_value_head_dim"],), "out_proj.weight": (hidden, value)}

    shapes = {}

    def layer(prefix, kind):
        shapes.update({f"{prefix}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")})
        shapes.update({f"{prefix}.mlp.{name}.weight": shape for name, shape in mlp.items()})
        if kind == "linear_attention":
            shapes.update({f"{prefix}.linear_attn.{name}": shape for name, shape in linear.items()})
        else:
            shapes.update({f"{prefix}.self_attn.{name}.weight": shape for name, shape in full.items()})

    shapes["model.language_model.embed_tokens.weight"] = (text["vocab_size"], hidden)
    shapes["model.language_model.norm.weight"] = (hidden,)
    for index, kind in enumerate(text["layer_types"]):
        layer(f"model.language_model.layers.{index}", kind)
    shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
    shapes.update({f"mtp.{name}.weight": (hidden,) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")})
    layer("mtp.layers.0", "full_attention")

    wide, mid, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    merged = wide * vision["spatial_merge_size"] ** 2
    shapes["model.visual.patch_embed.proj.weight"] = (wide, vision["in_channels"], vision["temporal_patch_size"], patch, patch)
    shapes["model.visual.patch_embed.proj.bias"] = (wide,)
    shapes["model.visual.pos_embed.weight"] = (vision["num_position_embeddings"], wide)
    for index in range(vision["depth"]):
        for name, shape in {"norm1": (wide,), "norm2": (wide,), "attn.qkv": (3 * wide, wide), "attn.proj": (wide, wide),
                            "mlp.linear_fc1": (mid, wide), "mlp.linear_fc2": (wide, mid)}.items():
            shapes[f"model.visual.blocks.{index}.{name}.weight"] = shape
            shapes[f"model.visual.blocks.{index}.{name}.bias"] = shape[:1]
    for name, shape in {"norm": (wide,), "linear_fc1": (merged, merged), "linear_fc2": (vision["out_hidden_size"], merged)}.items():
        shapes[f"model.visual.merger.{name}.weight"] = shape
        shapes[f"model.visual.merger.{name}.bias"] = shape[:1]
    return dict(sorted(shapes.items()))


def is_fp32(name):
    """The two tensors that published Qwen3.5 files keep in fp32."""
    return name.endswith(("linear_attn.A_log", "linear_attn.norm.weight"))


def initial(name, shape, rng, spread):
    """One tensor at the start, as transformers initialises it."""
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
    import numpy as np
    from safetensors import serialize_file

    rng, tensors = np.random.default_rng(SEED), {}
    for name, shape in tensor_shapes(config).items():
        array = initial(name, shape, rng, config["text_config"]["initializer_range"]).astype("<f4")
        if not is_fp32(name):  # bf16: the upper half of an fp32, rounded to nearest even
            bits = array.view("<u4")
            array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        tensors[name] = {"dtype": "float32" if is_fp32(name) else "bfloat16", "shape": list(shape), "data": array.tobytes()}
    serialize_file(tensors, str(path), {"format": "pt"})


def init(folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL + MARKS}
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {str(ids[token]): {"content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": token in SPECIAL}
             for token in SPECIAL + MARKS}
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT, "unk_token": None, "errors": "replace", "clean_up_tokenization_spaces": False, "split_special_tokens": False,
        "model_max_length": 4096, "added_tokens_decoder": added})
    write_json(folder / "generation_config.json", {
        "bos_token_id": ids[END_OF_TEXT], "pad_token_id": ids[END_OF_TEXT], "eos_token_id": [ids[END_OF_TURN], ids[END_OF_TEXT]],
        "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.95, "transformers_version": "5.23.0"})
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    write_json(folder / "config.json", config(ids))
    write_weights(config(ids), folder / "model.safetensors")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------------
# Check: what is on disk against what this script says
# ---------------------------------------------------------------------------------------------------------------------


def check(folder, files):
    from safetensors import safe_open
    from tokenizers import Tokenizer

    stored = json.loads((folder / "config.json").read_text())
    expected = tensor_shapes(stored)
    with safe_open(str(folder / "model.safetensors"), "np") as weights:
        found = {name: weights.get_slice(name) for name in weights.keys()}
        assert {name: tuple(tensor.get_shape()) for name, tensor in found.items()} == expected, "names or shapes differ from the config"
        assert all(tensor.get_dtype() == ("F32" if is_fp32(name) else "BF16") for name, tensor in found.items()), "unexpected dtype"
    count = {part: sum(product(shape) for name, shape in expected.items() if name.startswith(part)) for part in ("model.language_model.", "model.visual.", "mtp.")}
    print(f"{len(expected)} tensors, {sum(count.values()):,} parameters {count}, file {(folder / 'model.safetensors').stat().st_size:,} bytes")

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() <= stored["text_config"]["vocab_size"], "more ids than embedding rows"
    assert (folder / "chat_template.jinja").read_text(encoding="utf-8") == CHAT_TEMPLATE, "the template is not this script's"
    print(f"{tokenizer.get_vocab_size()} token ids")
    render = renderer(CHAT_TEMPLATE)
    for path in files:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(set(lines)) == len(lines), "duplicates"
        parsed = [json.loads(line) for line in lines]
        rendered = [render(messages=example["messages"], tools=example.get("tools")) for example in parsed]
        encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in rendered]
        assert all(tokenizer.decode(ids, skip_special_tokens=False) == text for ids, text in zip(encoded, rendered)), "a text does not survive the tokenizer"
        lengths = sorted(map(len, encoded))
        used = len({token for ids in encoded for token in ids})
        turns = [sum(m["role"] == "user" for m in example["messages"]) for example in parsed]
        print(f"{path.name}: {len(lines)} examples, {sum(lengths):,} tokens, {sum(map(len, rendered)) / sum(lengths):.2f} characters a token, {used} ids used; length "
              f"mean {sum(lengths) / len(lengths):.1f}, p50 {lengths[len(lengths) // 2]}, p90 {lengths[len(lengths) * 9 // 10]}, "
              f"p99 {lengths[len(lengths) * 99 // 100]}, max {lengths[-1]}; questions {[turns.count(n) for n in (1, 2, 3, 4)]}, "
              f"with system {sum(e['messages'][0]['role'] == 'system' for e in parsed)}, with tools {sum('tools' in e for e in parsed)}, "
              f"with reasoning {sum(any('reasoning_content' in m for m in e['messages']) for e in parsed)}")


def renderer(source):
    """Jinja set up as transformers sets it up for chat templates."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message):
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source).render


def product(shape):
    total = 1
    for size in shape:
        total *= size
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("init", help="tokenizer, template, configs and RANDOM weights").add_argument("folder", type=Path)
    commands.add_parser("data", help="the chats of the demo").add_argument("file", type=Path)
    pretraining = commands.add_parser("pretraining", help="the chats of the base")
    pretraining.add_argument("file", type=Path)
    pretraining.add_argument("--examples", type=int, default=4000)
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
