# SPDX-License-Identifier: Apache-2.0
"""The file of `--json`: what was there stays until the new figures are there, and what is no file is written to."""

from __future__ import annotations

import os

import pytest
from train_runs import files_of_at_most

from octavo.bench.options import write_figures


def test_figures_that_find_no_room_leave_the_earlier_ones(tmp_path):
    path = tmp_path / "rows.json"
    write_figures(path, "earlier")
    words = rf"--json {path} cannot be written: File too large; the table"
    with files_of_at_most(4096), pytest.raises(OSError, match=words):
        write_figures(path, "figures" * 1000)
    assert path.read_text() == "earlier"
    write_figures(path, "figures")
    assert path.read_text() == "figures"
    assert [one.name for one in tmp_path.iterdir()] == ["rows.json"]


def test_links_and_pipes_stay_what_they_are(tmp_path):
    link, target, pipe = tmp_path / "link", tmp_path / "target", tmp_path / "pipe"
    target.write_text("earlier")
    link.symlink_to(target)
    write_figures(link, "figures")
    assert link.is_symlink() and target.read_text() == "figures"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_figures(pipe, "figures")
    assert os.read(reader, 100) == b"figures" and pipe.is_fifo()
    os.close(reader)


def test_a_file_in_a_folder_that_takes_no_other_is_written_in_place(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    path.write_text("earlier")
    inode = path.stat().st_ino
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    write_figures(path, "figures")
    assert path.read_text() == "figures" and path.stat().st_ino == inode
