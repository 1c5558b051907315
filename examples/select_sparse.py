"""Choose the format of a sparse matrix for each size and density: a field that is no network.

A matrix times a vector is computed from SciPy's formats CSR, CSC, DIA, or from a dense array. Which
one is fastest depends on the size, the density, and on whether the entries lie on few diagonals.
The program only calls `multiply`.

    python examples/select_sparse.py
"""

import argparse
import math
from typing import NamedTuple

import numpy as np
import scipy.sparse

from bestof import Alternative, BestOf


class Matrix:
    """A sparse matrix that keeps each format in which it was needed once."""

    def __init__(self, matrix):
        self.csr = scipy.sparse.csr_array(matrix)
        self.kept = {"csr": self.csr}
        rows, columns = self.csr.nonzero()
        self.diagonals = len(np.unique(columns - rows))

    def as_format(self, name):
        if name not in self.kept:
            self.kept[name] = self.csr.toarray() if name == "dense" else self.csr.asformat(name)
        return self.kept[name]


def by(name):
    return lambda matrix, x: matrix.as_format(name) @ x


class Problem(NamedTuple):
    """What decides which format is fastest: the shape, and powers of two near the rest."""

    rows: int
    columns: int
    entries: int
    diagonals: int


def problem(matrix, _):
    entries, diagonals = (
        2 ** round(math.log2(max(1, n))) for n in (matrix.csr.nnz, matrix.diagonals)
    )
    return Problem(*matrix.csr.shape, entries, diagonals)


# The numbers that each format reads.
READ = {
    "csr": lambda of: 2 * of.entries,
    "csc": lambda of: 2 * of.entries,
    "dia": lambda of: of.diagonals * of.columns,
    "dense": lambda of: of.rows * of.columns,
}


def too_large(name):
    """Return a function that says why a format is not worth a trial: it may take seconds."""

    def why(of):
        times = READ[name](of) / READ["csr"](of)
        return f"reads {times:.0f} times as much as csr" if times > 100 else None

    return why


multiply = BestOf(
    name="sparse matrix times vector",
    alternatives=[Alternative(name, by(name), unpromising=too_large(name)) for name in READ],
    get_problem_size=problem,
    check=1e-6,
)


def poisson(n):
    """Return the matrix of Poisson's equation on n x n points, which has five diagonals."""
    second = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    return scipy.sparse.kronsum(second, second)


def conjugate_gradients(matrix, b, steps):
    """Return the solution of `matrix` x = b, for a positive definite matrix."""
    x, residual = np.zeros_like(b), b.copy()
    direction, squared = residual.copy(), residual @ residual
    for _ in range(steps):
        product = multiply(matrix, direction)
        length = squared / (direction @ product)
        x += length * direction
        residual -= length * product
        squared, before = residual @ residual, squared
        if squared <= 1e-20 * (b @ b):
            break
        direction = residual + (squared / before) * direction
    return x


def main():
    parser = argparse.ArgumentParser(description="Choose formats of sparse matrices.")
    parser.add_argument("--points", type=int, default=100, help="points of a side of the grid")
    parser.add_argument("--calls", type=int, default=200, help="products of each random matrix")
    args = parser.parse_args()
    rng = np.random.default_rng(0)

    grid = Matrix(poisson(args.points))
    b = rng.standard_normal(args.points**2)
    x = conjugate_gradients(grid, b, 20 * args.points)
    error = np.linalg.norm(grid.csr @ x - b) / np.linalg.norm(b)
    print(f"Poisson's equation on {args.points} x {args.points} points: residual {error:.1e}")

    for size, density in ((40, 0.5), (400, 0.3), (400, 0.01), (2000, 0.001)):
        values = scipy.sparse.random_array((size, size), density=density, rng=rng)
        matrix, vector = Matrix(values), rng.standard_normal(size)
        for _ in range(args.calls):
            y = multiply(matrix, vector)
        assert np.allclose(y, values @ vector)
    print(multiply.report())


if __name__ == "__main__":
    main()
