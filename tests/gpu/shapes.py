"""The shapes of the five Qwen3.5 sizes, from the catalog, and the matrix products that training them takes.

A product is C[m, n] = A·B with inner size k. `layout` says how A and B lie in memory, row by row: `N` as in the formula (A [m, k],
B [k, n]), `T` transposed (A [k, m], B [n, k]). So with weights as [out, in] the forward pass is NT, dX is NN, dW is TN.
"""

import pathlib
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
PACK = 5376
RANK = 128
# Rows whose logits exist at once.
HEAD_ROWS = 1024

# Common to all sizes; the head of the catalog says so.
COMMON = {
    "vocab_size": 248_320,
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 262_144,
}


def catalog():
    """Size → the fields of its config."""
    places = [HERE / "catalog.toml", HERE.parent.parent / "presets" / "catalog.toml"]
    path = next(place for place in places if place.exists())
    shapes = tomllib.loads(path.read_text(encoding="utf-8"))["shape"]
    return {size: COMMON | fields for size, fields in shapes.items()}


def linears(config):
    """Groups of linears that read the same input: (in, {name: out})."""
    h, i = config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    heads = config["linear_num_value_heads"]
    return [
        (h, {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "in_proj_a": heads, "in_proj_b": heads}),
        (values, {"out_proj": h}),
        (h, {"q_proj": 2 * q, "k_proj": kv, "v_proj": kv}),
        (q, {"o_proj": h}),
        (h, {"gate_proj": i, "up_proj": i}),
        (i, {"down_proj": h}),
    ]


# As narrow as this a product is bound by reading its input; the kernels take such linears together with others.
NARROW = 64


def products(rows=PACK, rank=RANK):
    """Every different product, smallest size first: dicts of name, m, n, k, layout."""
    found = {}

    def add(name, m, n, k, layout):
        found.setdefault((m, n, k, layout), name)

    for size, config in catalog().items():
        for width, group in linears(config):
            wide = {name: out for name, out in group.items() if out > NARROW}
            for name, out in wide.items():
                add(f"{size} {name} forward", rows, out, width, "NT")
                add(f"{size} {name} dX", rows, width, out, "NN")
                add(f"{size} {name} dW", out, width, rows, "TN")
                add(f"{size} {name} LoRA B", rows, out, rank, "NT")
                add(f"{size} {name} LoRA dU", rows, rank, out, "NN")
                add(f"{size} {name} LoRA dB", out, rank, rows, "TN")
            together = rank * len(group)
            add(f"{size} {'+'.join(group)} LoRA A", rows, together, width, "NT")
            add(f"{size} {'+'.join(group)} LoRA dA", together, width, rows, "TN")
        h, v = config["hidden_size"], config["vocab_size"]
        add(f"{size} head forward", HEAD_ROWS, v, h, "NT")
        add(f"{size} head dX", HEAD_ROWS, h, v, "NN")
        add(f"{size} head dW", v, h, HEAD_ROWS, "TN")
    return [
        {"name": name, "m": m, "n": n, "k": k, "layout": layout} for (m, n, k, layout), name in found.items()
    ]


def training_flops(config, method, rows=PACK, rank=RANK):
    """FLOPs of training one token: the count of src/plan/cost.rs, without recompute, every row through the head, one document."""
    layers = config["num_hidden_layers"]
    attention = layers // 4
    weights = adapters = 0
    for place, (width, group) in enumerate(linears(config)):
        times = (layers - attention, layers - attention, attention, attention, layers, layers)[place]
        weights += times * width * sum(group.values())
        adapters += times * sum(width + out for out in group.values())
    adapters *= rank if method == "lora" else 0
    context = 2.0 * config["num_attention_heads"] * config["head_dim"] * attention * rows
    dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
    delta = (layers - attention) * config["linear_num_value_heads"] * (64.0 * (6 * dk + 4 * dv) + 6.0 * dk * dv)
    dense, head = (2.0, 4.0) if method == "lora" else (4.0, 6.0)
    forward = 2.0 * weights + 2.0 * adapters + context + delta
    backward = dense * weights + 4.0 * adapters + 2.5 * context + 2.6 * delta
    return forward + backward + head * config["vocab_size"] * config["hidden_size"]
