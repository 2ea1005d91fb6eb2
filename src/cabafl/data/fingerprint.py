"""A checksum of a data set: the same samples in the same order, with the same classes and normalisation."""

import hashlib
import json

import numpy as np

from cabafl.data.dataset import Dataset, preprocessing


def fingerprint(dataset: Dataset) -> str:
    """16 hexadecimal digits."""
    digest = hashlib.sha256(json.dumps(preprocessing(dataset)).encode())
    for split in (dataset.train, dataset.test):
        for name in ("x", "y", "users", "fine", "coarse"):
            tensor = getattr(split, name)
            if tensor is not None:
                values = np.ascontiguousarray(tensor.numpy())
                digest.update(f"{name} {values.dtype.str} {values.shape}".encode())
                digest.update(values.data)
    return digest.hexdigest()[:16]
