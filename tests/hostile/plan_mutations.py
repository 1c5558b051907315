"""Plan files whose graphs, numbers and names were changed under right checksums.

Each gives a clear error or a plan. No mutation ends the process, takes longer than `_SECONDS`, or
runs code: an audit hook tells of all that Python compiles, runs, opens for writing or starts.
"""

from __future__ import annotations

import copy
import io
import json
import random
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mutations import in_processes, one_line, refused
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import bestof.torch as bt
from bestof.errors import BestofError
from bestof.torch.plan.file.container import read, write

_SECONDS = 60
_BYTES = (
    12 * 2**30
)  # of addresses, so that a plan that allocates wildly ends itself, not the machine

_DEEP = "a list in lists"  # becomes one: Python's own writer cannot write it

_STARTING = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen")
_CHANGING = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.symlink", "shutil.")
_READING_CODE = ("pickle.find_class", "marshal.loads", "socket.connect", "ctypes.dlopen")

CODE = (
    "__import__('os').system('touch {mark}')",
    "x = open('{mark}', 'w')",
    "x): pass\nimport os; os.system('touch {mark}')\ndef f(x",
    "x: __import__('pathlib').Path('{mark}').touch() = None",
    "self.__class__.__init__.__globals__",
    "__builtins__",
    "x\n    open('{mark}', 'w')\n    y",
    "torch.ops.aten.save.default",
)
TARGETS = (
    *("aten.save.default", "aten.manual_seed.default", "aten._print.default", "aten.warn.default"),
    *("aten.set_grad_enabled.default", "aten.from_file.default", "aten.set_.source_Tensor"),
    *("aten.resize_.default", "aten.as_strided.default", "aten._reshape_alias.default"),
    *("aten.index_put_.default", "aten.copy_.default", "aten.add_.Tensor", "aten.add.out"),
    *("aten.chunk.default", "aten.unbind.int", "aten.split.Tensor", "aten.zeros.default"),
    *("aten.full.default", "aten.arange.default", "aten.randn.default", "aten.bernoulli.p"),
    *("aten.embedding.default", "aten.gather.default", "aten.index.Tensor", "aten.take.default"),
    *("aten.view.default", "aten.view.dtype", "aten.expand.default", "aten.repeat.default"),
    *("aten.narrow.default", "aten.unfold.default", "aten.im2col.default", "aten.pad.default"),
    *("aten._transformer_encoder_layer_fwd.default", "aten.mkldnn_rnn_layer.default"),
    *("aten._native_multi_head_attention.default", "aten._weight_norm_interface.default"),
    *("aten._scaled_dot_product_flash_attention_for_cpu.default",),
    *("aten.lstm.data", "aten.native_dropout.default", "aten.batch_norm.default"),
    *("aten.max_pool2d.default", "aten.conv2d.default", "aten.convolution.default"),
    *("prim.device.default", "prims.add.default", "mkldnn._reorder_convolution_weight.default"),
    *("operator.getitem", "bestof.fused", "builtins.eval", "os.system", "aten", "aten.add", ""),
)
ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 7, 64, 2**15, 2**31, 2**31 - 1, 2**40, 2**53, 2**63 - 1),
    *(2**63, -(2**63), 2**64, 10**399, 0.5, -0.0, 1e300, float("nan"), float("inf")),
    *("", "x", "\ud800", "\u202e", "\x1b[2J", "a" * 100_000, "torch.float64", "torch.qint8"),
    *("cuda", "meta", "torch.bool", "torch.complex64", "torch.int8", "torch.bits8"),
    *([], {}, [[]], [None], {"node": "x"}, {"node": None}, {"tensor": [[], [], "torch.float32"]}),
    *({"tensor": [[2**40], [1], "torch.float32"]}, {"tensor": [[2**31, 2**31], [0, 0], "x"]}),
    *({"torch": "ops"}, {"torch": "float32"}, {"torch": "__dict__"}, {"device": "cuda"}),
    *({"dict": {"out": None}}, {"dict": {"self": 1}}, {"complex": [1, 2]}, {"code": "x"}),
)


class _Attention(nn.Module):
    """A block of a language model: norm, rotary embedding, attention with a cache, gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.up, self.down = (
            nn.RMSNorm(16),
            *(nn.Linear(*size, bias=False) for size in ((16, 32), (16, 32), (32, 16))),
        )
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        angles = torch.outer(torch.arange(6.0), torch.arange(4.0))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())

    def forward(self, x: Tensor, cache: Tensor, place: Tensor) -> Any:
        h = self.norm(x)
        q, k, v = (
            one(h).view(1, -1, 2, 8).transpose(1, 2) for one in (self.query, self.key, self.value)
        )
        q, k = self._turned(q), self._turned(k)
        cache.index_copy_(2, place, k)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + y
        x = x + self.down(F.silu(self.gate(x)) * self.up(x))
        first, second = x.split(8, -1)
        return {"x": x, "parts": (first.cumsum(-1), second.softmax(-1))}

    def _turned(self, x: Tensor) -> Tensor:
        turned = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return x * self.cos + turned * self.sin  # type: ignore[no-any-return]


class _Pictures(nn.Module):
    """Convolutions of all kinds, poolings, joins, pixels as rows, and operators of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Conv2d(16, 8, 1, stride=1)
        self.norm, self.pixels = nn.LayerNorm(8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.first(x), 2)
        y = F.hardswish(self.deep(x)) + x
        x = self.last(torch.cat((x, y), 1)) + y
        rows = self.pixels(F.gelu(self.norm(x.permute(0, 2, 3, 1))))
        x = x + rows.permute(0, 3, 1, 2)
        x = F.avg_pool2d(F.interpolate(x, scale_factor=2.0), 2)
        return self.head(x.mean((2, 3))).log_softmax(-1)


class _Recurrent(nn.Module):
    """An LSTM of two layers behind a linear layer with a weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = weight_norm(nn.Linear(5, 4))
        self.network = nn.LSTM(4, 6, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.network(self.first(x))[0]
        return found


def whole_plans() -> list[tuple[Any, list[Tensor], list[Callable[[], Tensor]]]]:
    """Return (content, tensors, functions that make the inputs) of some plans."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    picture = lambda: torch.linspace(-1, 1, 2 * 3 * 12 * 12).reshape(2, 3, 12, 12)  # noqa: E731
    tokens = [
        lambda: torch.linspace(-1, 1, 6 * 16).reshape(1, 6, 16),
        lambda: torch.zeros(1, 2, 9, 8),
        lambda: torch.arange(6),
    ]
    halves = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 4))
    words = nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 3), nn.Sigmoid())
    models: list[tuple[nn.Module, list[Callable[[], Tensor]]]] = [
        (_Pictures(), [picture]),
        (_Attention(), tokens),
        (halves.bfloat16(), [lambda: picture().bfloat16()]),
        (words, [lambda: torch.arange(10).reshape(2, 5)]),
        (_Recurrent(), [lambda: torch.linspace(-1, 1, 60).reshape(4, 3, 5)]),
        (
            nn.TransformerEncoderLayer(16, 2, 24, batch_first=True),
            [lambda: torch.linspace(-1, 1, 6 * 16).reshape(1, 6, 16)],
        ),
    ]
    found = []
    for model, inputs in models:
        for accuracy in ("float32", "exact"):
            plan = bt.optimize(
                model.eval(), tuple(one() for one in inputs), accuracy=accuracy, tune=False
            )
            with torch.no_grad():
                for _ in range(40):
                    plan(*(one() for one in inputs))
            file = io.BytesIO()
            plan.save(file)
            file.seek(0)
            content, tensors = read(file)
            found.append((content, tensors, inputs))
    return found


def plan_graphs(folder: Path, count: int, seed: int) -> Counter[str]:
    """Load plans with changed graphs, call them, explain them, and save them again."""
    plans, mark = whole_plans(), folder / "code-ran"
    for content, tensors, inputs in plans:  # all that is imported late is imported now
        _used(_file(content, tensors), inputs, 0)
    told: list[str] = []

    def one(chance: random.Random, number: int) -> str:
        if not told:
            told.append("watching")
            _watch(told)
        del told[1:]
        content, tensors, inputs = plans[chance.randrange(len(plans))]
        content, tensors = copy.deepcopy(content), list(tensors)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            _mutate(content, chance, str(mark))
        file = _file(content, tensors, chance)
        signal.alarm(_SECONDS)
        try:
            what = _used(file, inputs, number)
        finally:
            signal.alarm(0)
        assert told == ["watching"], told
        assert not mark.exists(), "code of the file ran"
        return what

    return in_processes(one, count, seed)


def _used(file: io.BytesIO, inputs: list[Callable[[], Tensor]], number: int) -> str:
    """Load a plan and use it; return what became of it."""
    try:
        loaded = bt.load(file)
    except BestofError as error:
        return refused(error, "load: ")
    given = [one() for one in inputs]
    try:
        with torch.no_grad():
            loaded(*given)
            loaded(*given)
            if number % 4 == 0:
                str(loaded.explain(repeats=1))
                loaded.save(io.BytesIO())
    except (BestofError, IndexError) as error:
        return f"loaded, and a call raised {one_line(error)}"
    return "loaded"


def _file(content: Any, tensors: list[Tensor], chance: random.Random | None = None) -> io.BytesIO:
    """Return the file of a plan; with a chance, one whose table of tensors may be changed too."""
    file = io.BytesIO()
    dumps = json.dumps

    def changed(text: Any) -> str:
        assert chance is not None
        if text["tensors"] and chance.random() < 0.1:
            _change(*chance.choice(list(_values(text["tensors"]))), chance, "")
        if text["storages"] and chance.random() < 0.02:
            _change(*chance.choice(list(_values(text["storages"]))), chance, "")
        return dumps(text).replace(f'"{_DEEP}"', "[" * 100_000 + "]" * 100_000)

    try:
        if chance is not None:
            json.dumps = changed  # type: ignore[assignment]
        write(file, content, tensors)
    finally:
        json.dumps = dumps
    file.seek(0)
    return file


def _values(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of every value inside a JSON document."""
    if not isinstance(value, dict | list):
        return
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, one in pairs:
        yield value, key
        if isinstance(one, dict | list):
            yield from _values(one)


def _mutate(content: Any, chance: random.Random, mark: str) -> None:
    """Change a document in one place, or one number in all places."""
    programs = content.get("programs")
    program = chance.choice(programs) if isinstance(programs, list) and programs else content
    places = list(_values(chance.choice((content, program, program))))
    kind = chance.randrange(8)
    program = program if isinstance(program, dict) else {}
    if kind == 0:
        _renumber(content, chance)
    elif kind == 1:
        _reorder(program, chance)
    elif kind == 2:
        _exchange(places, chance)
    elif kind == 3:
        named = [
            (holder, key)
            for holder, key in places
            if isinstance(holder[key], str) and key in ("target", "name", "node", "label", "op")
        ]
        if named:
            holder, key = chance.choice(named)
            holder[key] = chance.choice((_code(chance, mark), chance.choice(TARGETS)))
    elif places:
        _change(*chance.choice(places), chance, mark)


def _code(chance: random.Random, mark: str) -> str:
    return chance.choice(CODE).replace("{mark}", mark)


def _change(holder: Any, key: Any, chance: random.Random, mark: str) -> None:
    value = holder[key]
    kind = chance.randrange(7)
    if kind == 0 and isinstance(holder, list):
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(value))
    elif kind == 2 and isinstance(holder, dict):
        del holder[key]
    elif kind == 3 and isinstance(holder, dict):
        holder[_code(chance, mark)] = holder.pop(key)
    elif kind == 4 and type(value) in (int, float):
        holder[key] = chance.choice((value + 1, value - 1, 2 * value, -value, value // 2))
    elif kind == 5 and isinstance(value, str):
        holder[key] = chance.choice((_code(chance, mark), value + "_", value[:-1]))
    elif kind == 6 and isinstance(value, list):
        chance.shuffle(value)
    else:
        odd = *ODD, _DEEP, [value], [[value, value]], {"dict": {"x": value}}
        holder[key] = copy.deepcopy(chance.choice(odd))


def _renumber(content: Any, chance: random.Random) -> None:
    """Replace a number by another everywhere: shapes then agree more often."""
    numbers = [(holder, key) for holder, key in _values(content) if type(holder[key]) is int]
    if not numbers:
        return
    holder, key = chance.choice(numbers)
    old = holder[key]
    new = chance.choice((old + 1, old - 1, 2 * old, old // 2, 0, 1, 2**20, 2**31))
    for holder, key in numbers:
        if holder[key] == old:
            holder[key] = new


def _reorder(program: Any, chance: random.Random) -> None:
    nodes = program.get("nodes") if isinstance(program, dict) else None
    if not isinstance(nodes, list) or len(nodes) < 2:
        return
    one, other = chance.randrange(len(nodes)), chance.randrange(len(nodes))
    match chance.randrange(4):
        case 0:
            nodes[one], nodes[other] = nodes[other], nodes[one]
        case 1:
            del nodes[one]
        case 2:
            nodes.insert(other, copy.deepcopy(nodes[one]))
        case _:
            key = chance.choice(("args", "val", "operation", "target", "kwargs", "tensor"))
            if all(isinstance(nodes[at], dict) and key in nodes[at] for at in (one, other)):
                nodes[one][key] = copy.deepcopy(nodes[other][key])


def _exchange(places: list[tuple[Any, Any]], chance: random.Random) -> None:
    """Put a value of the document where another of the same key or type is."""
    if not places:
        return
    holder, key = chance.choice(places)
    alike = [
        (there, at) for there, at in places if at == key or type(there[at]) is type(holder[key])
    ]
    there, at = chance.choice(alike)
    holder[key] = copy.deepcopy(there[at])


def _watch(told: list[str], files: bool = False) -> None:
    """Note every piece of code that runs, and every process and file that is made, from now on.

    files: those who call may make and remove files.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "compile":
            _, name = args
            bad = not _is_file(name)
        elif event == "exec":
            bad = not _is_file(args[0].co_filename)
        elif event == "open":
            path, mode, flags = args
            written = not files and isinstance(mode, str) and any(one in mode for one in "wxa+")
            bad = (written or bool(not files and flags and flags & 3)) and str(path) != "/dev/null"
        else:
            bad = event.startswith((*_STARTING, *_READING_CODE))
            bad = bad or (not files and event.startswith(_CHANGING))
        if bad and not _by_pytorchs_schemas():
            told.append(f"{event} {args!r}"[:300] + _callers())

    sys.addaudithook(hook)


def _by_pytorchs_schemas() -> bool:
    """Return whether PyTorch evaluates the types in the schema of one of its own operators.

    It does so once for an operator whose arguments it orders by name.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("/torch/fx/operator_schemas.py"):
            return True
        frame = frame.f_back
    return False


def _is_file(name: Any) -> bool:
    text = name.decode() if isinstance(name, bytes) else str(name)
    return text.startswith("<frozen ") or Path(text).is_file()


def _callers() -> str:
    """Return where an event comes from, innermost last."""
    frames = traceback.extract_stack()[-12:-2]
    return " by " + ", ".join(f"{Path(one.filename).name}:{one.lineno}" for one in frames)
