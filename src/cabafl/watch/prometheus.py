"""The figures of all runs in Prometheus' text format."""

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cabafl.watch.fleet_views import FleetView
from cabafl.watch.shelf import Shelf
from cabafl.watch.watched import WatchedRun

CONTENT_TYPE = CONTENT_TYPE_LATEST
LABELS = ("run", "id", "method", "dataset", "seed")
STATES = ("running", "finished", "stalled", "failed")
_GAUGES = {
    "progress": ("cabafl_progress_ratio", "Share of the run that is done."),
    "time": ("cabafl_time_seconds", "How far the run is on its clock."),
    "value": ("cabafl_metric", "The metric of the last evaluation."),
    "averaged_value": ("cabafl_averaged_metric", "The metric of the averaged model."),
    "loss": ("cabafl_test_loss", "The loss of the last evaluation."),
    "version": ("cabafl_version", "Models published."),
    "in_flight": ("cabafl_jobs_in_flight", "Jobs under way."),
}
_COUNTERS = {
    "uploads": ("cabafl_uploads", "Models that came back."),
    "events": ("cabafl_events", "Events read."),
    "transfers": ("cabafl_transfers", "One-way transfers of a model."),
    "bytes": ("cabafl_transferred_bytes", "Size of all transfers."),
    "joules": ("cabafl_joules", "Energy of the devices."),
}


class _RunFigures(Collector):
    """Asks the shelf anew at each scrape."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def collect(self) -> Iterator[Metric]:
        """All families."""
        gauges = {key: GaugeMetricFamily(name, text, labels=LABELS) for key, (name, text) in _GAUGES.items()}
        counters = {key: CounterMetricFamily(name, text, labels=LABELS) for key, (name, text) in _COUNTERS.items()}
        states = GaugeMetricFamily("cabafl_run_state", "1 for the state of the run.", labels=(*LABELS, "state"))
        losses = CounterMetricFamily("cabafl_losses", "Jobs lost.", labels=(*LABELS, "reason"))
        devices = GaugeMetricFamily("cabafl_devices", "Devices by state.", labels=(*LABELS, "state"))
        for run in list(self.shelf.runs.values()):
            try:
                row, present = run.row(), self._devices(run)
            except Exception as error:  # one run that cannot be shown is no reason to show no other
                run.give_up(error)
                continue
            labels = [row["name"], row["id"], row["method"], row["dataset"], str(row["seed"])]
            for key, gauge in gauges.items():
                if row[key] is not None:
                    gauge.add_metric(labels, float(row[key]))
            for key, counter in counters.items():
                if row[key] is not None:
                    counter.add_metric(labels, float(row[key]))
            for state in STATES:
                states.add_metric([*labels, state], float(row["state"] == state))
            for reason, count in run.losses.items():
                losses.add_metric([*labels, reason], float(count))
            for state, count in present.items():
                devices.add_metric([*labels, state], float(count))
        yield from (*gauges.values(), *counters.values(), states, losses, devices)

    def _devices(self, run: WatchedRun) -> dict[str, int]:
        """Of runs that go on."""
        if run.state not in ("running", "stalled"):
            return {}
        with run.lock:
            found: dict[str, int] = FleetView(run, None, self.shelf.fleet_of(run)).at()["devices"]
        return found


def exposition(shelf: Shelf) -> bytes:
    """The text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RunFigures(shelf))
    return generate_latest(registry)
