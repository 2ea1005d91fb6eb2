"""Accuracies published in the CaBaFL paper (arXiv 2404.12850), shown next to measured ones.

In percent, "mean±deviation" of the best window of 10 versions, as computed by `best_window_mean`.
"""

from cabafl.config import DataSection, Experiment
from cabafl.methods.cabafl import CaBaFLParameters

METHODS = ("fedavg", "fedprox", "fedasync", "fedsa", "safa", "wkafl", "cabafl")  # also `--methods paper`

# (data set, model, heterogeneity) -> one accuracy per method, in the order of METHODS
ACCURACY: dict[tuple[str, str, str], str] = {
    ("cifar10", "resnet18", "0.1"): "45.65±3.52 45.57±1.42 47.34±0.72 47.26±1.61 42.20±2.63 40.86±5.98 55.46±0.67",
    ("cifar10", "resnet18", "0.5"): "60.34±0.37 58.66±0.27 60.70±0.28 60.59±0.28 57.69±0.71 67.84±0.78 69.31±0.18",
    ("cifar10", "resnet18", "1.0"): "65.79±0.34 63.55±0.11 66.61±0.22 65.11±0.27 61.92±0.44 71.19±0.49 72.84±0.36",
    ("cifar10", "resnet18", "iid"): "64.89±0.17 63.78±0.14 64.76±0.10 64.98±0.12 64.28±0.16 73.50±0.18 74.83±0.07",
    ("cifar10", "cnn", "0.1"): "46.58±1.29 46.59±1.06 48.90±0.68 48.58±1.92 42.66±2.23 41.03±3.91 52.92±0.62",
    ("cifar10", "cnn", "0.5"): "54.77±0.60 54.33±0.22 55.97±0.66 55.44±0.37 52.63±1.30 50.25±3.15 57.89±0.59",
    ("cifar10", "cnn", "1.0"): "55.88±0.53 55.72±0.28 56.00±0.31 56.45±0.28 54.42±1.02 53.88±1.78 58.58±0.72",
    ("cifar10", "cnn", "iid"): "57.87±0.19 57.76±0.21 57.82±0.09 57.94±0.14 55.88±0.17 58.15±0.38 61.75±0.30",
    ("cifar10", "vgg16", "0.1"): "62.67±5.15 63.31±3.28 66.26±1.24 65.26±2.13 56.37±3.95 55.09±3.92 70.68±1.49",
    ("cifar10", "vgg16", "0.5"): "77.94±0.46 77.15±0.09 78.26±0.20 78.02±0.26 75.40±0.87 78.78±0.20 82.36±0.25",
    ("cifar10", "vgg16", "1.0"): "79.45±0.41 78.58±0.14 79.69±0.17 78.64±0.33 77.46±0.75 80.19±1.02 83.81±0.27",
    ("cifar10", "vgg16", "iid"): "80.35±0.05 79.22±0.08 80.30±0.06 80.42±0.04 79.25±0.14 82.89±0.24 85.12±0.05",
    ("cifar100", "resnet18", "0.1"): "33.64±0.52 33.24±0.38 35.05±0.41 33.61±0.49 31.01±1.04 27.65±2.22 37.77±0.35",
    ("cifar100", "resnet18", "0.5"): "41.31±0.19 40.08±0.18 42.75±0.37 41.96±0.20 39.44±0.44 44.78±1.48 47.30±0.28",
    ("cifar100", "resnet18", "1.0"): "43.33±0.19 41.76±0.11 44.85±0.23 42.75±0.23 40.92±0.23 47.41±0.76 48.10±0.44",
    ("cifar100", "resnet18", "iid"): "42.76±0.09 42.63±0.15 42.20±0.18 43.18±0.15 42.07±0.16 49.10±0.20 49.64±0.06",
    ("cifar100", "cnn", "0.1"): "29.44±0.65 30.64±0.83 31.81±0.57 30.52±0.49 29.44±1.44 19.18±2.59 33.22±0.48",
    ("cifar100", "cnn", "0.5"): "34.08±0.64 34.73±0.45 32.99±0.30 34.70±0.49 33.98±0.95 28.88±2.25 36.44±0.39",
    ("cifar100", "cnn", "1.0"): "32.43±0.48 32.74±0.38 32.84±0.27 34.27±0.30 33.55±0.35 31.35±1.35 37.31±0.49",
    ("cifar100", "cnn", "iid"): "33.04±0.24 33.55±0.20 32.60±0.22 33.23±0.15 31.73±0.37 32.99±0.68 36.88±0.33",
    ("cifar100", "vgg16", "0.1"): "47.30±1.27 47.29±0.45 49.69±0.68 46.91±1.41 42.34±1.66 30.82±3.78 50.53±0.49",
    ("cifar100", "vgg16", "0.5"): "54.83±0.59 53.80±0.59 56.39±0.47 54.55±0.40 50.61±0.66 53.08±2.40 57.37±0.37",
    ("cifar100", "vgg16", "1.0"): "56.49±0.21 54.50±0.35 57.30±0.35 55.24±0.31 53.65±0.40 56.71±1.07 59.53±0.17",
    ("cifar100", "vgg16", "iid"): "57.56±0.05 56.30±0.23 57.91±0.13 56.39±0.14 55.33±0.24 61.16±0.38 64.96±0.04",
    ("femnist", "resnet18", "natural"): "82.25±0.43 81.57±0.30 82.87±0.35 82.07±0.43 76.85±0.35 74.68±0.60 84.08±0.17",
    ("femnist", "cnn", "natural"): "81.29±0.38 81.57±0.29 82.68±0.23 81.99±0.46 76.82±0.38 73.81±0.58 84.00±0.10",
    ("femnist", "vgg16", "natural"): "82.34±0.38 81.38±0.21 82.73±0.26 82.00±0.47 76.87±0.39 74.62±0.47 84.30±0.13",
    ("shakespeare", "lstm", "natural"): "51.61±0.07 51.63±0.12 50.83±0.19 51.89±0.05 51.13±0.23 51.78±0.32 52.69±0.10",
    ("activity", "mlp", "natural"): "95.10±0.16 95.23±0.12 95.06±0.08 95.27±0.09 93.47±0.45 95.17±0.76 95.43±0.23",
}

# fleet.tiers -> one accuracy per method, in the order of METHODS; CIFAR-10, ResNet-18, beta = 0.1
TIERS: dict[str, str] = {
    "config1": "44.91±2.63 46.34±2.55 50.31±1.78 47.75±2.32 41.68±2.97 49.06±6.67 56.96±0.58",
    "config2": "44.78±2.57 44.59±2.86 48.67±1.65 46.32±1.21 40.14±2.51 39.30±6.65 56.06±0.50",
    "config3": "45.45±2.83 46.14±3.11 50.12±2.17 46.51±2.54 41.32±3.02 46.79±6.16 56.13±0.54",
    "config4": "45.32±2.99 43.79±2.63 49.16±1.47 47.04±2.51 40.44±3.88 39.55±5.12 56.74±0.60",
}

# (key, value) that makes a variant of CaBaFL -> beta 0.1, 0.5, 1.0, IID; CIFAR-10, ResNet-18
ABLATION: dict[tuple[str, object], str] = {
    ("selection", "similarity"): "52.54±0.95 69.05±0.23 72.73±0.23 73.99±0.18",
    ("selection", "size"): "54.16±0.65 68.04±0.20 71.59±0.35 72.60±0.18",
    ("selection", "random"): "53.50±1.23 69.16±0.19 72.80±0.34 72.67±0.26",
    ("l1_cache", False): "53.29±2.12 69.27±0.42 72.49±0.26 73.91±0.09",
    ("aggregation", "mean"): "53.08±0.49 68.30±0.25 71.47±0.12 72.99±0.18",
}
_VARIED = ("selection", "l1_cache", "aggregation", "features")  # keys of CaBaFL that make a variant
_HETEROGENEITY = ("0.1", "0.5", "1.0", "iid")


def published_accuracy(experiment: Experiment) -> tuple[float, float] | None:
    """Returns mean and deviation in percent; None if the paper has no result for these data, model, fleet and
    method."""
    heterogeneity, method = _heterogeneity(experiment.data), experiment.method.name
    changed = _changed(experiment)
    if heterogeneity is None or method not in METHODS or len(changed) > 1:
        return None
    key = (experiment.data.dataset, experiment.model.name, heterogeneity)
    row: str | None
    if changed:
        row = ABLATION.get(changed[0]) if _is_cifar10_resnet(key) and experiment.fleet.tiers is None else None
        return _parse(row, _HETEROGENEITY.index(heterogeneity)) if row else None
    if experiment.fleet.tiers is not None:
        row = TIERS.get(str(experiment.fleet.tiers)) if key == ("cifar10", "resnet18", "0.1") else None
    else:
        row = ACCURACY.get(key)
    return _parse(row, METHODS.index(method)) if row else None


def _heterogeneity(data: DataSection) -> str | None:
    """The paper's name of the partition; None for data the paper does not use."""
    if data.train_limit or data.test_limit or data.devices not in ("auto", 100, 180):
        return None
    if data.partition == "dirichlet":
        return f"{data.beta:.1f}" if data.beta in (0.1, 0.5, 1.0) else None
    return data.partition if data.partition in ("iid", "natural") else None


def _changed(experiment: Experiment) -> list[tuple[str, object]]:
    """CaBaFL's keys that differ from the complete method."""
    if experiment.method.name != "cabafl":
        return []
    given, complete = experiment.method.parameters, CaBaFLParameters()
    return [(key, given[key]) for key in _VARIED if key in given and given[key] != getattr(complete, key)]


def _is_cifar10_resnet(key: tuple[str, str, str]) -> bool:
    return key[:2] == ("cifar10", "resnet18") and key[2] in _HETEROGENEITY


def _parse(row: str, column: int) -> tuple[float, float]:
    mean, deviation = row.split()[column].split("±")
    return float(mean), float(deviation)
