"""Networks defined in a script or notebook."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
from torch import nn
from cabafl import Experiment, Method, load_model, simulate

class Net(nn.Sequential):
    def __init__(self, input_shape, classes):
        super().__init__(nn.Linear(input_shape[0], 16), nn.ReLU(), nn.Linear(16, classes))

if __name__ == "__main__":
    experiment = Experiment(
        data={"dataset": "synthetic", "devices": 6},
        model={"name": "__main__:Net"},
        fleet={"slots": 2},
        method={"name": "fedavg"},
        run={"virtual_time": 40.0, "workers": 2},
    )
    result = simulate(experiment, out="run", warn=print)
    print(repr(result))
    print(load_model("run").network)
"""


def test_a_network_of_the_script_itself_is_trained_in_this_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "model.name = '__main__:Net': defined in this session, where worker processes cannot import it; "
        "run.workers = 0 instead"
    )
    assert lines[1].startswith("<Result fedavg, seed 1: accuracy ")
    assert lines[2] == "Net("


def test_the_example_of_a_notebook_learns(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "docs/examples/own_everything.py"
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("<Result __main__:Latest, seed 1: accuracy 9")
    assert list(tmp_path.iterdir()) == []
