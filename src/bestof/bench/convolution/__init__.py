"""`bestof bench conv`: single convolutions.

`alternatives.py` measures every alternative that PyTorch programs choose from. The other modules
measure the native algorithms beside other libraries: each peer in a process of its own, in turn.
"""
