"""A step that a row of an operation runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from bestof.errors import KernelError, NoAlternative
from bestof.selection import BestOf
from bestof.selection.interrupts import reraise_from_outside
from bestof.selection.notice import warn
from bestof.torch.backends.shim import Native
from bestof.torch.ops.native_operands import address
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.row import Row
from bestof.torch.plan.steps.chosen_step import Choice, ChosenStep, Runner
from bestof.torch.rows.row_selector import RowSelector
from bestof.torch.rows.row_verifier import Expected


class RowProblem(NamedTuple):
    """An operation, and its problem: the same as of eager calls, so that evidence is shared."""

    operation: Operation[Any]
    problem: Any

    def can_run(self, name: str) -> bool:
        """Return whether a row of this name computes the problem at its accuracy."""
        rows = [row for row in self.operation.rows if row.name == name]
        return any(row.can_run(self.problem) for row in rows)

    @property
    def other(self) -> str | None:
        """The first row that computes the problem beside PyTorch's own; None without one."""
        names = (row.name for row in self.operation.rows[1:] if row.can_run(self.problem))
        return next(names, None)

    def __str__(self) -> str:
        return f"{self.operation.name} {self.problem}"


class RowStep(ChosenStep):
    """An operation of `torch.ops` at its place in memory, by whichever of its rows is chosen.

    The selector is that of eager calls.

    operands: returns what rows read, as they were planned. results: where kernels in C++ write; the
    first is the value of the step. put: takes the value if it lies elsewhere. written: PyTorch's
    operator, if it writes to the results by itself. done: called behind each run.
    """

    pytorch: ClassVar[str] = "as is"

    def __init__(
        self,
        choice: Choice,
        rows: RowSelector,
        operands: Callable[[], list[Any]],
        results: tuple[Tensor, ...],
        put: Callable[[Tensor], object],
        written: Runner | None,
        done: Runner,
    ) -> None:
        super().__init__(choice)
        self._rows, self._operands, self._results = rows, operands, results
        self._put_value, self._written, self._done = put, written, done
        self._runners: dict[str, Runner] = {}

    def runner(self, name: str) -> Runner:
        """Return the function that runs the step by a row."""
        found = self._runners.get(name)
        if found is None:
            found = self._runners[name] = self._runner(name)
        return found

    def _runner(self, name: str) -> Runner:
        written, done = self._written, self._done
        if name == self.pytorch and written is not None:

            def run_written() -> None:
                written()
                done()

            return run_written
        row, operands, put = self._rows.rows[name], self._operands, self._put
        computed, by_pytorch = self._computed(row), self._by_pytorch

        def run() -> None:
            nonlocal computed
            given = operands()
            try:
                found = computed(given)
            except (KernelError, MemoryError):  # memory is short
                found = by_pytorch(given)
            except Exception as error:
                reraise_from_outside()
                if not row.registered:
                    raise
                self._give_up(error)
                computed = by_pytorch  # until the steps are bound again
                found = by_pytorch(given)
            put(found)
            done()

        return run

    def _give_up(self, error: Exception) -> None:
        """Let PyTorch run the step from now on: the function of a program's own row has raised."""
        name = self.algorithm
        if name != self.pytorch:
            self.settle(self.pytorch)
            warn(
                f"{self.problem}: {name} raised {type(error).__name__}: {error}; PyTorch's own "
                "kernel takes its place in the plan"
            )

    def _by_pytorch(self, operands: list[Any]) -> Any:
        first = self._rows.operation.rows[0]
        return first.function(self._rows.original, self.problem.problem, *operands)

    def run_in_float64(self) -> None:
        """Run the step by PyTorch's own kernel in float64, and round its result."""
        operands = self._operands()
        wide = [
            one.double() if isinstance(one, Tensor) and one.is_floating_point() else one
            for one in operands
        ]
        found = self._by_pytorch(wide)
        value: Tensor = found if isinstance(found, Tensor) else found[0]
        dtype = next(one.dtype for one in (*self._results, *operands) if isinstance(one, Tensor))
        self._put_value(value.to(dtype))
        self._done()

    @property
    def selector(self) -> BestOf:
        """The selector of eager calls."""
        return self._rows.selector

    def select(self) -> None:
        """Run the step by the row that the selector tries next."""
        operands = self._operands()
        try:
            found = self.selector(self.problem.problem, *operands)
        except NoAlternative:  # for example, memory is short; the program gets PyTorch's own error
            found = self._by_pytorch(operands)
        self._put(found)
        self._done()

    @property
    def asked(self) -> Any:
        """The problem of the operation."""
        return self.problem.problem

    @property
    def is_comparable(self) -> bool:
        """Whether the chosen row is not PyTorch's own."""
        return self.algorithm is not None and not self._rows.verifier.trusts(self.algorithm)

    def complaint(self) -> str | None:
        """Run the chosen row; return how its results differ from PyTorch's, in words."""
        name, verifier = self.algorithm, self._rows.verifier
        if name is None:  # another call has opened the choice since it was asked
            return None
        operands = self._operands()
        call = (self.problem.problem, *operands)
        for one in self._results:  # before: PyTorch counts a write to any value of the arena
            one.fill_(float("nan"))
        expected = verifier.expect(0, call)
        assert isinstance(expected, Expected)  # else a GPU computes
        try:
            got = self._computed(self._rows.rows[name])(operands)
        except Exception as error:
            reraise_from_outside()
            verifier.put_back(expected)
            return f"raised {type(error).__name__}: {error}"
        wrong = verifier.fault(expected, got)
        if wrong is not None:
            return wrong
        # Copies, because all values of an arena share one storage.
        got = got.clone() if isinstance(got, Tensor) else tuple(one.clone() for one in got)
        return verifier.judge(name, 0, call, expected, got).wrong

    def _computed(self, row: Row[Any]) -> Callable[[list[Any]], Any]:
        """Return the function from operands to the results of a row.

        A kernel in C++ writes where the results are to lie.
        """
        rows, results = self._rows, self._results
        by_function = partial(row.function, rows.original, self.problem.problem)
        if row.compiled is None or not results:
            return lambda operands: by_function(*operands)
        make, kernels = partial(row.compiled, self.problem.problem), list[Native | None]()
        into = [one.data_ptr() for one in results]
        made = results if len(results) > 1 else results[0]

        def by_kernel(operands: list[Any]) -> Any:
            if not kernels:
                kernels.append(make(*operands))
            native, tensors = kernels[0], operands[: len(operands) - rows.operation.others]
            if native is not None and native.write(list(map(address, tensors)), into):
                return made
            return by_function(*operands)  # memory is short, or it needs packed operands

        return by_kernel

    def _put(self, computed: Any) -> None:
        value = computed if isinstance(computed, Tensor) else computed[0]
        if not self._results or value is not self._results[0]:
            self._put_value(value)
