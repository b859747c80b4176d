"""The sizes of the five Qwen3.5 models, and the matrix products that training them takes.

Both are in shapes.json, which a test of src/plan/products.rs writes from the program's own tables.

A product is C[m, n] = A·B with inner size k. `layout` says how A and B lie in memory, row by row: `N` as in the formula (A [m, k],
B [k, n]), `T` transposed (A [k, m], B [n, k]). So with weights as [out, in] the forward pass is NT, dX is NN, dW is TN.
"""

import json
import pathlib

SHAPES = json.loads((pathlib.Path(__file__).resolve().parent / "shapes.json").read_text(encoding="utf-8"))
# Tokens of a row, and the rank of the adapters.
PACK, RANK = SHAPES["pack"], SHAPES["rank"]


def sizes():
    """Size → the fields of its config, smallest size first."""
    return SHAPES["sizes"]


def products():
    """Every different product, smallest size first: dicts of name, m, n, k, layout."""
    return SHAPES["products"]
