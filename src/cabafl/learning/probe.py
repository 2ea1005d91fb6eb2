"""One forward and one backward pass before a run: a network that does not fit its data or its task is found here, and
not by the first device."""

from torch import Tensor

from cabafl.errors import UserError
from cabafl.learning.task import Task
from cabafl.learning.training import seeded
from cabafl.own_code import reason

SAMPLES = 2  # one is not enough for batch normalisation


def check_network(task: Task) -> None:
    """Raises `UserError` if the network cannot learn the samples. Leaves network and random numbers as they were."""
    before = task.model.save()
    network = task.model.network
    x, y = task.first_tests(SAMPLES)
    network.train()
    try:
        with seeded(0, task.processor):
            _check_gradient(task, _outputs(task, x), y)
    finally:
        network.zero_grad(set_to_none=True)
        network.eval()
        task.model.load(before)


def _outputs(task: Task, x: Tensor) -> Tensor:
    given = f"a batch of shape {tuple(x.shape)} and type {_type(x)}"
    try:
        outputs = task.model.network(x)
    except (Exception, SystemExit) as error:
        raise _problem(task, f"fails with {given}: {reason(error)}") from error
    if not isinstance(outputs, Tensor):
        raise _problem(task, f"returns a {type(outputs).__name__} for {given}; accepted: a tensor")
    wanted = task.spec.classes
    fits = outputs.dim() >= 1 and len(outputs) == len(x)
    if not fits or not (outputs.shape[1:][-1:] == (wanted,) or (wanted == 1 and outputs.dim() == 1)):
        raise _problem(
            task,
            f"returns shape {tuple(outputs.shape)} for {given}; accepted: {(len(x), wanted)}, because "
            f"data.dataset has {wanted} {'classes' if task.dataset.has_classes else 'outputs'}",
        )
    if not outputs.is_floating_point():
        raise _problem(task, f"returns {_type(outputs)} numbers; accepted: floating-point numbers")
    return outputs


def _check_gradient(task: Task, outputs: Tensor, y: Tensor) -> None:
    try:
        losses = task.goal.learning.losses(outputs, y)
        if not isinstance(losses, Tensor) or losses.shape != y.shape[:1]:
            found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
            raise UserError(
                f"task.name = {task.spec.task.name!r}: losses returns {found} for {len(y)} samples; accepted: a tensor "
                f"of shape ({len(y)},), one loss per sample"
            )
        loss = task.goal.learning.loss(outputs, y)
        loss.backward()  # type: ignore[no-untyped-call]
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _problem(task, f"cannot be trained for task.name = {task.spec.task.name!r}: {reason(error)}") from error
    if all(parameter.grad is None for parameter in task.model.network.parameters()):
        raise _problem(task, "no parameter gets a gradient; accepted: a network with trainable parameters")


def _problem(task: Task, text: str) -> UserError:
    return UserError(f"model.name = {task.spec.model!r}: {text}")


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
