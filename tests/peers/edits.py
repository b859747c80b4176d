"""ROME, MEMIT and UltraEdit by numpy alone, on the weights of a small Qwen3: what src/edit is held against.

Nothing is shared with the Rust code but the weights and the constants below: the forward pass is in double precision, gradients are central
differences, and the closed forms are those of the papers (ROME's equation 2, AlphaEdit's equation 11 with its inverse of the size of the
layer), not the rewritten ones of src/edit/update.rs.

    python tests/peers/edits.py             compares with tests/fixtures/edits/qwen3.safetensors
    python tests/peers/edits.py --write     writes that file

Needs numpy 2. Takes about a minute.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2] / "tests/fixtures"
MODEL, GOLDEN = ROOT / "others/qwen3", ROOT / "edits/qwen3.safetensors"
LAYER = 0

# The constants of src/edit: update.rs and value.rs.
RIDGE, SOFT = 1e-3, 1e-2
# Ordinary text uses nearly all directions of this small model, so the test asks for more than the 1e-2 of update.rs.
UNUSED = 0.3
# Of ultraedit.rs.
RATES, ULTRAEDIT_ENOUGH = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0], 0.1
STEPS, ENOUGH, RATE, CLAMP, DECAY, KL_FACTOR = 60, 0.02, 0.5, 4.0, 0.05, 0.0625
SHORT, HALVINGS = 0.05, 5


def ids(start, step, count):
    return [(start + step * i) % 250 + 3 for i in range(count)]


# The same in src/edit/tests/peer.rs.
TEXT = [ids(17 * s, 7 + 2 * s, 48) for s in range(12)]
PREFIXES = [[], TEXT[0][:10], TEXT[1][:10]]
FACTS = [
    {"prompt": ids(5, 3, 6), "last": 3, "target": ids(90, 1, 2), "subject": ids(5, 3, 4)},
    {"prompt": ids(40, 9, 7), "last": 6, "target": ids(200, 5, 1), "subject": None},
]


def read(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    body = raw[8 + size :]
    kinds = {"F32": np.float32, "BF16": None}
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        start, end = info["data_offsets"]
        numbers = np.frombuffer(body[start:end], kinds[info["dtype"]])
        tensors[name] = numbers.reshape(info["shape"]).astype(np.float64)
    return tensors


def write(path, tensors):
    header, body = {}, b""
    for name in sorted(tensors):
        numbers = np.ascontiguousarray(tensors[name], np.float32).tobytes()
        shape = list(tensors[name].shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(numbers)]}
        body += numbers
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


class Qwen3:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.w = {name.removeprefix("model."): numbers for name, numbers in read(folder / "model.safetensors").items()}

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.w[name]

    def rope(self, x):
        length, _, width = x.shape
        angles = np.arange(length)[:, None] / self.config["rope_theta"] ** (np.arange(0, width, 2) / width)
        cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
        first, second = x[..., : width // 2], x[..., width // 2 :]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def attention(self, x, at):
        c = self.config
        length, width = len(x), c["head_dim"]
        q, k, v = (
            (x @ self.w[f"{at}.{part}_proj.weight"].T).reshape(length, -1, width) for part in ("q", "k", "v")
        )
        q = self.rope(self.norm(q, f"{at}.q_norm.weight"))
        k = self.rope(self.norm(k, f"{at}.k_norm.weight"))
        group = c["num_attention_heads"] // c["num_key_value_heads"]
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(width)
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hts,shd->thd", weights, v).reshape(length, -1) @ self.w[f"{at}.o_proj.weight"].T

    def run(self, tokens, row=None, delta=None, layer=LAYER):
        """Returns the log-probabilities after each token, keys and values of `layer`, and the residual stream behind it. `delta` is added
        to the values at `row`."""
        x = self.w["embed_tokens.weight"][tokens]
        key = value = stream = None
        for i in range(self.config["num_hidden_layers"]):
            at = f"layers.{i}"
            x = x + self.attention(self.norm(x, f"{at}.input_layernorm.weight"), f"{at}.self_attn")
            y = self.norm(x, f"{at}.post_attention_layernorm.weight")
            gate, up = y @ self.w[f"{at}.mlp.gate_proj.weight"].T, y @ self.w[f"{at}.mlp.up_proj.weight"].T
            hidden = gate / (1 + np.exp(-gate)) * up
            out = hidden @ self.w[f"{at}.mlp.down_proj.weight"].T
            if i == layer:
                key, value = hidden, out.copy()
                if delta is not None:
                    out[row] += delta
                stream = x + out
            x = x + out
        logits = self.norm(x, "norm.weight") @ self.w["embed_tokens.weight"].T
        top = logits.max(-1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True)), key, value, stream


def in_contexts(fact):
    """Returns the fact behind each prefix, and the row of its subject's last token."""
    return [(prefix + fact["prompt"] + fact["target"], len(prefix) + fact["last"]) for prefix in PREFIXES]


def mean_of(model, fact, layer, which):
    """Returns the mean key (1), value (2) or residual stream (3) of a fact over the contexts."""
    return np.mean([model.run(tokens, layer=layer)[which][row] for tokens, row in in_contexts(fact)], 0)


def key_and_delta(model, fact, layer=LAYER):
    target = fact["target"]
    sequences = in_contexts(fact)
    runs = [model.run(tokens, layer=layer) for tokens, _ in sequences]
    key = np.mean([run[1][row] for run, (_, row) in zip(runs, sequences)], 0)
    before = np.mean([run[2][row] for run, (_, row) in zip(runs, sequences)], 0)
    subject = fact["subject"]
    unchanged = model.run(subject)[0][-1] if subject else None

    def losses(delta):
        target_loss = 0.0
        for tokens, row in sequences:
            says = model.run(tokens, row, delta, layer)[0]
            start = len(tokens) - len(target)
            target_loss -= np.mean([says[start + i - 1, token] for i, token in enumerate(target)])
        target_loss /= len(sequences)
        total = target_loss + DECAY * (delta @ delta) / square
        if subject:
            says = model.run(subject, len(subject) - 1, delta, layer)[0][-1]
            total += KL_FACTOR * np.sum(np.exp(says) * (says - unchanged))
        return target_loss, total

    square = max(before @ before, 1e-6)
    delta, mean, variance = np.zeros_like(before), np.zeros_like(before), np.zeros_like(before)
    for step in range(1, STEPS + 2):
        loss = losses(delta)[0]
        if loss < ENOUGH or step == STEPS + 1:
            return key, *shortened(delta, loss, losses)
        gradient, small = np.zeros_like(delta), 1e-5 * np.sqrt(square)
        for i in range(len(delta)):
            there, back = delta.copy(), delta.copy()
            there[i] += small
            back[i] -= small
            gradient[i] = (losses(there)[1] - losses(back)[1]) / (2 * small)
        mean += 0.1 * (gradient - mean)
        variance += 0.001 * (gradient**2 - variance)
        rate = RATE * np.sqrt(square / len(delta))
        delta = delta - rate * (mean / (1 - 0.9**step)) / (np.sqrt(variance / (1 - 0.999**step)) + 1e-8)
        length, most = np.linalg.norm(delta), CLAMP * np.sqrt(square)
        if length > most:
            delta *= most / length


def shortened(delta, loss, losses):
    """The shortest multiple of a change with which the target still has a loss of SHORT, by halving."""
    short, long = 0.0, 1.0
    for _ in range(HALVINGS if loss < SHORT else 0):
        middle = (short + long) / 2
        there = losses(middle * delta)[0]
        if there < SHORT:
            long, loss = middle, there
        else:
            short = middle
    return long * delta, loss


def normalised(vectors):
    """UltraEdit's normalisation for few places: the size of all numbers together."""
    return vectors / np.sqrt((vectors**2).mean())


def ultraedit(model, layers):
    """UltraEdit's equations 4 to 7, with gradients as central differences, and the smallest step of a few that is enough."""
    sequences = [(fact["prompt"] + fact["target"], len(fact["prompt"]), fact["target"]) for fact in FACTS]

    def loss_of(tokens, start, target, **change):
        says = model.run(tokens, **change)[0]
        return -sum(says[start + i - 1, token] for i, token in enumerate(target))

    steps = []
    for layer in layers:
        keys, gradients, outputs = [], [], []
        for tokens, start, target in sequences:
            _, key, value, _ = model.run(tokens, layer=layer)
            for row in range(start - 1, len(tokens) - 1):
                keys.append(key[row])
                outputs.append(value[row])
                gradient = np.zeros_like(value[row])
                for i in range(len(gradient)):
                    there = np.zeros_like(gradient)
                    there[i] = 1e-5
                    up = loss_of(tokens, start, target, row=row, delta=there, layer=layer)
                    down = loss_of(tokens, start, target, row=row, delta=-there, layer=layer)
                    gradient[i] = (up - down) / 2e-5
                gradients.append(gradient)
        keys, size = np.stack(keys), np.sqrt((np.stack(outputs) ** 2).mean())
        h, g = normalised(keys), normalised(np.stack(gradients))
        values = -size * (h**2).mean(1, keepdims=True) * g
        soft = SOFT * np.mean(np.diag(keys @ keys.T))
        inner = keys.T @ keys + soft * np.eye(keys.shape[1])
        steps.append(np.linalg.solve(inner, keys.T @ values).T)
    best = None
    for rate in RATES:
        for layer, step in zip(layers, steps):
            model.w[f"layers.{layer}.mlp.down_proj.weight"] += rate * step
        loss = sum(loss_of(*sequence) for sequence in sequences) / sum(len(target) for _, _, target in sequences)
        for layer, step in zip(layers, steps):
            model.w[f"layers.{layer}.mlp.down_proj.weight"] -= rate * step
        if best is None or loss < best[0]:
            best = (loss, rate)
        if loss < ULTRAEDIT_ENOUGH:
            break
    print(f"ultraedit: a step of {best[1]} leaves a loss of {best[0]:.4f}")
    return {f"ultraedit.{layer}": best[1] * step for layer, step in zip(layers, steps)}


def spread(model, layers):
    """MEMIT's algorithm 1: values at the last layer, and what the residual stream lacks of them spread over the layers. Returns the change of
    each layer, which the model has afterwards."""
    last = layers[-1]
    wanted = []
    for fact in FACTS:
        _, delta, loss = key_and_delta(model, fact, last)
        wanted.append(mean_of(model, fact, last, 3) + delta)
        print(f"memit over layers {layers}: the loss of the target is {loss:.4f}")
    covariances = {}
    for layer in layers:
        keys = np.concatenate([model.run(tokens, layer=layer)[1] for tokens in TEXT])
        covariances[layer] = keys.T @ keys / len(keys)
    found = {}
    for i, layer in enumerate(layers):
        k = np.stack([mean_of(model, fact, layer, 1) for fact in FACTS], 1)
        left = [z - mean_of(model, fact, last, 3) for z, fact in zip(wanted, FACTS)]
        r = np.stack(left, 1) / (len(layers) - i)
        covariance = covariances[layer]
        inverted = covariance + RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        soft = SOFT * np.mean(np.diag(k.T @ np.linalg.solve(inverted, k)))
        change = np.linalg.solve(soft * inverted + k @ k.T, k @ r.T).T
        model.w[f"layers.{layer}.mlp.down_proj.weight"] = model.w[f"layers.{layer}.mlp.down_proj.weight"] + change
        found[f"spread.{layer}"] = change
    return found


def compute():
    model = Qwen3(MODEL)
    keys = np.concatenate([model.run(tokens)[1] for tokens in TEXT])
    covariance = keys.T @ keys / len(keys)
    size = np.trace(covariance) / len(covariance)

    # ROME: the first fact alone, then the second in the changed model.
    weight = f"layers.{LAYER}.mlp.down_proj.weight"
    original, inverted = model.w[weight].copy(), covariance + RIDGE * size * np.eye(len(covariance))
    found = {}
    for number, fact in enumerate(FACTS):
        key, delta, loss = key_and_delta(model, fact)
        u = np.linalg.solve(inverted, key)
        model.w[weight] = model.w[weight] + np.outer(delta, u) / (u @ key)
        found |= {f"rome.key.{number}": key, f"rome.delta.{number}": delta}
        print(f"rome, fact {number}: the loss of the target is {loss:.4f}, |delta| = {np.linalg.norm(delta):.4f}")
    found["rome"] = model.w[weight] - original
    model.w[weight] = original

    # MEMIT and AlphaEdit: both at once, above the keys of an earlier patch.
    pairs = [key_and_delta(model, fact)[:2] for fact in FACTS]
    k, r = np.stack([key for key, _ in pairs], 1), np.stack([delta for _, delta in pairs], 1)
    earlier = keys[[5, 77]].T + 0.1 * k
    together = np.concatenate([k, earlier], 1)
    softness = SOFT * np.mean(np.diag(together.T @ np.linalg.solve(inverted, together)))
    inner = softness * inverted + together @ together.T
    found["memit"] = np.linalg.solve(inner, k @ r.T).T

    values, vectors = np.linalg.eigh(covariance)
    unused = vectors[:, values < UNUSED * size]
    project = unused @ unused.T
    alpha = SOFT * np.mean(np.diag(together.T @ project @ together))
    inner = earlier @ earlier.T @ project + k @ k.T @ project + alpha * np.eye(len(k))
    found["alphaedit"] = np.linalg.solve(inner.T, (r @ k.T @ project).T).T
    found["covariance"] = covariance
    found["earlier"] = earlier.T
    found["memit.deltas"] = r.T
    found["memit.keys"] = k.T
    found |= ultraedit(Qwen3(MODEL), [0, 1])
    found |= spread(Qwen3(MODEL), [0, 1])
    print(f"alphaedit: {unused.shape[1]} of {len(values)} directions are not used by the text")
    return found


def main():
    found = compute()
    if "--write" in sys.argv:
        write(GOLDEN, found)
        return
    golden = read(GOLDEN)
    worst = max(np.linalg.norm(found[name] - golden[name]) / np.linalg.norm(golden[name]) for name in golden)
    print(f"the largest relative distance from {GOLDEN.name} is {worst:.1e}")
    sys.exit(worst > 1e-5 or set(found) != set(golden))


main()
