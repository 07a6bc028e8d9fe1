"""The lab's cgroups, on cgroup v1 (each hierarchy by itself) and v2.

A kubelet makes its own groups below `/<lab>/<node>` but wants that one to exist. On v1 a new cpuset is empty
and takes no process until it is filled. On v2 a group hands controllers down only while no process is in it,
except the machine's real root: in a container the processes at the top are moved aside first, and back on
the way down.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.lab.system import LabError, until

_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")
_NEEDED = {"cpuset", "cpu", "memory", "pids"}


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where this machine's cgroups are mounted."""

    v1: tuple[Path, ...]
    v2: Path | None
    """Only where it has the controllers."""
    hybrid: Path | None = None
    """The unified folder beside v1: it serves nothing here, but runtimes make their groups in it too."""

    @property
    def all(self) -> tuple[Path, ...]:
        """Every folder where groups of a lab may be."""
        return (*self.v1, *(each for each in (self.v2, self.hybrid) if each is not None))


def hierarchies() -> Hierarchies:
    """Read the mounts (proc_pid_mountinfo(5))."""
    first: list[Path] = []
    second: Path | None = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        place, kind = Path(left.split()[4]), right.split()[0]
        if kind == "cgroup" and place not in first:
            first.append(place)
        if kind == "cgroup2":
            second = place
    if first:
        return Hierarchies(tuple(first), None, second)
    if second is None or not set((second / "cgroup.controllers").read_text().split()) >= _NEEDED:
        raise LabError("no cgroups with cpu, cpuset, memory and pids here: run the lab where root has them")
    return Hierarchies((), second)


def make(lab: str, nodes: list[str], notes: Path) -> None:
    """Make the groups of a lab; what is changed above them is noted for `remove`."""
    found = hierarchies()
    for top in found.v1:
        for group in (top / lab, *(top / lab / each for each in nodes)):
            group.mkdir(exist_ok=True)
            for knob in ("cpuset.cpus", "cpuset.mems"):
                if (group / knob).exists():
                    (group / knob).write_text((group.parent / knob).read_text())
    if found.v2 is not None:
        _delegate(found.v2, notes, aside=f"{lab}-aside")
        for group in (found.v2 / lab, *(found.v2 / lab / each for each in nodes)):
            group.mkdir(exist_ok=True)
            if group.name == lab:
                _enable(group)


def _enable(group: Path) -> None:
    there = set((group / "cgroup.controllers").read_text().split())
    wanted = " ".join(f"+{each}" for each in _CONTROLLERS if each in there)
    (group / "cgroup.subtree_control").write_text(wanted)


def _delegate(top: Path, notes: Path, *, aside: str) -> None:
    before = (top / "cgroup.subtree_control").read_text().split()
    moved = False
    try:
        _enable(top)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        (top / aside).mkdir(exist_ok=True)
        moved = _move(top, top / aside)
        _enable(top)
    added = sorted(set((top / "cgroup.subtree_control").read_text().split()) - set(before))
    notes.write_text(json.dumps({"added": added, "aside": aside if moved else ""}))


def _pids(group: Path) -> list[int]:
    try:
        return [int(each) for each in (group / "cgroup.procs").read_text().split()]
    except (FileNotFoundError, OSError):
        return []


def _move(source: Path, target: Path) -> bool:
    moved = False
    for _ in range(5):  # what is forked meanwhile is moved in the next round
        for pid in _pids(source):
            if pid:  # 0 stands for a process of another pid namespace
                with contextlib.suppress(ProcessLookupError, OSError):
                    (target / "cgroup.procs").write_text(str(pid))
                    moved = True
    return moved


def groups(lab: str) -> list[Path]:
    """All groups of a lab that exist, the deepest first."""
    tops = [top / lab for top in hierarchies().all]
    return [Path(folder) for top in tops if top.exists() for folder, _, _ in os.walk(top, topdown=False)]


async def remove(lab: str, notes: Path) -> None:
    """Kill what is left in the lab's groups, remove them and undo what was changed above."""

    def gone() -> bool:
        for group in groups(lab):
            for pid in _pids(group):
                if pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):  # busy until its processes are reaped
                group.rmdir()
        return not groups(lab)

    await until(gone, timeout_s=20, otherwise=f"cgroups of {lab} stay busy: {groups(lab)[:1]}")
    _restore(notes)


def _restore(notes: Path) -> None:
    top = hierarchies().v2
    if top is None or not notes.exists():
        return
    noted = json.loads(notes.read_text())
    if noted["added"]:
        with contextlib.suppress(OSError):  # somebody else has groups that use them by now
            (top / "cgroup.subtree_control").write_text(" ".join(f"-{each}" for each in noted["added"]))
    if noted["aside"]:
        _move(top / noted["aside"], top)
        with contextlib.suppress(OSError):
            (top / noted["aside"]).rmdir()
    notes.unlink()
