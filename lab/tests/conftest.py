"""Tests of the lab share the product's fixtures and how its tests are given to workers."""

from tests.conftest import pytest_collection_modifyitems, pytest_unconfigure

__all__ = ["pytest_collection_modifyitems", "pytest_unconfigure"]
