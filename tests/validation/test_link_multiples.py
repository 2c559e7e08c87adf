"""What measured rings say of links, on made-up tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.numbers import constants
from validation.link_multiples import FABRICS, LEAST_BYTES, MODERN, NCCL, main, multiples

MISC = "gpu,op,gpus,nodes,size_bytes,interconnect,busbw_outofplace_GBps\n"
OTHER = "gpu,operation,ranks,nodes,bytes,interconnect,algorithm,busbw_GBps\n"


def write(folder: Path, share: float) -> None:
    """Write tables in which every fabric reaches a share of its rate, and small messages next to nothing."""
    lines = {NCCL: MISC, MODERN: OTHER}
    for one in FABRICS:
        rate = share * one.stated_bytes_per_s / 1e9
        for size, each in ((LEAST_BYTES, rate), (LEAST_BYTES, rate), (1024, 0.01)):
            middle = f"{one.gpu},all_reduce,{one.ranks},{one.nodes},{int(size)},{one.more}"
            lines[one.table] += f"{middle},{each}\n" if one.table == NCCL else f"{middle},{one.more},{each}\n"
    for name, text in lines.items():
        (folder / name).write_text(text, encoding="utf-8")


def test_a_multiple_is_the_stated_rate_over_that_of_large_messages(tmp_path: Path) -> None:
    write(tmp_path, 0.8)
    assert [each for _, each in multiples(tmp_path)] == pytest.approx([1.25] * len(FABRICS))


def test_it_prints_every_kind_that_the_numbers_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 0.5)
    assert main(["--data", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for kind in constants("links.multiples").keys() - {"roce"}:
        assert f"{kind}: 2.000" in printed


def test_a_missing_table_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 3
    assert NCCL in capsys.readouterr().err
