"""A device with a valid certificate that uses MQTT itself against the server."""

from collections.abc import Iterator

import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cabafl.deployment.broker import find_mosquitto, start_broker
from cabafl.deployment.folder.layout import FleetFolder
from cabafl.deployment.messages import Declined, Gone, Nonsense
from cabafl.deployment.mqtt.flood import MOST_MESSAGES
from cabafl.deployment.mqtt.link import here_topic, up_topic
from cabafl.processes.children import Children
from tests.deployment.raw_mqtt import OK, certificate_of, clients, local_fleet, publish_packet, raw, tls, user_property
from tests.deployment.test_broker import office

if find_mosquitto() is None:
    pytest.skip("needs Mosquitto 2 (Debian: apt-get install mosquitto)", allow_module_level=True)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetFolder]:
    """Two devices and a running broker."""
    made = local_fleet(tmp_path_factory.mktemp("fleet") / "fleet", 2)
    with Children(made.state / "logs") as children:
        start_broker(children, made)
        yield made


@pytest.mark.parametrize(("topic", "retain"), [(up_topic(0), False), (here_topic(0), True)])
def test_a_message_that_need_not_be_acknowledged_does_not_disconnect_the_server(
    fleet: FleetFolder, topic: str, retain: bool
) -> None:
    with office(fleet, "qos") as server, raw(fleet, tls(fleet, certificate_of(fleet, 0))) as sock:
        for _ in range(5):
            sock.sendall(publish_packet(topic, b"x", qos=0, retain=retain))
        with clients(fleet, 1) as [other]:
            for _ in range(5):
                assert other.publish(here_topic(1), b"") == OK
                server.wait(Gone, 1)
        assert server.carrier.connections == 1
        assert not any(news.device == 0 for news in server.news)


def test_properties_that_the_library_refuses_do_not_disconnect_the_server(fleet: FleetFolder) -> None:
    with office(fleet, "properties") as server, raw(fleet, tls(fleet, certificate_of(fleet, 0))) as sock:
        for value in ("\ufeff", "x" * 60):
            sock.sendall(publish_packet(up_topic(0), b"x", properties=user_property(value)))
            assert server.wait(Nonsense, 0).text == "not a CaBaFL message"
        assert server.carrier.connections == 1


def test_a_flood_does_not_keep_others_from_being_heard(fleet: FleetFolder) -> None:
    with office(fleet, "flood") as server, raw(fleet, tls(fleet, certificate_of(fleet, 0))) as sock:
        sock.sendall(publish_packet(up_topic(0), b"x") * (2 * MOST_MESSAGES))
        assert "floods the broker" in server.wait(Declined, 0).text
        heard = sum(news.device == 0 for news in server.news)
        with clients(fleet, 1) as [other]:
            for _ in range(5):
                sock.sendall(publish_packet(up_topic(0), b"x") * 100)
                assert other.publish(here_topic(1), b"") == OK
                server.wait(Gone, 1)
        assert heard <= 2 * MOST_MESSAGES
        assert sum(news.device == 0 for news in server.news) == heard, "not a word of it any more"
        assert server.carrier.connections == 1
