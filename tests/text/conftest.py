"""Makes the helper modules `vocabularies` and `schemas` importable, and loads the shipped model."""

import sys
from pathlib import Path

import pytest

import jubako
from jubako.cli.open import small_model as small_files
from jubako.engine.model import Model

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def small_model() -> Model:
    return jubako.load(small_files(), threads=1)
