"""Jobs of a task: what their results depend on and contain."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from cabafl.config import Experiment, ModelSection, TrainingSection, load_experiment
from cabafl.data.dataset import Dataset, Partition, Split
from cabafl.learning.privacy import FeaturePrivacy
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task
from cabafl.lifecycle.simulate import simulate
from cabafl.methods.base import PLAIN, FeatureKind, Objective


def task(samples: int = 60, devices: int = 4) -> Task:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 5, generator=draw)
    y = torch.randint(0, 3, (samples,), generator=draw)
    data = Dataset("toy", "vector", Split(x, y), Split(x[:30], y[:30]), 3)
    offsets = np.linspace(0, samples, devices + 1).astype(np.int64)
    offsets[1] = offsets[0]  # device 0 has no samples
    partition = Partition(np.arange(samples, dtype=np.int64), offsets)
    experiment = Experiment(model=ModelSection(name="mlp", feature_layer="relu2"))
    return TaskSpec.of(experiment, data).build(data, partition)


def test_a_job_depends_on_its_number_device_and_weights_only() -> None:
    work = task()
    start = work.model.save()
    first = work.train(7, 2, start, PLAIN).weights
    work.train(8, 3, first, PLAIN)
    work.evaluate(first, 0)
    np.testing.assert_array_equal(work.train(7, 2, start, PLAIN).weights, first)
    assert not np.array_equal(work.train(9, 2, start, PLAIN).weights, first)
    assert not np.array_equal(work.train(7, 2, start, Objective(epochs=1)).weights, first)
    assert not np.array_equal(work.train(7, 2, start, Objective(lr_scale=0.5)).weights, first)


def test_a_job_reports_its_training_loss_only_on_request() -> None:
    work = task()
    start = work.model.save()
    x, y = work.gather(work.partition.device(2))
    work.model.load(start)
    work.model.network.train()
    expected = F.cross_entropy(work.model.network(x), y).item()
    work.spec = work.spec.model_copy(update={"training": TrainingSection(epochs=1, batch_size=len(y))})
    reported = work.train(7, 2, start, Objective(report_loss=True))
    assert reported.loss == pytest.approx(expected, rel=1e-6)  # one batch: the loss before the only step
    silent = work.train(7, 2, start, PLAIN)
    assert silent.loss is None
    np.testing.assert_array_equal(silent.weights, reported.weights)


def test_features_of_a_device_do_not_depend_on_the_chunk_and_empty_devices_have_none() -> None:
    work = task()
    weights = work.model.save()
    rows = work.features(weights, "activations", range(4))
    np.testing.assert_array_equal(rows[2], work.features(weights, "activations", range(2, 3))[0])
    assert not rows[0].any()
    labels = work.features(weights, "labels", range(4))
    assert labels.sum() == 60
    assert [list(chunk) for chunk in work.feature_chunks()] == [[0, 1, 2, 3]]


def test_features_are_clipped_and_get_noise_on_the_device() -> None:
    work = task()
    start = work.model.save()
    plain = work.features(start, "activations", range(1, 4))
    norms = np.linalg.norm(plain, axis=1)
    work.feature_privacy = FeaturePrivacy(clip=float(np.median(norms)))
    clipped = work.features(start, "activations", range(1, 4))
    np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), np.minimum(norms, np.median(norms)), rtol=1e-5)
    np.testing.assert_allclose(clipped / np.linalg.norm(clipped, axis=1)[:, None], plain / norms[:, None], rtol=1e-4)
    work.feature_privacy = FeaturePrivacy(clip=float(np.median(norms)), noise=0.5)
    blurred = work.features(start, "activations", range(1, 4))
    np.testing.assert_array_equal(work.features(start, "activations", [3])[0], blurred[2])  # whatever the chunk
    noise = blurred - clipped
    assert np.std(noise) == pytest.approx(0.5 * np.median(norms), rel=0.3)
    other = work.features(start + 1, "activations", [3]) - blurred[2]
    assert np.abs(other).max() > 0
    assert abs(np.corrcoef(noise)[0, 1]) < 0.5  # devices do not share their noise


@pytest.mark.parametrize("kind", ["activations", "activation_counts", "labels"])
def test_the_width_of_features_is_known_beforehand(kind: FeatureKind) -> None:
    work = task()
    assert work.feature_width(kind) == work.features(work.model.save(), kind, range(1, 4)).shape[1]


def test_real_devices_draw_noise_that_cannot_be_repeated() -> None:
    work = task()
    work.feature_privacy = FeaturePrivacy(clip=1.0, noise=0.5)
    start = work.model.save()
    again = work.features(start, "labels", [2])
    np.testing.assert_array_equal(work.features(start, "labels", [2]), again)
    work.repeatable = False
    assert not np.array_equal(work.features(start, "labels", [2]), work.features(start, "labels", [2]))


def test_the_smoothing_of_labels_reaches_the_training() -> None:
    words = ["data.dataset=synthetic", "data.devices=4", "model.name=mlp", "method.name=fedavg", "run.workers=0"]
    words += ["fleet.slots=2", "run.max_dispatches=2", "training.learning_rate=0.1"]
    plain, none, smoothed = (
        simulate(load_experiment(None, [*words, *more])).metrics["loss"].iloc[-1]
        for more in ([], ["training.label_smoothing=0"], ["training.label_smoothing=0.5"])
    )
    assert plain == none != smoothed
