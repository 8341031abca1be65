"""The order in which a broker is looked for, a user's directory, and one question."""

import os
import pwd
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from jgpu.errors import (
    BrokerRefused,
    ConfigError,
)
from jgpu.wire.address import (
    MAX_SOCKET_PATH,
    Address,
    find,
    find_for_administration,
    make_directory,
    parse,
    user_directory,
    user_socket,
)
from jgpu.wire.asking import connect


@pytest.fixture
def listener(tmp_path):
    """A listening socket at tmp_path/s."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "s"))
        server.listen(8)
        yield server


def here(tmp_path, origin="environment"):
    return Address(tmp_path / "s", origin)


# -- where ---------------------------------------------------------------------------------------


def test_the_environment_comes_first_then_the_system_then_the_user(tmp_path):
    system, home = tmp_path / "system.sock", {"HOME": str(tmp_path)}
    own = Address(user_socket(home), "user")
    assert find(home, system_socket=system) == own
    system.touch()
    assert find(home, system_socket=system) == Address(system, "system")
    named = {**home, "JGPU_ADDRESS": "unix:/x/y.sock"}
    assert find(named, system_socket=system) == Address(Path("/x/y.sock"), "environment")


def test_only_the_users_own_address_may_be_private(tmp_path):
    home = {"HOME": str(tmp_path)}
    own = find(home, system_socket=tmp_path / "none")
    assert own.may_be_private
    # A child of a process with a seat finds the same address in its environment.
    assert find({**home, "JGPU_ADDRESS": str(own)}).may_be_private
    assert not Address(own.path, "system").may_be_private
    assert not find({"JGPU_ADDRESS": "unix:/x"}).may_be_private


def test_a_system_directory_that_may_not_be_entered_is_a_refusal(tmp_path):
    class Closed(type(tmp_path)):
        def lstat(self):
            raise PermissionError(13, "Permission denied")

        def stat(self):
            raise PermissionError(13, "Permission denied")

    closed = Closed("/run/jgpu/broker.sock")
    with pytest.raises(BrokerRefused, match="may not enter its directory"):
        find({}, system_socket=closed)
    with pytest.raises(BrokerRefused, match="may not connect to the broker"):
        connect(Address(closed, "system"))


@pytest.mark.parametrize("text", ["unix:/a/b", "unix:///a/b"])
def test_an_address_is_a_path(text):
    assert parse(text) == Path("/a/b")


@pytest.mark.parametrize("text", ["/a/b", "unix:a/b", "tcp://host:1", "unix:", "http:/a"])
def test_anything_else_is_no_address(text):
    with pytest.raises(ConfigError, match=r"unix:/path"):
        parse(text)


def test_a_path_longer_than_linux_allows_is_refused_before_it_is_bound():
    assert parse("unix:/" + "a" * (MAX_SOCKET_PATH - 1))
    with pytest.raises(ConfigError, match="longer than the 107 bytes"):
        parse("unix:/" + "a" * MAX_SOCKET_PATH)
    with pytest.raises(ConfigError, match="longer"):
        parse("unix:/" + "é" * (MAX_SOCKET_PATH // 2 + 1))


def test_the_longest_path_can_be_bound(tmp_path):
    path = tmp_path / ("a" * (MAX_SOCKET_PATH - len(str(tmp_path)) - 1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(parse(f"unix:{path}")))


# -- a user's directory --------------------------------------------------------------------------


def test_the_directory_is_below_the_state_home_and_of_this_host(home):
    host = os.uname().nodename.partition(".")[0][:24]
    assert user_directory({"HOME": str(home)}) == home / ".local/state/jgpu" / host
    assert user_directory({"XDG_STATE_HOME": str(home)}) == home / "jgpu" / host
    # A relative one is to be ignored, says its specification.
    assert user_directory({"HOME": str(home), "XDG_STATE_HOME": "x"}).is_relative_to(home)


def test_a_home_too_long_for_a_socket_is_left_for_one_that_fits(tmp_path):
    long = tmp_path / ("h" * 100)
    long.mkdir()
    fallback = Path(f"/var/tmp/jgpu-{os.getuid()}")
    assert user_directory({"HOME": str(long)}) == fallback
    assert len(os.fsencode(user_socket({"HOME": str(long)}))) <= MAX_SOCKET_PATH


def test_without_home_the_account_says_where_and_without_account_there_is_a_place(
    monkeypatch, home
):
    accounts = {os.getuid(): SimpleNamespace(pw_dir=str(home))}
    monkeypatch.setattr(pwd, "getpwuid", accounts.__getitem__)
    assert user_directory({}).parent == home / ".local/state/jgpu"
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    assert user_directory({}) == Path("/var/tmp/jgpu-987654")


def test_a_home_that_is_no_directory_is_left_too(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert user_directory({"HOME": str(file)}) == Path(f"/var/tmp/jgpu-{os.getuid()}")


def test_a_directory_is_made_private_and_made_so_again(tmp_path):
    path = tmp_path / "a" / "b"
    make_directory(path)
    path.chmod(0o777)
    assert make_directory(path).stat().st_mode & 0o777 == 0o700


def test_a_directory_that_is_a_link_or_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(BrokerRefused, match="no broker is run from there"):
        make_directory(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        make_directory(tmp_path / "file" / "sub")


# -- administration ------------------------------------------------------------------------------


def test_administrators_are_heard_beside_the_users_socket_where_there_is_such_a_place(tmp_path):
    users, admin = tmp_path / "broker.sock", tmp_path / "admin.sock"
    environ = {"JGPU_ADDRESS": f"unix:{users}"}
    assert find_for_administration(environ).path == users  # a private broker's
    admin.touch()
    assert find_for_administration(environ) == Address(admin, "environment")
    environ["JGPU_ADDRESS"] = f"unix:{admin}"
    assert find_for_administration(environ).path == admin
    users.touch()
    found = find_for_administration({}, system_socket=users)
    assert found == Address(admin, "system")


def test_an_administrators_socket_is_never_a_reason_to_start_a_broker(tmp_path):
    environ = {"HOME": str(tmp_path)}
    own = user_socket(environ)
    own.parent.mkdir(parents=True)
    own.with_name("admin.sock").touch()
    found = find_for_administration(environ, system_socket=tmp_path / "none")
    assert (found.path.name, found.may_be_private) == ("admin.sock", False)
