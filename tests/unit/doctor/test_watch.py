"""What is watched of a program, and that the watching changes no graph of torch.compile."""

from __future__ import annotations

import subprocess
import sys

import pytest

WATCHED = """
import torch
from bestof.doctor.seen import Seen
from bestof.doctor.watch import Watch
from bestof.processors import Room
from bestof.recipe.step_clock import StepClock

seen = Seen(2, Room(2, ""))
clock = StepClock(lambda _: 1e9)
Watch(seen).start()
clock.start()
"""

COMPILED = """
from torch._dynamo.utils import counters

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(5):
    compiled(torch.ones(4, 8)).sum().backward()
    optimizer.step()
assert not counters["graph_break"], counters["graph_break"]
assert counters["frames"]["total"] == 1, counters["frames"]
assert (clock.steps, len(seen.calls), len(seen.optimizers)) == (5, 5, 1)
"""

WITHOUT_MODULES = """
weight = torch.full((10, 10), 1e-39, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1e-9)
for _ in range(5):
    optimizer.zero_grad()
    (torch.ones(4, 10) @ weight).sum().backward()
    optimizer.step()
assert (clock.steps, seen.sampled, seen.denormals) == (5, 400, 100), seen  # of two steps
assert seen.dtypes == {"torch.float32": 1}
"""


WITHOUT_NUMBERS = """
torch.func.vmap(torch.nn.Linear(3, 3))(torch.ones(2, 3))
nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])  # has no shape
torch.nn.Identity()((nested, torch.eye(3).to_sparse_csr()))
assert (len(seen.calls), seen.sampled) == (2, 0), seen
"""

BY_KEYWORDS = """
import warnings

warnings.simplefilter("error")  # PyTorch would warn of a hook that fails

class Encoder(torch.nn.Module):  # called as models of transformers are
    def forward(self, input_ids=None, attention_mask=None):
        if input_ids.shape[1] == 1:
            raise ValueError("too short")
        return {"states": input_ids * attention_mask}

model = Encoder()
for length in (5, 7, 5, 1):
    ids = torch.ones(2, length, dtype=torch.long)
    try:
        model(input_ids=ids, attention_mask=ids)
    except ValueError:
        pass
told = [(one.new, one.elements) for one in seen.calls]
assert told[:3] == [(True, 20), (True, 28), (False, 20)], told
assert len(told) == 4 and seen.dtypes["torch.int64"] == 6, seen
"""


@pytest.mark.parametrize("program", [COMPILED, WITHOUT_MODULES, WITHOUT_NUMBERS, BY_KEYWORDS])
def test_a_program_is_watched(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED + program],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
