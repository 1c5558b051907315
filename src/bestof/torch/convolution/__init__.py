"""The alternatives for 2-D convolution, made of PyTorch's own operations and native kernels.

They are pure functions in catalogues. None of them calls `aten::convolution` or its backward
through the dispatcher. The code that overrides these operators passes PyTorch's kernels in as
`Originals`, so that an override cannot call itself.
"""
