"""The demo as a user runs it: real processes, judged by its exit code and its output."""

import asyncio
import signal
import sys
from pathlib import Path

import orjson
import pytest

COMMAND = (sys.executable, "-m", "services.console", "demo")


async def start(*arguments: str, tmp: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp), "PYTHONPATH": str(Path(__file__).parents[2])},
    )


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Socket paths have 107 bytes, and pytest's own directories are long."""
    path = Path("/tmp") / f"mft-{tmp_path_factory.getbasetemp().name[-8:]}"  # noqa: S108 - as above
    path.mkdir(exist_ok=True)
    return path


def left_in(directory: Path) -> list[str]:
    """Files below a directory, and processes that were told of it."""
    found = [str(path) for path in directory.iterdir()]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if bytes(directory) in environment:
                found.append(entry.name)
    return found


@pytest.mark.timeout(170)
async def test_the_demo_sees_every_step_and_tells_it_to_machines(short: Path) -> None:
    process = await start("--seed", "5", "--json", tmp=short)
    out, err = await process.communicate()
    said = [orjson.loads(line) for line in out.splitlines()]
    failed = [each for each in said if each["kind"] == "check" and not each["passed"]]
    assert (process.returncode, failed) == (0, []), err.decode()
    assert said[-1]["kind"] == "verdict"
    assert said[-1]["passed"]
    facts = {each["type"] for each in said if each["kind"] == "event"}
    assert {"io.mediafleet.remediation.quarantined.v1", "io.mediafleet.sla.restored.v1"} <= facts
    chain = next(each for each in said if each["kind"] == "chain")
    assert len(chain["events"]) > 5
    assert left_in(short) == []


@pytest.mark.timeout(60)
async def test_a_stopped_demo_leaves_nothing_behind_even_when_told_twice(short: Path) -> None:
    process = await start("--json", tmp=short)
    assert process.stdout is not None
    await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    await process.communicate()
    assert process.returncode == 130
    assert left_in(short) == []
