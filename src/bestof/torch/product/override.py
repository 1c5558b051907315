"""Puts bestof's matrix products into PyTorch's dispatcher, below autograd."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from bestof.accuracy import ACCURACIES, Accuracy
from bestof.configuration import Configuration
from bestof.errors import KernelError, NoAlternative
from bestof.kernels import isa
from bestof.torch.convolution.recognition import PLAIN
from bestof.torch.guards import passes_through
from bestof.torch.modes import are_modes_on, without_modes
from bestof.torch.product.originals import Originals
from bestof.torch.product.problem import ProductProblem
from bestof.torch.product.products import Products
from bestof.torch.product.row import Row
from bestof.torch.product.table import AS_IS
from bestof.torch.python_kernel import PythonKernel
from bestof.torch.rehearsal import Rehearsals, agree
from bestof.torch.shim import PRODUCTS, NativeProduct, make_products, product_by

LEAST = 2**22
"""Multiply-adds from which on bestof chooses for a product. PyTorch computes smaller ones in less
than 120 microseconds on one core of a Cascade Lake Xeon. A settled call takes 1 to 2 microseconds
more, and one in 64 is timed from Python. With a limit of 2^21, an MLP of four 512 x 512 layers for
8 rows fell to 0.985 of PyTorch's speed."""


class ProductOverride:
    """`aten::mm`, `addmm`, `bmm` and `baddbmm` on the CPU, while registered.

    Linear layers, `matmul` and `einsum` call these, in forward and backward passes. C++ kernels
    answer small products, settled products, and products that bestof does not choose for. They ask
    `_answer` for the others. PyTorch's own kernel answers all calls while results are to be exact
    or deterministic.
    """

    def __init__(self) -> None:
        originals = Originals()
        self.packed = originals.packed
        self.products = Products(originals)
        self.shim = make_products(self._answer, originals.kernels, LEAST)
        if self.shim is not None:
            self.products.forget = self.shim.forget
            self.packed.shim = self.shim
        self._rehearsals = Rehearsals("product")
        self._accuracy: Accuracy = "exact"
        self._is_in = False

    def configure(self, configuration: Configuration) -> None:
        """Put the kernels in, or take them out, as a configuration says."""
        self.packed.limit = configuration.packed_mib << 20
        if self.packed.size > self.packed.limit:
            self.packed.clear()
        wanted = configuration.product and configuration.accuracy != "exact"
        if self._accuracy != configuration.accuracy:
            self._accuracy = configuration.accuracy
            if self.shim is not None:
                self.shim.set_level(ACCURACIES.index(self._accuracy))
        (self.register if wanted else self.remove)()

    @property
    def is_registered(self) -> bool:
        """Whether the kernels are in. They stay out on releases of PyTorch other than 2.13."""
        return self._is_in

    def register(self) -> None:
        """Put bestof's kernels in, if this PyTorch takes them; nothing if they are in."""
        if self.shim is None or self._is_in:
            return
        PythonKernel("aten::mm", partial(self.products.as_is, "mm", None)).warn_early()
        self.shim.take_out()  # an interrupt may have come after `put_in`
        self._is_in = self.shim.put_in()

    def remove(self) -> None:
        """Put PyTorch's own kernels back; nothing if they are in."""
        self._is_in = False  # first: whatever an interrupt leaves in, the next call takes out
        if self.shim is not None:
            self.shim.take_out()
        self.packed.clear()

    def _answer(self, operation: int, bias: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
        """Return A B, plus the bias, for operands that the C++ kernel has checked."""
        if are_modes_on():
            return without_modes(self._answer, operation, bias, a, b)
        name, products, shim = PRODUCTS[operation], self.products, self.shim
        assert shim is not None
        # Read the generation before the accuracy and the decisions. If either has changed when the
        # decision is noted, the shim ignores the note.
        generation = shim.generation
        if (
            type(a) not in PLAIN
            or type(b) not in PLAIN
            or (bias is not None and type(bias) not in PLAIN)
            or self._accuracy == "exact"
            or passes_through()
        ):
            return products.as_is(name, bias, a, b)
        problem = ProductProblem.of(name, a, b, self._accuracy)
        count = products.calls.counter(problem)
        next(count)
        row = products.chosen(problem)
        if row is not None and shim.refused:
            return self._pack(row, problem, bias, a, b)
        if row is not None:
            native = self._compiled(row, problem, bias, a, b)
            if native is not None or row.name == AS_IS:
                shim.note(generation, [count], native)
        try:
            return products(problem, bias, a, b)
        except NoAlternative:  # memory is short, say: the program gets PyTorch's own error
            return products.as_is(name, bias, a, b)
        except BaseException:
            products.selector.journal.deliver()  # an interrupt may have come before it
            raise

    def _pack(
        self, row: Row, problem: ProductProblem, bias: Tensor | None, a: Tensor, b: Tensor
    ) -> Tensor:
        """Return A B, plus the bias, for a B that is not packed or has changed since.

        It is packed if it is met for the second time. The selector does not see this call, because
        it samples one call in ASKED_EVERY and would take this one for a typical call.
        """
        if self.packed.meets_again(b, row.packs):
            try:
                return self.products.by(row, problem, bias, a, b)
            except (KernelError, MemoryError):  # memory is short
                pass
        return self.products.as_is(problem.operation, bias, a, b)

    def _compiled(
        self, row: Row, problem: ProductProblem, bias: Tensor | None, a: Tensor, b: Tensor
    ) -> NativeProduct | None:
        """Return the kernel that may answer calls like this one; None if Python or PyTorch does."""
        native = None if row.compiled is None else row.compiled(problem, a.stride(), b.stride())
        shim = self.shim
        if native is None or shim is None:
            return None
        key = (row.name, problem, a.stride(), b.stride(), isa())
        may_answer = self._rehearsals.passes(
            key,
            row.name,
            problem,
            lambda: agree(
                partial(product_by, shim, native, problem.operation),
                partial(self.products.by, row, problem),
                (bias, a, b),
                partial(_tolerance, row.bound_of(problem).maximum),
                fixed=(2,) if row.packs else (),  # packed matrices are known by their address
            ),
        )
        return native if may_answer else None


def _tolerance(bound: float, bias: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """Return how far two results may be apart, for each element.

    By the inequality of Cauchy and Schwarz, the norms of a row and a column bound the sum of the
    magnitudes of their products. This holds where the products cancel, too.
    """
    norm = torch.linalg.vector_norm
    magnitude: Tensor = norm(a, dim=-1, keepdim=True) * norm(b, dim=-2, keepdim=True)
    return 2 * bound * (magnitude if bias is None else magnitude + bias.abs())
