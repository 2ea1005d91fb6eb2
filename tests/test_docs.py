"""The documentation agrees with the program: keys, figures, events, links and examples."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from cabafl import methods, models
from cabafl.checked import load_checked
from cabafl.cli.main import app
from cabafl.config import Experiment, load_experiment
from cabafl.data.catalogue import DESCRIPTIONS
from cabafl.engine.changes import CHANGEABLE
from cabafl.lifecycle.simulate import simulate
from cabafl.samples import load_data, make_data

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")])
QUICK = ["data.dataset=synthetic", "data.devices=10", "model.name=mlp", "run.virtual_time=60", "run.evaluate_every=4"]
QUICK += ["run.workers=0"]


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section_keys() -> list[tuple[str, str]]:
    found = [("", "seed")]
    for section, field in Experiment.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += [(section, key) for key in field.annotation.model_fields]
    return found


def test_every_section_of_an_experiment_is_in_the_reference() -> None:
    text = page("reference/running.md")
    for name, field in Experiment.model_fields.items():
        assert isinstance(field.annotation, type)
        assert f"| `{name}` | `{field.annotation.__name__}` |" in text


def inner_keys() -> list[tuple[str, str]]:
    """Keys of tables inside a section, such as ``[fleet.faults]``."""
    found = []
    for section, field in Experiment.model_fields.items():
        for inner, table in getattr(field.annotation, "model_fields", {}).items():
            found += [(f"{section}.{inner}", key) for key in getattr(table.annotation, "model_fields", {})]
    return found


def method_keys() -> list[tuple[str, str]]:
    return [(name, key) for name in methods.NAMES for key in methods.find(name).Parameters.model_fields]


@pytest.mark.parametrize(("section", "key"), section_keys())
def test_every_key_of_the_experiment_is_explained_under_its_section(section: str, key: str) -> None:
    text = page("experiment-file.md")
    part = text.split(f"\n## `[{section}]`", 1)[1].split("\n## ", 1)[0] if section else text
    assert f"\n| `{key}` |" in part


@pytest.mark.parametrize(("table", "key"), inner_keys())
def test_every_key_of_an_inner_table_is_explained_under_it(table: str, key: str) -> None:
    part = page("experiment-file.md").split(f"\n### `[{table}]`", 1)[1].split("\n##", 1)[0]
    assert f"\n| `{key}` |" in part


def test_every_setting_that_may_change_is_named() -> None:
    words = " ".join(page("experiment-file.md").split())
    sentence = words.split("may also change while a run on real devices goes on", 1)[1].split("A default of", 1)[0]
    names = [key.split(".")[-1] for key in CHANGEABLE if not key.startswith("run.defence.")]
    assert [name for name in names if f"`{name}`" not in sentence] == []


@pytest.mark.parametrize(("method", "key"), method_keys())
def test_every_key_of_a_method_is_explained(method: str, key: str) -> None:
    assert f"| `{key}` |" in page("experiment-file.md").split(f"### `{method}`", 1)[1].split("\n##", 1)[0]


def test_every_command_is_in_the_table_of_commands() -> None:
    names = [each.name for each in app.registered_commands] + [each.name for each in app.registered_groups]
    assert len(names) > 10
    assert [name for name in names if f"`cabafl {name}" not in page("getting-started.md")] == []


def test_layers_of_the_architecture_page_are_those_that_are_checked() -> None:
    checked = (ROOT / ".importlinter").read_text(encoding="utf-8").split("layers =\n")[1].split()
    shown = page("architecture.md").split("those on one line")[1].split("```")[1].split()
    assert shown == [name.removeprefix("cabafl.") for name in checked]


def test_every_package_and_module_is_explained_on_the_architecture_page() -> None:
    paths = sorted((ROOT / "src" / "cabafl").iterdir())
    names = [path.name for path in paths if path.suffix == ".py" and "__" not in path.name]
    names += [f"{path.name}/" for path in paths if path.is_dir() and "__" not in path.name]
    table = page("architecture.md").split("\n## Packages and modules\n")[1].split("\n\n")[1]
    assert len(names) > 20
    assert [name for name in names if f"`{name}`" not in table] == []


def test_files_named_on_the_architecture_page_exist() -> None:
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)[`:]", page("architecture.md"))
    assert len(named) > 20
    package = ROOT / "src" / "cabafl"
    folders = [package, package / "deployment", ROOT]  # what is said of real devices names its own folders
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


def test_every_data_set_and_network_is_explained() -> None:
    assert [name for name in DESCRIPTIONS if f"| `{name}` |" not in page("data.md")] == []
    assert [name for name in models.NETWORKS if f"| `{name}` |" not in page("models.md")] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_are_not_broken(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    missing = [t for t in targets if not t.startswith("http") and not (path.parent / t).exists()]
    assert missing == []


def on_github(path: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_anchors_exist_on_github_too(path: Path) -> None:
    """`make docs` checks those of the site. The API reference has its own, which are made from the code."""
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", path.read_text(encoding="utf-8"))
    own = [(path.parent / page if page else path, anchor) for page, anchor in links if not page.startswith("http")]
    assert [anchor for page, anchor in own if page.parent != DOCS / "reference" and anchor not in on_github(page)] == []


def test_example_files_named_in_the_documents_exist() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert [f for f in re.findall(r"experiments/[\w.-]+\.toml", text) if not (ROOT / f).is_file()] == []


@pytest.fixture
def example_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))


@pytest.mark.usefixtures("example_folder")
def test_example_method_learns(tmp_path: Path) -> None:
    settings = [*QUICK, "run.virtual_time=300", "fleet.slots=3", "training.learning_rate=0.1"]
    settings += ["method.name=my_method:Mixing", "method.share=0.6"]
    result = simulate(load_experiment(None, settings), tmp_path / "run")
    assert result.summary["versions"] == result.summary["uploads"] > 100
    assert result.summary["final_accuracy"] > 0.5
    assert '"share":0.6' in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.usefixtures("example_folder")
def test_example_method_survives_devices_that_time_out() -> None:
    """As many slots as devices: after a loss no device is idle, and the slot must wait for the late device."""
    slow = ["fleet.seconds_per_sample=0.1", "fleet.slots=10", "run.slot_timeout=6"]
    summary = simulate(load_experiment(None, [*QUICK, *slow, "method.name=my_method:Mixing"])).summary
    assert summary["losses"]["timeout"] > 5
    assert summary["downloads"] - summary["uploads"] - summary["losses"]["timeout"] == 10  # no slot is lost at the end


@pytest.mark.usefixtures("example_folder")
def test_example_model_works() -> None:
    result = simulate(load_experiment(None, [*QUICK, "model.name=my_model:TwoLayers"]))
    assert type(result.model).__name__ == "TwoLayers"


@pytest.mark.usefixtures("example_folder")
def test_example_logger_works(tmp_path: Path) -> None:
    result = simulate(load_experiment(None, [*QUICK, "run.log=my_logger:JsonLines"]), tmp_path / "run")
    *lines, end = (json.loads(line) for line in (tmp_path / "run/figures.jsonl").read_text().splitlines())
    assert [line["accuracy"] for line in lines] == result.metrics["accuracy"].tolist()
    assert [line["step"] for line in lines] == list(range(len(result.metrics)))
    assert end == {"best": result.metrics["accuracy"].max(), "model": str(tmp_path / "run/model.safetensors")}


def test_example_method_is_the_one_in_the_document() -> None:
    for kind in ("method", "model", "task", "logger"):
        example = (DOCS / "examples" / f"my_{kind}.py").read_text(encoding="utf-8")
        assert example in page(f"{kind}s.md")


def test_run_folder_page_names_every_file_figure_column_and_event(tmp_path: Path) -> None:
    result = simulate(load_experiment(None, QUICK), tmp_path / "run")
    text = page("run-folder.md")
    events: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().split()]
    names = {re.sub(r"-\d+\.", "-N.", path.name) for path in (tmp_path / "run").iterdir()}
    names |= set(result.summary) | set(result.metrics.columns)
    names |= {event["event"] for event in events} | {key for event in events for key in event}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_python_example_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same code with a shorter run."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    short = re.sub(r'"virtual_time": \d+', '"virtual_time": 30', code.group(1))
    assert short != code.group(1)
    exec(compile(short, "README.md", "exec"), {})


def commands() -> list[tuple[str, list[str]]]:
    """The words of each `cabafl run`, `config`, `compare` and `sweep` of the code blocks, with its page."""
    found = []
    for path in PAGES:
        for block in re.findall(r"^ *```\w*\n(.*?)^ *```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"\s*(\$ )?cabafl (run|config|compare|sweep) ", line):
                    found += [(path.name, shlex.split(part, comments=True)) for part in line.strip("$ ").split(" && ")]
    return found


def test_commands_of_the_documents_have_settings_that_are_accepted() -> None:
    data = load_data(Experiment())
    tried = set()
    for name, words in commands():
        settings = [word for word in words if re.match(r"(seed|[a-z]+\.[a-z_.0-9]+)=", word)]
        sections = {word.split(".")[0].split("=")[0] for word in settings}
        own = any(re.search(r"=(my_|mine)\w*:|=mymethod|__main__", word) for word in settings)
        if own or not sections <= set(Experiment.model_fields) or (words[1] == "sweep" and not settings):
            continue  # code of the reader, or keys of one method
        for beta in re.findall(r"data\.beta=(\S+)", " ".join(settings)):
            if "data.dataset" not in " ".join(settings) and not any(word.endswith(".toml") for word in words[2:3]):
                for value in beta.split(","):
                    make_data(load_experiment(None, [f"data.beta={value}"]), data)
                    tried.add((name, value))
        if words[1] in ("run", "config"):
            load_checked(None, settings)
    assert {("README.md", "0.2"), ("getting-started.md", "0.2"), ("comparing.md", "1.0")} <= tried
