"""Tests of the lab itself."""

from tests.lab.fixtures import lab

__all__ = ["lab"]
