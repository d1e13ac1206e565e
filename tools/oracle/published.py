"""Models whose authors' code cannot be installed beside today's libraries, written down in PyTorch from what was published:
ChatGLM-6B (Du et al., 2022; its release's modelling code of 2023) and PanGu-Alpha (Zeng et al., 2021; MindFormers).

Plain float32, every sequence computed as a whole, every step of these papers spelled out: slow, and easy to check.
"""
import math
import types

import torch
import torch.nn.functional as F


class Published:
    """Tensors under their published names, and logits from them. Answers like reference.Reference."""

    def __init__(self, config):
        self.config = config
        self.model = types.SimpleNamespace(config=types.SimpleNamespace(**config))
        self.w = {}

    def named_parameters(self):
        return [(name, torch.empty(shape)) for name, shape in self.shapes().items()]

    def load(self, weights):
        want = self.shapes()
        have = {name: tuple(w.shape) for name, w in weights.items() if not name.endswith("inv_freq")}
        if {k: tuple(s) for k, s in want.items()} != have:
            raise ValueError(f"other tensors than expected: {sorted(set(want) ^ set(have))}")
        self.w = {name: w.float() for name, w in weights.items()}

    def logits(self, ids):
        with torch.no_grad():
            return self.forward([int(i) for i in ids]).numpy()

    def greedy(self, ids, n):
        answer, rows = [], []
        for _ in range(n):
            rows.append(torch.tensor(self.logits(list(ids) + answer)[-1]))
            answer.append(int(rows[-1].argmax()))
        return answer, torch.stack(rows).numpy()

    def layer_norm(self, x, name, weight="weight", bias="bias"):
        eps = self.config.get("layernorm_epsilon", 1e-5)
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.{weight}"], self.w[f"{name}.{bias}"], eps)


class ChatGLM6B(Published):
    def prompt(self, ids):
        """A text's ids as a prompt: the mask and <sop> behind them."""
        return list(ids) + [self.config["gmask_token_id"], self.config["bos_token_id"]]

    def shapes(self):
        c = self.config
        h, f, v = c["hidden_size"], c["inner_hidden_size"], c["vocab_size"]
        shapes = {"transformer.word_embeddings.weight": (v, h), "lm_head.weight": (v, h)}
        for norm in ["transformer.final_layernorm"] + [
                f"transformer.layers.{i}.{n}" for i in range(c["num_layers"])
                for n in ("input_layernorm", "post_attention_layernorm")]:
            shapes[norm + ".weight"] = shapes[norm + ".bias"] = (h,)
        for i in range(c["num_layers"]):
            for name, rows, columns in (("attention.query_key_value", 3 * h, h), ("attention.dense", h, h),
                                        ("mlp.dense_h_to_4h", f, h), ("mlp.dense_4h_to_h", h, f)):
                shapes[f"transformer.layers.{i}.{name}.weight"] = (rows, columns)
                shapes[f"transformer.layers.{i}.{name}.bias"] = (rows,)
        return shapes

    def positions(self, ids):
        """Two streams: where a token stands (behind <sop>: where the mask stands), and how far behind <sop>."""
        c = self.config
        sop = ids.index(c["bos_token_id"])
        mask = c["gmask_token_id"] if c["gmask_token_id"] in ids else c["mask_token_id"]
        n = len(ids)
        first = [s if s < sop else ids.index(mask) for s in range(n)]
        second = [0 if s < sop else s - sop + 1 for s in range(n)]
        return sop, torch.tensor(first), torch.tensor(second)

    @staticmethod
    def rotate(x, positions):
        """x [n, heads, r]: dimensions j and j + r/2 together; the release keeps its frequencies in half precision."""
        r = x.shape[-1]
        freqs = (1.0 / 10000 ** (torch.arange(0, r, 2).float() / r)).half().float()
        angle = positions.float()[:, None] * freqs
        cos, sin = torch.cat([angle.cos()] * 2, -1)[:, None], torch.cat([angle.sin()] * 2, -1)[:, None]
        turned = torch.cat([-x[..., r // 2:], x[..., :r // 2]], -1)
        return x * cos + turned * sin

    def forward(self, ids):
        c, w, n = self.config, self.w, len(ids)
        heads = c["num_attention_heads"]
        d = c["hidden_size"] // heads
        sop, first, second = self.positions(ids)
        seen = torch.tril(torch.ones(n, n, dtype=torch.bool))
        seen[:, :sop] = True
        alpha = math.sqrt(2 * c["num_layers"])
        x = w["transformer.word_embeddings.weight"][ids]
        for i in range(c["num_layers"]):
            name = f"transformer.layers.{i}."

            def linear(part, value):
                return value @ w[name + part + ".weight"].T + w[name + part + ".bias"]
            a = self.layer_norm(x, name + "input_layernorm")
            q, k, v = linear("attention.query_key_value", a).view(n, heads, 3 * d).split(d, -1)
            q, k = (torch.cat([self.rotate(t[..., :d // 2], first), self.rotate(t[..., d // 2:], second)], -1)
                    for t in (q, k))
            scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(d)
            scores = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            x = alpha * a + linear("attention.dense", torch.einsum("hij,jhd->ihd", scores, v).reshape(n, -1))
            m = self.layer_norm(x, name + "post_attention_layernorm")
            x = alpha * m + linear("mlp.dense_4h_to_h",
                                   F.gelu(linear("mlp.dense_h_to_4h", m), approximate="tanh"))
        return self.layer_norm(x, "transformer.final_layernorm") @ w["lm_head.weight"].T


class PanguAlpha(Published):
    def shapes(self):
        c = self.config
        h, f = c["hidden_size"], c["ffn_hidden_size"]
        shapes = {"backbone.embedding.word_embedding.embedding_table": (c["vocab_size"], h),
                  "backbone.embedding.position_embedding.embedding_table": (c["seq_length"], h),
                  "backbone.top_query_embedding.embedding_table": (c["seq_length"], h),
                  "backbone.layernorm.gamma": (h,), "backbone.layernorm.beta": (h,)}
        for layer in self.layers():
            for norm in ("layernorm1", "layernorm2"):
                shapes[f"{layer}.{norm}.gamma"] = shapes[f"{layer}.{norm}.beta"] = (h,)
            # q, k and v are stored [out, in], the others [in, out].
            for name, shape, n_out in (("attention.dense1", (h, h), h), ("attention.dense2", (h, h), h),
                                       ("attention.dense3", (h, h), h), ("attention.projection", (h, h), h),
                                       ("output.mapping", (h, f), f), ("output.projection", (f, h), h)):
                shapes[f"{layer}.{name}.weight"] = shape
                shapes[f"{layer}.{name}.bias"] = (n_out,)
        return shapes

    def layers(self):
        """The query layer is one of num_layers."""
        n = self.config["num_layers"] - 1
        return [f"backbone.blocks.{i}" for i in range(n)] + ["backbone.top_query_layer"]

    def layer(self, name, x, query=None):
        w, n = self.w, len(x)
        heads = self.config["num_heads"]
        d = x.shape[-1] // heads
        a = self.layer_norm(x, name + ".layernorm1", "gamma", "beta")

        def heads_of(part, value):
            return (value @ w[f"{name}.attention.{part}.weight"].T + w[f"{name}.attention.{part}.bias"]).view(n, heads, d)
        q = heads_of("dense1", a if query is None else query)
        k, v = heads_of("dense2", a), heads_of("dense3", a)
        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(d)
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
        out = torch.einsum("hij,jhd->ihd", scores, v).reshape(n, -1)
        x = x + out @ w[name + ".attention.projection.weight"] + w[name + ".attention.projection.bias"]
        m = self.layer_norm(x, name + ".layernorm2", "gamma", "beta")
        u = m @ w[name + ".output.mapping.weight"] + w[name + ".output.mapping.bias"]
        u = u / (1 + torch.exp(-1.702 * u.abs())) * torch.exp(0.851 * (u - u.abs()))  # MindSpore's FastGelu
        return x + u @ w[name + ".output.projection.weight"] + w[name + ".output.projection.bias"]

    def forward(self, ids):
        w, n = self.w, len(ids)
        word = w["backbone.embedding.word_embedding.embedding_table"]
        x = word[ids] + w["backbone.embedding.position_embedding.embedding_table"][:n]
        layers = self.layers()
        for name in layers[:-1]:
            x = self.layer(name, x)
        x = self.layer_norm(x, "backbone.layernorm", "gamma", "beta")
        x = self.layer(layers[-1], x, w["backbone.top_query_embedding.embedding_table"][:n])
        return x @ word.T


def published_class(config):
    """The class for a configuration, or None: its authors' code or transformers runs it."""
    if config["model_type"] == "pangualpha":
        return PanguAlpha
    return ChatGLM6B if "inner_hidden_size" in config else None
