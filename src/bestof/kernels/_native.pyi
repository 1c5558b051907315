import numpy as np
from numpy.typing import NDArray

def transpose(x: NDArray[np.float32], axes: tuple[int, ...], out: NDArray[np.float32], algorithm: str) -> None: ...
