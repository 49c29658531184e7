"""Tests of the lab share the product's fixtures."""

from tests.conftest import database, memory, pytest_unconfigure, shared_data

__all__ = ["database", "memory", "pytest_unconfigure", "shared_data"]
