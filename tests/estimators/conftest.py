import warnings

import pytest

from tacit import PrivacyWarning
from tacit.estimators import forget_fits


@pytest.fixture(autouse=True)
def _tests_share_no_memory_of_fits():
    forget_fits()
    with warnings.catch_warnings():
        # Small tables have a large delta; tests of warnings ask for them by name.
        warnings.filterwarnings("ignore", "delta=", PrivacyWarning)
        yield
    forget_fits()
