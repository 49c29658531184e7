"""Tests of the lab have the cache of the product's tests."""

from tests.conftest import pytest_unconfigure

__all__ = ["pytest_unconfigure"]
