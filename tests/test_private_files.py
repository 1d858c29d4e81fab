"""Files on which a process acts are this user's own, or refused."""

import os
import stat

import pytest

from framework.errors import FrameworkError, UnsafeFileError
from framework.private_files import check_folder, make_file, make_folder, open_file, read_file

STRANGER = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_made_folders_and_files_are_closed_to_other_users(tmp_path, monkeypatch):
    before = os.umask(0)
    try:
        make_folder(tmp_path / "var" / "pushes")
        make_file(tmp_path / "var" / "tasks.db")
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("var", "var/pushes", "var/tasks.db")] == [0o700, 0o700, 0o600]
    make_folder(tmp_path / "var" / "pushes")


def test_readable_file_of_a_former_release_is_closed(tmp_path):
    path = tmp_path / "tasks.db"
    path.write_bytes(b"rows")
    path.chmod(0o644)
    make_file(path)
    assert (mode(path), path.read_bytes()) == (0o600, b"rows")


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o1777])
def test_folder_that_others_may_write_is_refused(tmp_path, bits):
    folder = tmp_path / "pushes"
    folder.mkdir()
    folder.chmod(bits)
    for check in (check_folder, make_folder):
        with pytest.raises(UnsafeFileError, match=r"other users may write into the folder.*chmod go-w"):
            check(folder)
    check_folder(tmp_path / "missing")


def test_no_regular_file_is_opened(tmp_path):
    (tmp_path / "real").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "dangling", "folder", "fifo"):
        for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
            with pytest.raises(UnsafeFileError, match="no regular file") as refused:
                open_file(tmp_path / name, flags)
    assert isinstance(refused.value, OSError)
    assert isinstance(refused.value, FrameworkError)
    assert not (tmp_path / "new").exists()
    assert read_file(tmp_path / "real") == b"secret"


def test_file_that_others_may_write_is_refused(tmp_path):
    path = tmp_path / "1.pushes"
    path.touch()
    path.chmod(0o666)
    with pytest.raises(UnsafeFileError, match="other users may write it"):
        open_file(path, os.O_RDWR)


@as_root
def test_files_of_another_user_are_refused(tmp_path):
    path, folder = tmp_path / "1.pushes", tmp_path / "pushes"
    path.touch()
    folder.mkdir()
    for one in (path, folder):
        os.chown(one, STRANGER, STRANGER)
    with pytest.raises(UnsafeFileError, match=f"belongs to the user {STRANGER}"):
        read_file(path)
    with pytest.raises(UnsafeFileError, match=f"belongs to the user {STRANGER}"):
        check_folder(folder)
