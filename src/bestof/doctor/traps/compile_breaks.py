"""A torch.compile that breaks graphs, compiles again and again, or falls back."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.doctor.compilations import compilations
from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap

_MANY = 8
"""PyTorch's limit of compilations of one function; beyond it, the function runs eagerly."""


class CompileBreaks(Trap):
    """Reads what PyTorch's compiler has counted."""

    name = "torch.compile that falls back"
    of_program = True

    def findings(self, seen: Seen) -> Sequence[Finding]:
        counted = seen.compilations or compilations()
        if counted is None:
            return [Finding(self.name, False, None, "the program has compiled nothing")]
        told = f"{counted.total} compilations in {counted.seconds:.1f} s, {counted.breaks} graph "
        told += f"breaks, {counted.failed} functions left to Python"
        caught = bool(counted.breaks or counted.failed or counted.total > _MANY)
        if counted.breaks:
            told += f"; the first break: {counted.first_break[:120]}"
        cure = "TORCH_LOGS=graph_breaks,recompiles shows each place; mark sizes that change by "
        cure += "torch._dynamo.mark_dynamic, or pad them"
        return [Finding(self.name, caught, None, told, cure if caught else "")]
