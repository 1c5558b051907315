"""The alternatives for 2-D convolution on the CPU that PyTorch's own operations offer: pure
functions in catalogues.

Nothing here reaches `aten::convolution` or its backward through the dispatcher: whoever overrides
those hands their kernels in as `Originals`, so that an override cannot call itself.
"""
