"""Building the accelerator: made once, tried before it is put into place, or why it cannot."""

import sys
from importlib import metadata

import pytest

from jgpu.accelerator import building, loading, place
from jgpu.accelerator.building import build
from jgpu.errors import HostError

WITHOUT = "All works without it, small steps more slowly."
#: writes what is no library to where the library is wanted
NO_LIBRARY = 'while [ "$1" != -o ]; do shift; done; echo nothing > "$2"'


@pytest.mark.usefixtures("source")
def test_it_is_built_once_and_not_again(built, real_compiler):
    file = build()
    assert list(built.iterdir()) == [file]
    assert build() == file == place.library()
    assert real_compiler() == 1


def test_of_an_older_source_nothing_is_left_and_what_is_for_others_stays(
    built, source, real_compiler
):
    built.mkdir()
    tag = place.library().name.rsplit(".", 2)[0]
    older, other = built / f"{tag}.0123456789ab.so", built / f"torch-1{tag[6:]}.0123456789ab.so"
    older.touch()
    other.touch()
    first = build()
    (source / "more.h").write_text("// more\n")
    second = build()
    assert first != second
    assert set(built.iterdir()) == {second, other}
    assert real_compiler() == 2


@pytest.mark.usefixtures("source")
def test_what_is_there_and_does_not_load_is_built_anew(built, real_compiler):
    built.mkdir()
    place.library().write_text("nothing")
    assert building.fault_of(build()) == ""
    assert real_compiler() == 1


def test_what_does_not_load_is_not_put_into_place(built, compiler):
    compiler(NO_LIBRARY)
    with pytest.raises(HostError, match=rf"does not load beside this torch \(.*\)\. {WITHOUT}"):
        build()
    assert list(built.iterdir()) == []


def test_a_compiler_that_fails_is_told_by_its_first_error(built, compiler):
    compiler("printf 'In x.h:\\nx.h:3: error: no such thing\\nx.h:4: error: more\\n' >&2; false")
    with pytest.raises(HostError) as told:
        build()
    assert str(told.value) == (
        "The accelerator does not compile against this torch (x.h:3: error: no such thing). "
        + WITHOUT
    )
    assert list(built.iterdir()) == []


@pytest.mark.usefixtures("built")
def test_a_compiler_that_says_nothing_is_told_by_its_status(compiler):
    compiler("exit 3")
    with pytest.raises(HostError, match=r"\(it ended with status 3\)"):
        build()


@pytest.mark.usefixtures("built")
def test_without_a_compiler_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match=r"no C\+\+ compiler here\. Install g\+\+"):
        build()
    monkeypatch.setenv("CXX", "/no/such")
    with pytest.raises(HostError, match="The compiler '/no/such' does not run: No such file"):
        build()


@pytest.mark.usefixtures("built")
def test_without_python_s_headers_it_says_what_to_install(tmp_path, monkeypatch, compiler):
    calls = compiler("true")
    monkeypatch.setattr(building.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(HostError, match=r"has no Python\.h\. Install Python's headers"):
        build()
    assert calls() == 0


def test_where_nothing_can_be_written_it_says_who_could(tmp_path, monkeypatch, compiler):
    (tmp_path / "file").touch()
    monkeypatch.setattr(place, "_BUILT", tmp_path / "file" / "built")
    calls = compiler("true")
    with pytest.raises(HostError, match=r"cannot be written to .*: Not a directory\. Build it as"):
        build()
    assert calls() == 0


@pytest.mark.usefixtures("built")
def test_without_torch_it_says_where(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(HostError, match=f"{sys.executable} has no torch"):
        build()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("built")
def test_the_real_source_is_built_and_loads(real_compiler):
    import torch  # noqa: F401 - what it is loaded into

    file = build()
    library = loading.load.__wrapped__()
    assert library.__file__ == str(file)
    assert real_compiler() == 1
