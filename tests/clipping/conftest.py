"""Every strategy of the catalogue, as a fixture."""

import pytest
from catalogue import CATALOGUE, Entry


@pytest.fixture(scope="session", params=CATALOGUE.values(), ids=CATALOGUE)
def entry(request: pytest.FixtureRequest) -> Entry:
    return request.param
