"""The device's terms: what ``device.toml`` accepts, and how many questions a day are answered."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.config import PrivacySection
from cabafl.deployment.device.allowance import DAY, Allowance
from cabafl.deployment.device.terms import AgainstTerms, Resources, Terms, When
from cabafl.deployment.folder.layout import DEVICE, Device
from cabafl.errors import UserError

HEAD = 'server = "server:1"\nid = 0\npartition-id = 0\n'
PAGE = Path(__file__).parents[2] / "docs" / "device-terms.md"


def load(folder: Path, text: str) -> Device:
    (folder / DEVICE).write_text(HEAD + text)
    return Device.load(folder)


def test_every_key_of_the_file_is_read(tmp_path: Path) -> None:
    device = load(
        tmp_path,
        "[terms]\nlabels = true\nfeature_noise = 1\nfeature_questions_per_day = 4\ndp = true\n"
        '[when]\nfunction = "a.b:c"\nmains_power = true\nbelow_celsius = 70\nhours = "22:30-6"\n'
        "[limits]\nmemory_mb = 800\nnice = 10\n",
    )
    assert device.terms == Terms(labels=True, feature_noise=1.0, feature_questions_per_day=4, dp=True)
    assert device.when == When(function="a.b:c", mains_power=True, below_celsius=70.0, hours="22:30-6")
    assert device.limits == Resources(memory_mb=800, nice=10)
    assert load(tmp_path, "").terms == Terms(labels=False)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "[terms]\nlabel = true",
            "terms.label = True: unknown key, did you mean 'labels'?; accepted in [terms]: ",
        ),
        ('[terms]\nlabels = "yes"', "terms.labels = 'yes': input should be a valid boolean"),
        ("[terms]\nfeature_noise = 0", "terms.feature_noise = 0: input should be greater than 0"),
        ("[terms]\nfeature_noise = inf", "terms.feature_noise = inf: input should be a finite number"),
        ("[terms]\nfeature_questions_per_day = -1", "terms.feature_questions_per_day = -1: input should be greater"),
        ('[when]\nfunction = "night"', "when.function = 'night': not the name of a function; accepted: package.mod"),
        ("[when]\nbelow_celsius = 500", "when.below_celsius = 500: input should be less than or equal to 120"),
        ('[when]\nhours = "22"', "when.hours = '22': not hours of a day; accepted: 22-6 or 22:30-6:15"),
        ('[when]\nhours = "24-6"', "when.hours = '24-6': not hours of a day"),
        ('[when]\nhours = "9:75-12"', "when.hours = '9:75-12': not hours of a day"),
        ('[when]\nhours = "6-6"', "when.hours = '6-6': not hours of a day"),
        ('[when]\nhours = "0-24"', "when.hours = '0-24': not hours of a day"),
        ("[limits]\nmemory_mb = 0", "limits.memory_mb = 0: input should be greater than or equal to 1"),
        ("[limits]\nnice = -5", "limits.nice = -5: input should be greater than or equal to 0"),
    ],
)
def test_wrong_keys_are_named_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"device.toml: {complaint}")) as found:
        load(tmp_path, text)
    assert "\n" not in str(found.value)


@given(st.none() | st.floats(0.01, 10), st.none() | st.floats(0.01, 10), st.floats(0, 10))
def test_noise_is_never_less_than_the_device_wants(floor: float | None, clip: float | None, noise: float) -> None:
    experiment = PrivacySection(feature_clip=clip, feature_noise=0.0 if clip is None else noise)
    terms = Terms(feature_noise=floor)
    used = terms.applied(experiment)
    assert used.feature_clip == clip
    assert used.feature_noise >= experiment.feature_noise
    if clip is not None:
        assert used.feature_noise == max(noise, floor or 0.0)
        terms.check_question("activations", used)
    elif floor is not None:
        with pytest.raises(AgainstTerms):
            terms.check_question("activations", used)


def test_answers_of_any_24_hours_are_counted(tmp_path: Path) -> None:
    now = [1e9]
    allowance = Allowance(tmp_path / "state" / "questions.json", 2, lambda: now[0])
    allowance.spend()
    now[0] += DAY / 2
    allowance.spend()
    with pytest.raises(AgainstTerms, match="feature_questions_per_day = 2: the device has answered 2 in the last 24"):
        allowance.spend()
    now[0] += DAY / 2
    allowance.spend()
    with pytest.raises(AgainstTerms):
        allowance.spend()
    assert json.loads(allowance.file.read_text()) == [1e9 + DAY / 2, 1e9 + DAY]


@given(st.lists(st.floats(0, 2 * DAY), max_size=20), st.integers(0, 5))
def test_no_24_hours_hold_more_answers_than_allowed(
    tmp_path_factory: pytest.TempPathFactory, times: list[float], limit: int
) -> None:
    """Over restarts at every question: each uses a new object with the same file."""
    file = tmp_path_factory.mktemp("device") / "questions.json"
    answered: list[float] = []
    for now in sorted(times):
        try:
            Allowance(file, limit, lambda now=now: now).spend()  # type: ignore[misc]
        except AgainstTerms:
            assert len([then for then in answered if then > now - DAY]) == limit
        else:
            answered.append(now)
    assert all(len([b for b in answered if a <= b < a + DAY]) <= limit for a in answered)


def test_a_clock_set_back_gives_no_answers(tmp_path: Path) -> None:
    now = [1e9]
    Allowance(tmp_path / "questions.json", 1, lambda: now[0]).spend()
    now[0] -= 30 * DAY
    with pytest.raises(AgainstTerms):
        Allowance(tmp_path / "questions.json", 1, lambda: now[0]).spend()


def test_no_limit_needs_no_file(tmp_path: Path) -> None:
    for _ in range(9):
        Allowance(tmp_path / "state/questions.json", None).spend()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{}", "[null]", '["yesterday"]', "\udc80"])
def test_a_damaged_file_is_named_at_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "questions.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"questions.json: not a list of times; delete it to begin to count anew"):
        Allowance(file, 3)


def test_a_folder_that_cannot_be_written_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a folder")
    with pytest.raises(UserError, match=r"questions.json: cannot be (read|written): Not a directory"):
        Allowance(tmp_path / "state" / "questions.json", 3)


def test_an_answer_that_cannot_be_counted_is_not_given(tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    allowance = Allowance(file, 3)
    file.unlink()
    file.mkdir()
    with pytest.raises(
        UserError, match=r"questions.json: cannot be written: .*; terms.feature_questions_per_day needs"
    ):
        allowance.spend()


def test_a_fleet_folder_is_read_without_torch() -> None:
    code = "import sys, cabafl.deployment.folder.layout; sys.exit('torch' in sys.modules)"
    paths = os.pathsep.join(sys.path)
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}).returncode == 0


@pytest.mark.parametrize(("table", "model"), [("terms", Terms), ("when", When), ("limits", Resources)])
def test_every_key_is_documented(table: str, model: type[Terms | When | Resources]) -> None:
    part = PAGE.read_text(encoding="utf-8").split(f"`[{table}]`", 1)[1].split("\n## ", 1)[0]
    assert [key for key in model.model_fields if f"\n| `{key}` |" not in part] == []
