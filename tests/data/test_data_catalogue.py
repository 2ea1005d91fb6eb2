"""Names, folders, the cheap import, and the object that readers return."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cabafl.data import DESCRIPTIONS, NAMES, data_home, load
from cabafl.data.dataset import Dataset, Split
from cabafl.errors import UserError


def test_importing_the_catalogue_does_not_load_torch_or_numpy() -> None:
    code = "import sys, cabafl.data; print(sorted({'torch', 'numpy', 'mlxtend'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_name_is_described() -> None:
    assert set(NAMES) == set(DESCRIPTIONS)
    assert DESCRIPTIONS["femnist"].users
    assert not DESCRIPTIONS["cifar10"].users


def test_data_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CABAFL_DATA", str(tmp_path))
    assert data_home() == tmp_path
    monkeypatch.delenv("CABAFL_DATA")
    assert data_home() == Path.home() / ".cache" / "cabafl" / "data"


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("synthetic", "npz")])
def test_a_missing_file_says_what_was_looked_for_and_how_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(name, root=tmp_path / "nowhere")
    message = str(caught.value)
    assert str(tmp_path / "nowhere") in message
    assert DESCRIPTIONS[name].get in message
    assert "\n" not in message


def test_the_default_folder_is_used_without_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CABAFL_DATA", str(tmp_path))
    with pytest.raises(UserError, match=str(tmp_path / "cifar10" / "cifar-10-batches-py" / "data_batch_1")):
        load("cifar10")


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        load("cifra10")


def test_coarse_labels_need_two_levels() -> None:
    with pytest.raises(UserError, match=r"data\.labels = 'coarse': mnist5k"):
        load("mnist5k", labels="coarse")


def test_inputs_normalise_pictures_and_select_keeps_all_columns() -> None:
    column = torch.arange(4)
    split = Split(torch.full((4, 2, 1, 1), 51, dtype=torch.uint8), column, column, column, column)
    data = Dataset("toy", "image", split, split, 4, mean=(0.2, 0.0), deviation=(1.0, 0.1))
    assert torch.allclose(data.inputs(split.x)[0].flatten(), torch.tensor([0.0, 2.0]))
    chosen = split.select(torch.tensor([3, 1]))
    assert chosen.y.tolist() == [3, 1]
    assert chosen.users is not None
    assert chosen.users.tolist() == [3, 1]
    assert data.input_shape == (2, 1, 1)
