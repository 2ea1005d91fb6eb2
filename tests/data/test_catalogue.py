"""Names, folders, errors for missing files, and an import without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from cabafl.data import DESCRIPTIONS, data_home, load
from cabafl.data.fetch import fetch
from cabafl.data.sources import RECIPES, SOURCES
from cabafl.errors import UserError
from cabafl.names import DATASETS


def test_importing_the_catalogue_does_not_load_torch_or_numpy() -> None:
    code = "import sys, cabafl.data; print(sorted({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_name_is_described() -> None:
    assert tuple(DESCRIPTIONS) == DATASETS
    assert DESCRIPTIONS["femnist"].users
    assert not DESCRIPTIONS["cifar10"].users


def test_every_fetchable_data_set_has_sources() -> None:
    fetchable = {name for name, info in DESCRIPTIONS.items() if info.fetchable}
    assert fetchable == set(SOURCES) == set(RECIPES)


def test_data_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CABAFL_DATA", str(tmp_path))
    assert data_home() == tmp_path
    monkeypatch.delenv("CABAFL_DATA")
    assert data_home() == Path.home() / ".cache" / "cabafl" / "data"


@pytest.mark.parametrize("name", [n for n in DATASETS if n not in ("synthetic", "npz")])
def test_the_error_for_a_missing_file_names_it_and_how_to_get_it(name: str, tmp_path: Path) -> None:
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


def test_the_error_for_an_unknown_name_suggests_the_nearest_one() -> None:
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        load("cifra10")


def test_coarse_labels_need_two_levels() -> None:
    with pytest.raises(UserError, match=r"data\.labels = 'coarse': mnist5k"):
        load("mnist5k", labels="coarse")


def test_what_the_extra_hf_brings_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"needs the package datasets; run `pip install 'cabafl\[hf\]'`"):
        load("hf:somebody/something")
    (tmp_path / "a.parquet").touch()
    with pytest.raises(UserError, match=r"need the package pyarrow; run `pip install 'cabafl\[hf\]'`"):
        fetch("femnist", tmp_path / "target", given=tmp_path / "a.parquet")


def test_a_name_without_content_is_unknown() -> None:
    with pytest.raises(UserError, match=r"data\.dataset = 'hf:': unknown.*hf:NAME_OR_FOLDER"):
        load("hf:")
