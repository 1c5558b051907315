"""How the selectors of operations search."""

from __future__ import annotations

from bestof.selection import Race

PATIENCE = 24
"""Calls of a new size that take the decision of its neighbour, before a short race verifies it. The
last, smaller batch of an epoch meets each layer once, or three times if three layers are alike."""

SEARCHES = 256
"""Problems that a selector searches at once. ResNet152 has 43 convolutions of different sizes. Of
3,000 different images, each met once, a small ResNet kept 2,440 searches with 71 MiB for 600 images
without a limit."""

COSTLY = 0.5
"""Seconds by which one trial is slower than the fastest, from which on it is evidence by itself. At
a load of 12 on two cores, 2 of 1,133 calls of 20 ms came 0.7 and 0.9 s late, and the others at most
0.2 s."""

RACE = Race(tie=0.03, confidence=0.97, max_trials=8, costly=COSTLY)
"""A group of convolutions is judged once its passes are settled, and these have a dozen
alternatives. A race that separates near-ties for 60 rounds would take hundreds of steps to win 2 %.
Simulated on VGG16's times, a race at 0.999 over 12 rounds costs 5.2 settled steps and this one 3.3.
Both end within 0.1 % of the best; drift reopens the rest."""

BY_PYTHON = 40e-6
"""Seconds of Python around a call, which trials do not see: 24 to 40 microseconds between the
layers of MobileNetV2, which have driven it out of the caches. A winner that is called without
Python takes 2 to 6, and finds its own code in the caches: PyTorch's own kernel took 272
microseconds in trials and 157 once settled."""

BY_PYTHON_ON_DEVICE = 100e-6
"""The same of a pass on a GPU, whose trials measure the device alone. Beside an H200, a forward
pass by Python took 18 microseconds more than one without, and a backward pass of two gradients 200:
it asks two selectors and calls two kernels. Eager programs often launch kernels no faster than the
device runs them, and then wait for Python."""
