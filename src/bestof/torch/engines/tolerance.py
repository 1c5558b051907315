"""How far the outputs of an engine may be from the model's in float64."""

from __future__ import annotations

from bestof.accuracy import Accuracy

# The largest difference from PyTorch's outputs, in units of their root mean square. Engines that
# sum in another order, or use Winograd's algorithms, differ by 1e-5 to 1e-4 in float32 networks of
# up to 150 layers. A wrong border, a lost bias or bfloat16 inside shows at 1e-2.
FLOAT32 = 2e-3
# bfloat16 has 8 bits. Half a unit in the last place is 2^-9, and random errors grow with the square
# root of the number of layers. A network that magnifies errors may lose 1.5 times what PyTorch's
# own autocast loses: a ResNet50 of random weights loses 0.12 by autocast and 0.10 by bestof.
RELAXED = 5e-2
OVER_AUTOCAST = 1.5
# Of PyTorch's own error, where a network magnifies errors: those of F(4) are ten times as large.
_OVER_EAGER = 10.0


def allowed_error(accuracy: Accuracy, eager: float, autocast: float | None, halves: bool) -> float:
    """Return the largest error within a level of accuracy.

    eager, autocast: the errors of PyTorch itself, and under its autocast to bfloat16 (None if it
    does not run). halves: the model itself computes in bfloat16 or float16.
    """
    allowed = max(FLOAT32, _OVER_EAGER * eager)
    if accuracy == "relaxed" or halves:
        allowed = max(allowed, RELAXED, OVER_AUTOCAST * (autocast or 0.0))
    return allowed
