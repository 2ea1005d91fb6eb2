"""The jobs in flight on real devices, and what their devices have to be told."""

from collections.abc import Iterable

from cabafl.engine.core import Flight
from cabafl.engine.orders import Orders


class OpenJobs:
    """Each job is one that its device works on, one that is held, or one that was given up. Orders wait here until the
    server sends them; a checkpoint does not include them, because after a restart they follow from the jobs."""

    def __init__(self) -> None:
        self.flights: dict[int, Flight] = {}
        self.pending: dict[int, None] = {}  # jobs that devices work on and that are not given up, by `Flight.since`
        self.held: dict[int, None] = {}  # jobs whose devices hold the result
        self.job_of: dict[int, int] = {}  # by device
        self.clear_orders()

    def clear_orders(self) -> None:
        """Forgets all orders."""
        self.sent: list[int] = []
        self.cancelled: list[tuple[int, int]] = []
        self.finished: list[int] = []
        self.fetched: list[int] = []

    def add(self, flight: Flight) -> None:
        """A new job, which is to be sent."""
        self.flights[flight.number] = flight
        self.job_of[flight.device] = flight.number
        self.pending[flight.number] = None
        self.sent.append(flight.number)

    def of_device(self, device: int) -> Flight | None:
        """The job that a device is working on, if any."""
        number = self.job_of.get(device)
        return None if number is None else self.flights[number]

    def land(self, number: int) -> Flight | None:
        """Takes a job out; None if it is not one of these."""
        flight = self.flights.pop(number, None)
        if flight is not None:
            del self.job_of[flight.device]
            self.pending.pop(number, None)
            self.held.pop(number, None)
        return flight

    def hold(self, flight: Flight) -> None:
        """The device of a job holds its result from now on."""
        flight.ready = True
        del self.pending[flight.number]
        self.held[flight.number] = None

    def fetch(self, flight: Flight) -> None:
        """The device of a job is to upload the result that it holds."""
        del self.held[flight.number]
        self.pending[flight.number] = None
        self.fetched.append(flight.number)

    def give_up(self, flight: Flight) -> None:
        """The server no longer waits for a job; its device is busy until it answers or says that it has stopped."""
        del self.pending[flight.number]
        flight.abandoned = True
        self.cancel(flight)

    def cancel(self, flight: Flight) -> None:
        """The device of a job need not go on with it."""
        self.cancelled.append((flight.number, flight.device))

    def cancel_all(self) -> None:
        """No job is waited for any more."""
        for number in (*self.pending, *self.held):
            self.cancel(self.flights[number])

    def oldest(self) -> Flight | None:
        """The job that the server has waited for longest."""
        return self.flights[next(iter(self.pending))] if self.pending else None

    def take_orders(self, ask: bool) -> Orders:
        """Returns each order once; not those to jobs that have ended since."""
        sent, finished, fetched = (
            [job for job in listed if job in self.pending] for listed in (self.sent, self.finished, self.fetched)
        )
        orders = Orders(sent, ask, self.cancelled, finished, fetched)
        self.clear_orders()
        return orders

    def restore(self, flights: dict[int, Flight], pending: Iterable[int]) -> None:
        """Continues with the jobs of a checkpoint."""
        self.flights = flights
        self.job_of = {flight.device: number for number, flight in flights.items()}
        self.pending = dict.fromkeys(pending)
        self.held = {number: None for number, flight in flights.items() if flight.held}
