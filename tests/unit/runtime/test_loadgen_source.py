"""LoadGen's source for images of platforms without a wheel: what is given to the engine, and what is missing."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from mlbundle.config import load_settings
from mlbundle.errors import ImageBuildFailed
from mlbundle.runtime.loadgen_source import ensure_source, source_files, source_locks
from mlbundle.runtime.wheelhouse import pinned


def test_a_folder_gives_source_tools_and_their_locks_and_nothing_else(tmp_path: Path) -> None:
    source, tools = source_locks()
    ((name, version),) = pinned(source)
    archive = f"{name.replace('-', '_')}-{version}.tar.gz"
    wheels = sorted(f"{name}-{version}-py3-none-any.whl" for name, version in pinned(tools))
    with pytest.raises(ImageBuildFailed, match="has no source of mlcommons-loadgen") as missing:
        source_files(tmp_path)
    assert missing.value.hint is not None
    assert f"{name}=={version}" in missing.value.hint
    for file in (archive, "other-1.0.tar.gz", "other-1.0-py3-none-any.whl"):
        (tmp_path / file).touch()
    with pytest.raises(ImageBuildFailed, match="has no wheel of pybind11"):
        source_files(tmp_path)
    for file in wheels:
        (tmp_path / file).touch()
    assert [path.name for path in source_files(tmp_path)] == [archive, *wheels, source.name, tools.name]


@pytest.mark.network
def test_the_source_is_downloaded_once() -> None:
    heard: list[str] = []
    cache = load_settings().cache_dir
    folder = ensure_source(cache, heard.append)
    assert ensure_source(cache, heard.append) == folder
    assert heard == ["downloading the source of LoadGen"]
    with tarfile.open(source_files(folder)[0]) as archive:
        assert any(name.endswith("/loadgen.cc") for name in archive.getnames())
