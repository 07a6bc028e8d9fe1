"""The kernel log by the syslog call, on rings that the tests write."""

from contextlib import aclosing
from pathlib import Path

import pytest

from services.discovery import klog
from services.discovery.klog import Ring, follow
from services.discovery.kmsg import can_open
from shared.vendors import kernel_lines

XID = b"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."


class Kernel:
    """A ring of so many bytes."""

    def __init__(self, size: int = 1 << 20) -> None:
        self.text, self.size, self.asked = b"", size, 0

    def says(self, *lines: bytes) -> None:
        self.text = (self.text + b"".join(line + b"\n" for line in lines))[-self.size :]
        self.text = self.text[self.text.index(b"<") :]

    def read(self, size: int) -> bytes:
        """Whole lines, as the kernel gives them."""
        self.asked += size
        if len(self.text) <= size:
            return self.text
        return self.text[self.text.index(b"\n<", len(self.text) - size - 1) + 1 :]


def ring(kernel: Kernel) -> Ring:
    return Ring(kernel.read, kernel.size)


def test_lines_become_records_with_their_time_as_number() -> None:
    kernel = Kernel()
    kernel.says(b"<6>[ 1234.567890] " + XID)
    (record,) = ring(kernel).news()
    assert record == b"6,1234567890000,1234567890,-;" + XID
    evidence = kernel_lines.parse(record)
    assert evidence is not None
    assert (evidence.code, evidence.since_boot_s) == ("79", 1234.56789)


def test_what_was_seen_is_not_given_again() -> None:
    kernel = Kernel()
    kernel.says(b"<6>[    1.000000] one")
    seen = ring(kernel)
    assert len(seen.news()) == 1
    assert seen.news() == []
    kernel.says(b"<6>[    2.000000] two", b"<6>[    3.000000] three")
    assert [record.rpartition(b";")[2] for record in seen.news()] == [b"two", b"three"]
    assert seen.news() == []


def test_lines_of_one_microsecond_keep_their_order_over_reads() -> None:
    kernel = Kernel()
    kernel.says(b"<6>[    1.000000] a", b"<6>[    1.000000] b")
    seen = ring(kernel)
    numbers = [kernel_lines.sequence_of(record) for record in seen.news()]
    kernel.says(b"<6>[    1.000000] c", b"<6>[    1.000001] d")
    numbers += [kernel_lines.sequence_of(record) for record in seen.news()]
    assert numbers == [1_000_000_000, 1_000_000_001, 1_000_000_002, 1_000_001_000]


def test_what_programs_wrote_themselves_is_no_record() -> None:
    kernel = Kernel()
    kernel.says(b"<12>[    1.000000] " + XID)
    assert ring(kernel).news() == []


def test_a_kernel_without_times_gives_text_without_numbers() -> None:
    kernel = Kernel()
    kernel.says(b"<6>" + XID)
    (record,) = ring(kernel).news()
    assert record == XID
    assert kernel_lines.sequence_of(record) is None


def test_the_thread_that_spoke_is_left_out() -> None:
    kernel = Kernel()
    kernel.says(b"<4>[    1.000000][  T123] pcieport 0000:00:01.0: words")
    assert ring(kernel).news() == [b"4,1000000000,1000000,-;pcieport 0000:00:01.0: words"]


def test_more_than_the_tail_is_found_in_the_whole_ring() -> None:
    kernel = Kernel()
    kernel.says(b"<6>[    0.000001] first")
    seen = ring(kernel)
    seen.news()
    kernel.says(*(b"<6>[ %4d.000000] %s" % (number, b"x" * 200) for number in range(1, 1001)))
    assert len(seen.news()) == 1000


def test_a_ring_that_overran_goes_on_with_what_it_holds() -> None:
    kernel = Kernel(size=4096)
    kernel.says(b"<6>[    0.000001] first")
    seen = ring(kernel)
    seen.news()
    kernel.says(*(b"<6>[ %4d.000000] %s" % (number, b"x" * 60) for number in range(1, 1001)))
    records = seen.news()
    assert 0 < len(records) < 1000
    assert records[-1].startswith(b"6,1000000000000,")
    assert seen.news() == []


def test_a_quiet_log_costs_only_its_tail() -> None:
    kernel = Kernel()
    kernel.says(*(b"<6>[ %4d.000000] %s" % (number, b"x" * 200) for number in range(1000)))
    seen = ring(kernel)
    seen.news()
    kernel.asked = 0
    seen.news()
    assert kernel.asked == 65536


async def test_following_gives_what_stands_and_then_what_comes() -> None:
    kernel = Kernel()
    kernel.says(b"<6>[    1.000000] one")
    async with aclosing(follow(poll_s=0.001, read=kernel.read, size=lambda: kernel.size)) as records:
        assert len(await anext(records)) == 1
        kernel.says(b"<6>[    2.000000] two")
        assert [record[-3:] for record in await anext(records)] == [b"two"]


def test_without_the_right_it_is_said_and_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(size: int) -> bytes:
        raise PermissionError(1, f"not permitted to read {size}")

    monkeypatch.setattr(klog, "read_ring", refused)
    assert klog.allowed() is False
    monkeypatch.setattr(klog, "read_ring", lambda _: b"")
    assert klog.allowed() is True


@pytest.mark.skipif(not klog.allowed(), reason="reading the ring needs CAP_SYSLOG where dmesg is restricted")
def test_the_real_ring_gives_whole_lines() -> None:
    assert len(klog.read_ring(4096)) <= 4096
    assert klog.ring_size() > 0


def test_a_file_that_cannot_be_opened_is_known(tmp_path: Path) -> None:
    assert not can_open(tmp_path / "kmsg")
    (tmp_path / "kmsg").write_text("")
    assert can_open(tmp_path / "kmsg")
