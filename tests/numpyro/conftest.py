"""What tests of private NumPyro programs share."""

from collections.abc import Iterator

import pytest

from tacit.privacy.clipping import gradient


@pytest.fixture(scope="module")
def clip_unverified() -> Iterator[None]:
    """Clips the fast way without comparing it with the reference first.

    That takes most of the time to compile a program, and is tested where clipping is.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient, "is_verified", lambda recipe: True)
        yield
