"""Caches of users who have no home, or one that can't be written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from jubako.place import probe
from jubako.place.folders import cache_folder, kernel_folder, may_write


def test_a_user_without_a_home_plans_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "JUBAKO_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert cache_folder() == Path("/nonexistent/.cache/jubako")
    identity = probe.identify()
    assert probe.stored(identity) is None
    assert probe.known_or_nominal(tmp_path).identity == identity


def test_compiled_kernels_have_a_place_where_the_cache_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert kernel_folder() == tmp_path / "cache" / "jubako" / "kernels" and not caplog.text
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    folder = kernel_folder()
    assert folder.parent == tmp_path and may_write(folder) and folder.stat().st_mode & 0o777 == 0o700
    assert "compiled kernels are not kept" in caplog.text
