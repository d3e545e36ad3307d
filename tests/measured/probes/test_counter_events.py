from pathlib import Path

import pytest

from corewise.measured.probes.counter_events import Processor, choose_events, read_processor
from corewise.measured.probes.perf_events import HARDWARE, RAW, Event


@pytest.mark.parametrize(
    ("processor", "event"),
    [
        (Processor("GenuineIntel", 6, 143), Event(HARDWARE, 3)),
        (Processor("AuthenticAMD", 0x17, 0x31), Event(RAW, 0x4843)),
        (Processor("AuthenticAMD", 0x19, 0x11), Event(RAW, 0x4843)),
        (Processor("AuthenticAMD", 0x1A, 2), Event(RAW, 0x4843)),
        (Processor("0x46"), Event(RAW, 0x17)),
        (Processor("0x41"), Event(RAW, 0x37)),
    ],
)
def test_each_vendor_has_its_event_for_misses_of_the_last_level(processor: Processor, event: Event) -> None:
    chosen = choose_events(processor)
    assert chosen.events["llc_misses"] == (event,)
    assert chosen.miss_event


@pytest.mark.parametrize("processor", [Processor("AuthenticAMD", 0x17, 1), Processor("Other"), Processor("")])
def test_without_a_known_event_misses_are_left_out(processor: Processor) -> None:
    chosen = choose_events(processor)
    assert set(chosen.events) == {"cycles", "instructions"}
    assert not chosen.miss_event


def test_a_hybrid_processor_counts_on_both_of_its_pmus() -> None:
    chosen = choose_events(Processor("GenuineIntel", 6, 183, hybrid_types=(4, 10)))
    assert chosen.events["instructions"] == (Event(HARDWARE, 1 | 4 << 32), Event(HARDWARE, 1 | 10 << 32))
    assert len(chosen.events["llc_misses"]) == 2


def test_the_processor_is_read_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n\nprocessor\t: 1\nmodel\t\t: 99\n"
    )
    for name, number in (("cpu_core", 4), ("cpu_atom", 10)):
        folder = tmp_path / "sys/bus/event_source/devices" / name
        folder.mkdir(parents=True)
        (folder / "type").write_text(f"{number}\n")
    assert read_processor(tmp_path) == Processor("AuthenticAMD", 25, 17, (4, 10))
    assert read_processor(tmp_path / "nowhere") == Processor("")
