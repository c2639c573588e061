"""An archive that every test may read and none may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.format.archives import Sample, make_sample


@pytest.fixture(scope="session")
def sample() -> Sample:
    return make_sample()


@pytest.fixture(scope="session")
def intact(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample on disk."""
    return sample.write(tmp_path_factory.mktemp("intact") / "sample.kvz")


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for property tests, which may not use one that is made anew for each example."""
    return tmp_path_factory.mktemp("scratch")
