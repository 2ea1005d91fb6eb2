"""What the tests of this folder share."""

from tests.execution.lasting import lasting as lasting
from tests.lifecycle.curves import no_pixels as no_pixels
