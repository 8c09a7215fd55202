"""Where to compute, and with what."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedshift.core.device import has_bfloat16, pick_device
from fedshift.errors import InputError


def test_a_device_is_named_or_found() -> None:
    assert pick_device("cpu") == "cpu"
    assert pick_device(None) == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="device must be 'cpu' or 'cuda'; got 'abacus'"):
        pick_device("abacus")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="needs a GPU"):
        pick_device("cuda")


def test_bfloat16_is_what_the_processor_says(monkeypatch: pytest.MonkeyPatch) -> None:
    info = Path("/proc/cpuinfo")
    if info.exists() and "flags" in info.read_text():
        flags = set(info.read_text().split())
        assert has_bfloat16() == bool(flags & {"avx512_bf16", "amx_tile"})
    # a torch that does not tell: no
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert has_bfloat16() is False
