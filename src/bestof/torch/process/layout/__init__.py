"""Chooses, for each model, whether its convolutions keep their weights in channels last.

PyTorch lets the layout of a convolution's weight decide the layout of its result, and passes it on
through the operators behind it. So the weights of convolutions are all that is converted; a
result that leaves the model in channels last is converted back.

- `weights`: converts the weights of a model, and puts them back.
- `model`: one model: probes it, counts its steps, compares the layouts.
- `interception`: the hooks in PyTorch through which all models are found.
"""
