"""What methods with slots share: transfers per upload, and rounds that fit the slots."""

import pytest

from cabafl.engine.core import Limits
from cabafl.methods.base import Method
from cabafl.methods.ca2fl import CA2FL, CA2FLParameters
from cabafl.methods.fedasync import FedAsync, FedAsyncParameters
from cabafl.methods.fedbuff import FedBuff, FedBuffParameters
from cabafl.methods.fedsa import FedSA, FedSAParameters
from cabafl.methods.gitfl import GitFL, GitFLParameters
from cabafl.methods.safa import SAFA, SAFAParameters
from cabafl.methods.wkafl import WKAFL, WKAFLParameters
from tests.scripted import World, fleet, vector


@pytest.mark.parametrize(
    "method",
    [
        FedAsync(FedAsyncParameters()),
        FedBuff(FedBuffParameters()),
        CA2FL(CA2FLParameters()),
        GitFL(GitFLParameters()),
    ],
    ids=lambda method: method.name,
)
def test_two_transfers_per_upload(method: Method) -> None:
    world = World(
        method,
        fleet([1.0, 1.3, 1.7, 2.1, 0.9]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=30.0),
    ).run()
    assert world.engine.ledger.downloads == world.engine.ledger.uploads + 2


@pytest.mark.parametrize(
    ("method", "key"),
    [
        (FedSA(FedSAParameters(buffer=3)), "buffer"),
        (WKAFL(WKAFLParameters(buffer=3)), "buffer"),
        (SAFA(SAFAParameters(quota=3)), "quota"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_rounds_of_more_uploads_than_slots_are_rejected(method: Method, key: str) -> None:
    method.check(3)
    with pytest.raises(ValueError, match=f"method.{key} = 3: only 2 devices train at a time; accepted: 1 to 2"):
        method.check(2)
