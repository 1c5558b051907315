"""How fast is one token of a language model? It reads all weights once, and the cache.

The model is like Llama: RMS norms, gated layers, a cache of keys and values that each token changes
in place. Or it is the Llama or the GPT-2 of `transformers`, with a vocabulary of 8,192. Its weights
are random. A plan of `bestof.torch.optimize` and PyTorch's eager mode take
turns with a copy of 256 MiB. The table shows, for both, the milliseconds of a token, the bytes of
weights and cache that it read in a second, and these as a share of the bytes that the copy read and
wrote in a second. All are medians of the rounds.

    python benchmarks/generation.py                            20 s
    python benchmarks/generation.py --dtype bfloat16 --threads 2
    python benchmarks/generation.py --model gpt2 --blocks 24
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from inspect import signature
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import bestof.torch as bt
from bestof.profile.recording.recorder import processor_name

HEAD = 64
COPIED = 64 << 20  # elements of float32
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


class Block(nn.Module):
    """Attention over the cache and a gated layer, each with its norm and residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = width * 11 // 4
        self.before, self.between = Norm(width), Norm(width)
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor, seen: Tensor
    ) -> Tensor:
        normed = self.before(x)
        query, key, value = (
            one(normed).view(1, 1, -1, HEAD).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        keys.index_copy_(2, position, key)
        values.index_copy_(2, position, value)
        attended = functional.scaled_dot_product_attention(query, keys, values, seen)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.between(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Step(nn.Module):
    """One token: its embedding, the place of it, and a pair of caches for each block."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x: Tensor, position: Tensor, *caches: Tensor) -> Tensor:
        seen = torch.arange(caches[0].shape[2])[None] <= position[:, None]
        for block, keys, values in zip(self.blocks, caches[::2], caches[1::2], strict=True):
            x = block(x, keys, values, position, seen)
        return x


class Cache(NamedTuple):
    """A cache for models of transformers, whose tensors are inputs."""

    tensors: tuple[Tensor, ...]
    position: Tensor

    def update(
        self, keys: Tensor, values: Tensor, block: int, **_: object
    ) -> tuple[Tensor, Tensor]:
        """Write a token in place, and return all keys and values."""
        held = self.tensors[2 * block], self.tensors[2 * block + 1]
        for cache, new in zip(held, (keys, values), strict=True):
            cache.index_copy_(2, self.position, new)
        return held


class TransformersStep(nn.Module):
    """One token by a model of transformers: its number, its place, and a pair of caches a block."""

    def __init__(self, name: str, width: int, blocks: int, places: int) -> None:
        super().__init__()
        import transformers as t  # noqa: PLC0415  the other model needs none

        size = {"vocab_size": 8192, "bos_token_id": 0, "eos_token_id": 0}
        if name == "gpt2":
            size |= {"n_embd": width, "n_layer": blocks, "n_head": width // HEAD}
            self.model = t.GPT2LMHeadModel(t.GPT2Config(n_positions=places, **size))
        else:
            size |= {"hidden_size": width, "intermediate_size": width * 11 // 4}
            size |= {"num_hidden_layers": blocks, "num_attention_heads": width // HEAD}
            self.model = t.LlamaForCausalLM(t.LlamaConfig(**size))
        takes = signature(self.model.forward).parameters
        self.keyword = "cache" if "cache" in takes else "past_key_values"

    def forward(self, token: Tensor, position: Tensor, *caches: Tensor) -> Tensor:
        seen = torch.arange(caches[0].shape[2])[None, None, None] <= position
        found: Tensor = self.model(
            token,
            attention_mask=seen,
            position_ids=position[None],
            use_cache=True,
            **{self.keyword: Cache(caches, position)},
        ).logits
        return found


class Work(NamedTuple):
    model: nn.Module
    inputs: tuple[Tensor, ...]

    @classmethod
    def of(cls, name: str, width: int, blocks: int, places: int, dtype: torch.dtype) -> Work:
        """Return a model and the inputs of a token in the last place of a filled cache."""
        torch.manual_seed(0)
        shape = (1, width // HEAD, places, HEAD)
        caches = (torch.randn(shape, dtype=dtype) for _ in range(2 * blocks))
        own = name == "own"
        model = Step(width, blocks) if own else TransformersStep(name, width, blocks, places)
        token = torch.randn(1, 1, width, dtype=dtype) if own else torch.tensor([[5]])
        return cls(model.eval().to(dtype), (token, torch.tensor([places - 1]), *caches))

    @property
    def bytes(self) -> int:
        """How many bytes of weights and cache a token reads. Of tables it reads a row."""
        tables = ("embed_tokens.weight", "wpe.weight")
        weights = (one for name, one in self.model.named_parameters() if not name.endswith(tables))
        return sum(one.numel() * one.element_size() for one in (*weights, *self.inputs[2:]))


def medians(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each way; all take turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["own", "llama", "gpt2"], default="own")
    parser.add_argument("--width", type=int, default=1024, help="a multiple of 64")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--places", type=int, nargs="+", default=[128, 1024], help="of the cache")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    print(f"{processor_name()}; {options.model}: {options.blocks} blocks of {options.width}")
    print(
        "threads dtype     places    MB   eager, ms GB/s of copy    plan, ms GB/s of copy   ratio"
    )
    source = torch.ones(COPIED)
    target = torch.empty_like(source)
    for threads in options.threads:
        torch.set_num_threads(threads)
        for dtype in options.dtype:
            for places in options.places:
                size = options.width, options.blocks, places
                work = Work.of(options.model, *size, DTYPES[dtype])
                with torch.no_grad():
                    plan = bt.optimize(work.model, work.inputs)
                    ways = {
                        "eager": lambda work=work: work.model(*work.inputs),
                        "plan": lambda plan=plan, work=work: plan(*work.inputs),
                        "copy": lambda: target.copy_(source),
                    }
                    medians(ways, 3)
                    taken = medians(ways, options.rounds)
                copied = 2 * source.nbytes / taken["copy"]
                cells = "".join(
                    f"{1e3 * taken[name]:12.2f}{work.bytes / taken[name] / 1e9:5.1f}"
                    f"{work.bytes / taken[name] / copied:8.0%} "
                    for name in ("eager", "plan")
                )
                ratio = taken["eager"] / taken["plan"]
                print(
                    f"{threads:7} {dtype:9} {places:6}{work.bytes / 1e6:6.0f}{cells}{ratio:7.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
