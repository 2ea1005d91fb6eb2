"""What the tests of this folder share."""

from tests.lifecycle.curves import no_pixels as no_pixels
