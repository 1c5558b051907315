"""Answers the calls of one operation, below autograd."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from functools import partial
from typing import Any

from torch import Tensor

from bestof.configuration import Configuration
from bestof.errors import KernelError, NoAlternative
from bestof.kernels import isa
from bestof.torch.backends.shim import Native, Shim, computed_by
from bestof.torch.dispatch.met_modules import met
from bestof.torch.dispatch.modes import are_modes_on, without_modes
from bestof.torch.dispatch.native_check import NativeChecks, agree
from bestof.torch.dispatch.python_kernel import PythonKernel
from bestof.torch.dispatch.registration import make_operators
from bestof.torch.dispatch.replacement import Replacement
from bestof.torch.ops.guards import PLAIN, passes_through
from bestof.torch.ops.operation import Call, Operands, Operation
from bestof.torch.ops.pytorch_kernel import by_position
from bestof.torch.ops.row import Row
from bestof.torch.rows.row_selector import row_selector

_KEPT = 4096  # kernels in C++ of one operation


class Override(Replacement):
    """Answers an operation of PyTorch by its rows, while registered.

    Kernels in C++ hand small calls on to PyTorch's own kernel, and answer settled ones. They ask
    `_answer` for the others. Where this PyTorch takes no kernels in C++, `_answer` is the kernel,
    if the operation is one operator; others stay out.
    PyTorch's own kernel answers what the operation does not choose for, and whatever its rows fail
    to answer.
    """

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
        key = operation.device.key
        self._selection = row_selector(operation)
        self.original: Any = self._selection.original
        kernels = self._selection.kernels
        shim, in_python = None, []
        if operation.operators and not operation.part:
            shim = make_operators(operation, self._answer, kernels)
            if shim is None and len(operation.operators) == 1:
                kernel = by_position(operation.operator, self._answer)
                in_python = [PythonKernel(operation.operator, kernel, key)]
        super().__init__(operation.operators, shim, in_python, key)
        operation.lend_to(shim)
        self.forget: Callable[[], object] = (lambda: None) if shim is None else shim.forget
        """Called after every decision, for what else remembers decisions."""
        self.decided_above: Callable[[Iterable[Any]], Collection[Any]] = lambda _problems: ()
        """Returns the problems of which PyTorch's own kernel computes more than this operation."""
        self._natives: dict[Hashable, Native] = {}
        self._native_checks = NativeChecks(operation.name.replace("_", " "), self._look_up_again)
        self.calls = self._selection.calls
        self.selector = self._selection.selector
        self._selection.listeners.append(self._look_up_again)
        self.selector.met = partial(met, self.calls, self.operation.refused)

    @property
    def parts(self) -> tuple[Override, ...]:
        """The overrides of single operations that this one consists of."""
        return (self,)

    def configure(self, configuration: Configuration) -> None:
        """Put the override in, or take it out, as a configuration says."""
        self.choose_offered()
        self.operation.configure(configuration)
        self.selector.budget = configuration.budget
        if self.level != configuration.accuracy:
            self.set_level(configuration.accuracy)
        switch = self.operation.switch
        wanted = switch is None or getattr(configuration, switch)
        if self.operation.name in configuration.without:
            wanted = False
        if not self.operation.is_chosen_at(configuration.accuracy):
            wanted = False
        (self.register if wanted else self.remove)()

    def choose_offered(self) -> None:
        """Choose among the rows that are offered at present; see `offer.py`."""
        self._selection.choose_offered()

    def register(self) -> None:
        """Put the override in, if this PyTorch takes it. Does nothing if it is in."""
        super().register()
        if self.operation.part or not self.operation.operators:
            self._is_in = True

    def remove(self) -> None:
        """Put PyTorch's own kernel back. Does nothing if it is in."""
        super().remove()
        self.operation.clear()

    def call(self, *arguments: Any) -> Call | None:
        """Return the call that the operation chooses for; None while the override is out."""
        if not self._is_in or not _are_plain(arguments):
            return None
        return self.operation.call(self.level, *arguments)

    def answer(self, call: Call) -> Any:
        """Return what the operator returns. Raises NoAlternative if all rows fail."""
        next(self.calls.counter(call.problem))
        return self._choose(call)

    def _choose(self, call: Call) -> Any:
        try:
            return self.selector(call.problem, *call.operands)
        except NoAlternative:
            raise
        except BaseException:
            self.selector.journal.deliver()  # an interrupt may have come before it
            raise

    def chosen(self, problem: Any) -> Row[Any] | None:
        """Return the row that was chosen for a problem; None if it is undecided."""
        return self._selection.chosen(problem)

    def _answer(self, *arguments: Any) -> Any:
        """Return the results of a call; the arguments are those of `Operation.call`."""
        if are_modes_on():
            return without_modes(self._answer, *arguments)
        # Read the generation before the accuracy and the decisions. If either has changed when the
        # decision is noted, the shim ignores the note.
        shim = self.shim
        generation = 0 if shim is None else shim.generation
        if not _are_plain(arguments):  # before a subclass sees that it is looked at
            return self.original(*arguments)
        call = self.operation.call(self.level, *arguments)
        if call is None:
            if shim is not None and not passes_through():
                shim.note(generation, [], None)
            return self.original(*arguments)
        count = self.calls.counter(call.problem)
        next(count)
        row = None if shim is None else self.chosen(call.problem)
        if shim is not None and row is not None:
            if shim.refused:
                return self._pack(row, call, arguments)
            native = self._compiled(row, call.problem, call.operands)
            if native is not None or row is self.operation.rows[0]:
                shim.note(generation, [count], native)
        try:
            results = self._choose(call)
        except NoAlternative:  # for example, memory is short; the program gets PyTorch's own error
            return self.original(*arguments)
        results = self.operation.finish(call, arguments, results)
        return self.original(*arguments) if results is None else results

    def _pack(self, row: Row[Any], call: Call, arguments: tuple[Any, ...]) -> Any:
        """Return the results of a settled call whose operand is not packed, or has changed since.

        It is packed if the operation says so. The selector does not see this call, because it
        samples one call in ASKED_EVERY and would take this one for a typical call.
        """
        if self.operation.packs_again(row, call.operands):
            try:
                return row.function(self.original, call.problem, *call.operands)
            except (KernelError, MemoryError):  # memory is short
                pass
        return self.original(*arguments)

    def _compiled(self, row: Row[Any], problem: Any, operands: Operands) -> Native | None:
        """Return the kernel that may answer calls like this one; None if Python or PyTorch does.

        Calls that look alike have one kernel. The shim keeps each one that it was ever given.
        """
        if row.compiled is None or self.shim is None:
            return None
        key = _key_of(row, problem, operands)
        native = self._natives.get(key)
        if native is None:
            try:
                native = row.compiled(problem, *operands)
            except (KernelError, MemoryError):  # memory is short
                return None
            if native is None:
                return None
            if len(self._natives) >= _KEPT:
                self._natives.clear()
            self._natives[key] = native
        return native if self.passes(self.shim, row, native, problem, operands) else None

    def passes(
        self, shim: Shim, row: Row[Any], native: Native, problem: Any, operands: Operands
    ) -> bool:
        """Return whether a row's kernel gives from C++ what the row gives from Python.

        A kernel that reads a packed operand refuses until a call from Python has packed it.
        """
        tensors = len(operands) - self.operation.others
        return self._native_checks.passes(
            _key_of(row, problem, operands),
            row.name,
            problem,
            lambda: agree(
                lambda *given: computed_by(shim, native, given[:tensors]),
                partial(row.function, self.original, problem),
                operands,
                partial(self.operation.tolerance, row, problem),
                # Packed operands are known by their address.
                fixed=() if native.packed is None else (native.packed,),
            ),
        )

    def _look_up_again(self) -> None:
        self.forget()


def _are_plain(arguments: tuple[Any, ...]) -> bool:
    return all(type(one) in PLAIN for one in arguments if isinstance(one, Tensor))


def _key_of(row: Row[Any], problem: Any, operands: Operands) -> Hashable:
    """Return what a kernel in C++ is made for."""
    looks = (
        (one.shape, one.stride(), one.dtype) if isinstance(one, Tensor) else one for one in operands
    )
    return row.name, problem, tuple(looks), isa()
