"""Choose the format of a sparse matrix for each size and density: a field that is no network.

A matrix times a vector is computed from SciPy's formats CSR, CSC, DIA, or from a dense array. Which
one is fastest depends on the size, the density, and on whether the entries lie on few diagonals.
The program only calls `multiply`.

    python examples/select_sparse.py
"""

import argparse
import math

import numpy as np
import scipy.sparse

from bestof import BestOf


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


def problem(matrix, _):
    """Return what decides which format is fastest: the shape, and powers of two near the rest."""
    rows, columns = matrix.csr.shape
    entries = round(math.log2(max(1, matrix.csr.nnz)))
    diagonals = round(math.log2(max(1, matrix.diagonals)))
    return f"{rows} x {columns}, 2^{entries} entries on 2^{diagonals} diagonals"


multiply = BestOf(
    name="sparse matrix times vector",
    alternatives=[(name, by(name)) for name in ("csr", "csc", "dia", "dense")],
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
