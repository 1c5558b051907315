"""Say what to install if a command needs a package that is missing."""

from __future__ import annotations

from bestof.distribution import install

# The top-level module, its name in prose, and the extra of bestof that installs it.
_EXTRAS = {
    "numpy": ("NumPy", "kernels"),
    "torch": ("PyTorch", "torch"),
    "rich": ("rich", "view"),
    "matplotlib": ("matplotlib", "plot"),
    "onnx": ("ONNX", "peers"),
    "onnxruntime": ("ONNX Runtime", "peers"),
    "openvino": ("OpenVINO", "peers"),
    "ncnn": ("ncnn", "peers"),
    "zentorch": ("zentorch", "peers"),
    "transformers": ("transformers", "dev"),
}


def advice(error: ImportError, command: str) -> str | None:
    """Return one line that says what `command` needs and how to install it.

    Return None if the error is not about a missing optional package.
    """
    found = _EXTRAS.get((error.name or "").partition(".")[0])
    if found is None or not isinstance(error, ModuleNotFoundError):
        return None
    name, extra = found
    return f"{command} needs {name}, which is not installed; {install(extra)}"
