"""Writes directions_cases.json: small sparse autoencoders, their features and what they decode, in double.

    python3 tests/models/directions_cases.py > tests/models/directions_cases.json

The definitions are those of SAELens (saes/sae.py and a file for each architecture). All weights are multiples of 1/16, so that
bf16 has them exactly.
"""

import json
import math
import random

WIDTH, FEATURES, ROWS = 6, 9, 3
draw = random.Random(50)


def numbers(*shape, most=32):
    if len(shape) > 1:
        return [numbers(*shape[1:], most=most) for _ in range(shape[0])]
    return [draw.randint(-most, most) / 16 for _ in range(shape[0])]


def mean(values):
    return sum(values) / len(values)


def normalized(row, how):
    """The row as the encoder reads it, and the shift and factor that take it back."""
    if how == "layer_norm":
        shift = mean(row)
        deviation = math.sqrt(sum((x - shift) ** 2 for x in row) / (len(row) - 1))
        return [(x - shift) / (deviation + 1e-5) for x in row], shift, deviation
    if how == "constant_norm_rescale":
        factor = math.sqrt(sum(x * x for x in row) / len(row))
        return [x / factor for x in row], 0.0, factor
    return row, 0.0, 1.0


def top(values, k):
    best = sorted(range(len(values)), key=lambda at: (-values[at], at))[:k]
    return [value if at in best else 0.0 for at, value in enumerate(values)]


def compute(architecture, tensors, rows, how, subtracts, k, rescaled):
    encoder, decoder, bias = tensors["W_enc"], tensors["W_dec"], tensors["b_dec"]
    norms = [math.sqrt(sum(x * x for x in row)) if rescaled else 1.0 for row in decoder]
    features, decoded = [], []
    for row in rows:
        x, shift, factor = normalized(row, how)
        x = [a - b * subtracts for a, b in zip(x, bias)]
        products = [sum(x[i] * encoder[i][f] for i in range(WIDTH)) for f in range(FEATURES)]
        if architecture == "gated":
            magnitudes = [p * math.exp(r) + b for p, r, b in zip(products, tensors["r_mag"], tensors["b_mag"])]
            found = [max(m, 0.0) * (p + g > 0) for p, g, m in zip(products, tensors["b_gate"], magnitudes)]
        else:
            before = [(p + b) * n for p, b, n in zip(products, tensors["b_enc"], norms)]
            found = [max(value, 0.0) for value in before]
            if architecture == "jumprelu":
                found = [value * (b > t) for value, b, t in zip(found, before, tensors["threshold"])]
            if architecture == "topk":
                found = [max(value, 0.0) for value in top(before, k)]
        features.append(found)
        out = [bias[i] + sum(found[f] / (norms[f] or 1.0) * decoder[f][i] for f in range(FEATURES)) for i in range(WIDTH)]
        decoded.append([value * factor + shift for value in out])
    return features, decoded, norms


def case(name, architecture, cfg, site="resid_pre", layer=1, how="none", subtracts=True, k=0, rescaled=False, dead=None):
    tensors = {"W_enc": numbers(WIDTH, FEATURES), "W_dec": numbers(FEATURES, WIDTH), "b_dec": numbers(WIDTH, most=8)}
    others = {"gated": ("b_gate", "r_mag", "b_mag"), "jumprelu": ("b_enc", "threshold")}
    for other in others.get(architecture, ("b_enc",)):
        tensors[other] = numbers(FEATURES, most=16)
    if architecture == "jumprelu":
        tensors["threshold"] = [8 * abs(value) for value in tensors["threshold"]]
    if dead is not None:
        tensors["W_dec"][dead] = [0.0] * WIDTH
        for row in tensors["W_enc"]:
            row[dead] *= 64
    rows = numbers(ROWS, WIDTH)
    features, decoded, norms = compute(architecture, tensors, rows, how, subtracts, k, rescaled)
    active = [sum(value > 0 for value in row) for row in features]
    assert 0 < sum(active) < ROWS * FEATURES, name
    feature, strength = 4, -2.5
    return {
        "name": name,
        "cfg": {"d_in": WIDTH, "d_sae": FEATURES, "dtype": "float32", "device": "cpu", **cfg},
        "tensors": tensors,
        "info": {"architecture": architecture, "site": site, "layer": layer, "width": WIDTH, "features": FEATURES},
        "rows": rows,
        "features": features,
        "decoded": decoded,
        "edit": {"feature": feature, "strength": strength, "value": [strength * x / norms[feature] for x in tensors["W_dec"][feature]]},
    }


def hook(name):
    return {"metadata": {"hook_name": name, "sae_lens_version": "6.11.0"}}


cases = [
    case("standard", "standard", {"architecture": "standard", "apply_b_dec_to_input": True, "normalize_activations": "none", **hook("blocks.1.hook_resid_pre")}),
    case(
        "standard of 2024",
        "standard",
        {"hook_point": "blocks.0.hook_resid_post", "hook_point_layer": 0, "activation_fn_str": "relu", "normalize_activations": False, "hook_point_head_index": None},
        site="resid_post",
        layer=0,
    ),
    case("jumprelu without the decoder's bias", "jumprelu", {"architecture": "jumprelu", "apply_b_dec_to_input": False, "hook_name": "blocks.1.hook_mlp_out", "hook_layer": 1}, site="mlp_out", subtracts=False),
    case("topk", "topk", {"architecture": "topk", "k": 2, "normalize_activations": None, **hook("blocks.0.hook_attn_out")}, site="attn_out", layer=0, k=2),
    case(
        "topk of 2024 with layer_norm",
        "topk",
        {"architecture": "standard", "activation_fn": "topk", "activation_fn_kwargs": {"k": 3}, "hook_name": "blocks.1.hook_resid_mid", "hook_layer": 1, "normalize_activations": "layer_norm"},
        site="resid_mid",
        how="layer_norm",
        k=3,
    ),
    case("topk by the decoder's norms", "topk", {"architecture": "topk", "k": 3, "rescale_acts_by_decoder_norm": True, **hook("blocks.1.hook_resid_pre")}, k=3, rescaled=True),
    case("gated", "gated", {"architecture": "gated", **hook("blocks.1.attn.hook_z"), "reshape_activations": "hook_z"}, site="z"),
    case("standard with constant_norm_rescale", "standard", {"architecture": "standard", "normalize_activations": "constant_norm_rescale", **hook("blocks.12.hook_resid_pre")}, layer=12, how="constant_norm_rescale"),
    case("topk by the decoder's norms with a dead feature", "topk", {"architecture": "topk", "k": 1, "rescale_acts_by_decoder_norm": True, **hook("blocks.1.hook_resid_pre")}, k=1, rescaled=True, dead=2),
]
# The fourth row of a topk has equal products: the first of them count.
tie = cases[3]
tie["rows"].append(tie["tensors"]["b_dec"])
tie["tensors"]["b_enc"] = [0.5, 1.0, 1.0, -1.0, 1.0, 0.0, 0.5, 1.0, 0.25]
tie["features"], tie["decoded"], _ = compute("topk", tie["tensors"], tie["rows"], "none", True, 2, False)


def error(name, base, message, cfg=None, tensors=None):
    """null removes a setting or a tensor."""
    return {"name": name, "base": base, "cfg": cfg or {}, "tensors": tensors or {}, "message": message}


SITES = "hook_resid_pre, hook_resid_mid, hook_resid_post, hook_attn_out, hook_mlp_out or attn.hook_z after blocks.N."
errors = [
    error("no encoder", "standard", "W_enc: expected (6, 9), got none", tensors={"W_enc": None}),
    error("transposed encoder", "standard", "W_enc: expected (6, 9), got (9, 6)", tensors={"W_enc": numbers(FEATURES, WIDTH)}),
    error("no threshold", "jumprelu without the decoder's bias", "threshold: expected (9), got none", tensors={"threshold": None}),
    error("no gate", "gated", "b_gate: expected (9), got none", tensors={"b_gate": None}),
    error("a scale of fine-tuning", "standard", "scaling_factor: expected ones, got other numbers", tensors={"scaling_factor": numbers(FEATURES)}),
    error("unknown architecture", "standard", 'cfg.json: architecture: expected standard, jumprelu, topk or gated, got "transcoder"', {"architecture": "transcoder"}),
    error("unknown activation", "standard of 2024", 'cfg.json: activation_fn_str: expected relu or topk, got "tanh-relu"', {"activation_fn_str": "tanh-relu"}),
    error("unknown norm", "standard", 'cfg.json: normalize_activations: expected none, layer_norm or constant_norm_rescale, got "expected_average_only_in"', {"normalize_activations": "expected_average_only_in"}),
    error("old name of that norm", "standard", "cfg.json: normalize_activations: expected none, layer_norm or constant_norm_rescale, got true", {"normalize_activations": True}),
    error("k too large", "topk", "cfg.json: k: expected an integer from 1 to 9, got 10", {"k": 10}),
    error("no k", "topk", "cfg.json: k: expected an integer from 1 to 9, got nothing", {"k": None}),
    error("no width", "standard", "cfg.json: d_in: expected an integer from 1 to 1048576, got nothing", {"d_in": None}),
    error("width of another kind", "standard", 'cfg.json: d_sae: expected an integer from 1 to 4194304, got "9"', {"d_sae": "9"}),
    error("no hook", "standard", "cfg.json: hook_name: expected " + SITES + ", got nothing", {"metadata": None}),
    error("unknown hook", "standard", "cfg.json: hook_name: expected " + SITES + ', got "blocks.1.ln2.hook_normalized"', hook("blocks.1.ln2.hook_normalized")),
    error("no layer", "standard", "cfg.json: hook_name: expected " + SITES + ', got "blocks.x.hook_resid_pre"', hook("blocks.x.hook_resid_pre")),
    error("one head", "standard", "cfg.json: hook_head_index: expected null, got 3", {"hook_head_index": 3}),
    error("flag of another kind", "standard", 'cfg.json: apply_b_dec_to_input: expected true or false, got "yes"', {"apply_b_dec_to_input": "yes"}),
]

about = "Sparse autoencoders of directions_cases.py, which the tests of the library and of the package read."
print("{\n", json.dumps("about"), ": ", json.dumps(about), ",", sep="")
for name, entries in {"cases": cases, "errors": errors}.items():
    print(f'"{name}": [', ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries), "]" + ("," if name == "cases" else "\n}"), sep="\n")
