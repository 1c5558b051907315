"""The BLAS of NumPy: OpenBLAS in its wheels."""

from __future__ import annotations

import numpy

from bestof.bench.convolution.case import aligned, samples_of
from bestof.bench.convolution.run import Run
from bestof.bench.product.case import Case, Operands


def version() -> str:
    found = numpy.show_config("dicts")["Build Dependencies"]["blas"]
    return f"{found['name']} of NumPy {numpy.__version__}"


def prepare(case: Case) -> dict[str, Run]:
    operands = Operands.of(case)
    out = aligned((case.rows, case.columns))
    return {
        "numpy": Run(lambda: numpy.matmul(operands.a, operands.b, out=out), lambda: samples_of(out))
    }
