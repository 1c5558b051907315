"""Photographs of scikit-learn and scikit-image, multiplied and encoded as JPEG files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_images
from torch.utils.data import Dataset


def encoded(width: int = 192) -> list[bytes]:
    """JPEG files in memory, of six photographs."""
    arrays = [*load_sample_images().images, data.astronaut(), data.coffee(), data.chelsea()]
    files = []
    for array in [*arrays, arrays[0][:, ::-1]]:
        file = io.BytesIO()
        Image.fromarray(array).resize((width, width)).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def write(folder: Path, count: int) -> list[Path]:
    """Write so many JPEG files into a folder."""
    files, paths = encoded(), []
    for index in range(count):
        paths.append(folder / f"{index}.jpg")
        paths[-1].write_bytes(files[index % len(files)])
    return paths


class Photographs(Dataset[Any]):
    """Reads, decodes and crops one file at a time, as a training on images does."""

    def __init__(self, paths: list[Path], transform: int = 1) -> None:
        self.paths = paths
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            pixels = numpy.asarray(image.convert("RGB"), dtype=numpy.float32)
        for _ in range(self.transform):
            pixels = pixels - pixels.mean()
        return torch.from_numpy(pixels[:64, :64].copy()).permute(2, 0, 1), index
