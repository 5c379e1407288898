"""A strict reader of IDX files, the format of MNIST and of its drop-in relatives (as idx.h)."""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch


class DataError(ValueError):
    """A data file that is missing or not what it should be; the message has path and values."""


@dataclass
class Dataset:
    images: torch.Tensor  # uint8, (n, 28, 28)
    labels: torch.Tensor  # int64, (n,)


def load_split(folder: Path, split: str) -> Dataset:
    """Reads the images and labels of one split, "train" or "t10k"."""
    image_path = find_file(folder, f"{split}-images-idx3-ubyte")
    label_path = find_file(folder, f"{split}-labels-idx1-ubyte")
    images, labels = read_idx(image_path, 3), read_idx(label_path, 1)

    rows, columns = images.shape[1:]
    if (rows, columns) != (28, 28):
        raise DataError(f"{image_path}: images of {rows}x{columns}, expected 28x28")
    if len(images) == 0:
        raise DataError(f"{image_path}: holds no images")
    if len(images) != len(labels):
        raise DataError(
            f"{folder}: {len(images)} images in {image_path.name}, "
            f"but {len(labels)} labels in {label_path.name}"
        )
    bad = (labels > 9).nonzero()
    if len(bad) > 0:
        index = int(bad[0])
        raise DataError(f"{label_path}: label {labels[index]} at index {index}, expected 0 to 9")
    return Dataset(images, labels.to(torch.int64))


def find_file(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise DataError(
        f"{folder}: neither {name} nor {name}.gz is there "
        "(examples/mnist/get_data.py gets the data)"
    )


def read_idx(path: Path, dimensions: int) -> torch.Tensor:
    """Reads a file of unsigned bytes with that many dimensions, and of exactly the right size."""
    content = read_bytes(path)
    header_size = 4 + 4 * dimensions
    expected_magic = 0x0800 + dimensions  # 0x08: unsigned bytes
    if len(content) >= 4:
        (magic,) = struct.unpack_from(">I", content)
        if magic != expected_magic:
            raise DataError(f"{path}: bad magic 0x{magic:08x}, expected 0x{expected_magic:08x}")
    if len(content) < header_size:
        raise DataError(
            f"{path}: truncated: the header takes {header_size} bytes, the file has {len(content)}"
        )

    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    promised, present = math.prod(shape), len(content) - header_size
    if promised != present:
        problem = "truncated" if present < promised else "too long"
        raise DataError(
            f"{path}: {problem}: the header promises {promised} bytes of data, "
            f"the file has {present}"
        )
    if promised == 0:
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(content, dtype=torch.uint8, offset=header_size).reshape(shape)


def read_bytes(path: Path) -> bytearray:
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{path}: damaged gzip file") from error
    return bytearray(content)
