"""Convolutions: the rows of the three passes, of images and of volumes.

Rows are made of PyTorch's own operations and of native kernels. None of them calls
`aten::convolution` or its backward through the dispatcher. They get PyTorch's own kernels as
`PyTorchConv`, so that an override cannot call itself.
"""
