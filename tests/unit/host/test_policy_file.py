"""The policy file: read, followed, and never replaced by a broken one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from services.guardian.policy import GuardianPolicy
from shared.errors import BadInput
from shared.host.policy import PolicyFile, load_policy


def write(path: Path, text: str, stamp: int) -> None:
    path.write_text(text)
    os.utime(path, ns=(stamp, stamp))


def test_without_a_file_or_a_section_the_defaults_hold(tmp_path: Path) -> None:
    assert load_policy(None, "guardian", GuardianPolicy) == GuardianPolicy()
    file = tmp_path / "policy.yaml"
    file.write_text("remediation: {}\n")
    assert load_policy(file, "guardian", GuardianPolicy) == GuardianPolicy()


def test_a_wrong_value_names_file_section_and_field(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("guardian: {grace_s: soon}\n")
    with pytest.raises(BadInput, match=r"policy\.yaml:guardian\.grace_s"):
        load_policy(file, "guardian", GuardianPolicy)


def test_a_changed_file_is_taken_over_and_a_broken_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    write(file, "guardian: {dry_run: false}\n", 1)
    policy = PolicyFile(file, "guardian", GuardianPolicy)
    assert not policy.current().dry_run
    assert not policy.refresh()
    write(file, "guardian: {grace_s: 7}\n", 2)
    assert policy.refresh()
    assert policy.current().grace_s == 7
    write(file, "guardian: {grace_s: -7}\n", 3)
    assert not policy.refresh()
    assert policy.current().grace_s == 7
    file.unlink()
    assert not policy.refresh()
    assert policy.current().grace_s == 7


@pytest.mark.looptime
async def test_it_follows_its_file() -> None:

    policy = PolicyFile(None, "guardian", GuardianPolicy)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(policy.follow(), 10)
    assert policy.current() == GuardianPolicy()
