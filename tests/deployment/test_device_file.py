"""``device.toml``: the device's settings and its owner's terms, and one line for what is wrong."""

from pathlib import Path

import pytest

from cabafl.deployment.device.terms import Resources, Terms, When
from cabafl.deployment.folder.layout import Device, FleetFolder, FleetSettings
from cabafl.errors import UserError

FIRST = 'server = "server.example.org:8883"\nid = 7\npartition-id = 3\n'


def load(folder: Path, text: str) -> Device:
    (folder / "device.toml").write_text(text, encoding="utf-8")
    return Device.load(folder)


def test_without_terms_a_device_reports_no_labels_and_trains_always(tmp_path: Path) -> None:
    device = load(tmp_path, FIRST)
    assert (device.id, device.partition, device.user, device.heartbeat) == (7, 3, "device-007", 30)
    assert device.terms == Terms(labels=False, feature_noise=None, feature_questions_per_day=None, dp=False)
    assert device.when == When(function=None, mains_power=False, below_celsius=None, hours=None)
    assert device.limits == Resources(memory_mb=None, nice=None)


def test_all_terms_are_read(tmp_path: Path) -> None:
    text = (
        "[terms]\nlabels = true\nfeature_noise = 2\nfeature_questions_per_day = 0\ndp = true\n"
        '[when]\nfunction = "home.power:idle"\nmains_power = true\nbelow_celsius = 70.0\nhours = "22-6"\n'
        "[limits]\nmemory_mb = 2048\nnice = 10\n"
    )
    device = load(tmp_path, FIRST + "heartbeat = 5\nwatts = 7\nidle_watts = 1.5\nsensor = false\n" + text)
    assert (device.heartbeat, device.watts, device.idle_watts, device.sensor) == (5, 7.0, 1.5, False)
    assert device.terms == Terms(labels=True, feature_noise=2.0, feature_questions_per_day=0, dp=True)
    assert device.when == When(function="home.power:idle", mains_power=True, below_celsius=70.0, hours="22-6")
    assert device.limits == Resources(memory_mb=2048, nice=10)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("heartbeat = 4", "heartbeat = 4: input should be greater than or equal to 5"),
        ("heartbeat = 30.5", "heartbeat = 30.5: input should be a valid integer"),
        ("partition_id = 1", "partition_id = 1: unknown key, did you mean 'partition-id'?; accepted here: server, id,"),
        ('data = "readings"', "data = 'readings': not the name of a function; accepted: package.module:function"),
        ("[term]", "term = {}: unknown key, did you mean 'terms'?"),
        ("[terms]\nlabel = true", "terms.label = True: unknown key, did you mean 'labels'?; accepted in [terms]"),
        ('[terms]\ndp = "yes"', "terms.dp = 'yes': input should be a valid boolean"),
        ("[terms]\nfeature_noise = nan", "terms.feature_noise = nan: input should be a finite number"),
        (
            "[terms]\nfeature_questions_per_day = 0.5",
            "terms.feature_questions_per_day = 0.5: input should be a valid i",
        ),
        ('[when]\nhours = "22"', "when.hours = '22': not hours of a day; accepted: 22-6 or"),
        ('[when]\nhours = "6-6"', "when.hours = '6-6': not hours of a day"),
        ('[when]\nhours = "7-25"', "when.hours = '7-25': not hours of a day"),
        (
            '[when]\nfunction = "a b:c"',
            "when.function = 'a b:c': not the name of a function; accepted: package.module:function",
        ),
        ("[limits]\nnice = -1", "limits.nice = -1: input should be greater than or equal to 0"),
    ],
)
def test_a_wrong_setting_is_one_line_with_file_key_and_value(text: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, f"{FIRST}{text}\n")
    assert str(caught.value).startswith(f"{tmp_path}/device.toml: {line}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("server", ["https://server", "server", "server:0", "server:70000", "2001:db8::7:8883"])
def test_a_wrong_address_is_one_line(server: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"device\.toml: server = '.*': not an address; accepted: server.example.org:8"):
        load(tmp_path, f'server = "{server}"\nid = 0\npartition-id = 0\n')


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".org"])
def test_a_host_that_cannot_be_looked_up_is_one_line(tmp_path: Path, host: str) -> None:
    with pytest.raises(UserError, match=r"server = .*: not an address; accepted: server\.example\.org:8883"):
        load(tmp_path, FIRST.replace("server.example.org", host))


def test_a_fleet_without_its_devices_folder_has_no_devices(tmp_path: Path) -> None:
    assert FleetFolder(tmp_path, FleetSettings(name=("server.example.org",))).device_folders() == {}
