"""The parts of tools/cluster that need no cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import __main__ as cli
from tools.cluster import binaries, bridge, cgroup, dns, images, leftovers, packages, pki
from tools.cluster.console import ClusterError, duration
from tools.cluster.control_plane import audit_policy
from tools.cluster.network import free_ports
from tools.cluster.node_config import containerd_config, kubelet_config, proxy_config
from tools.cluster.process import Handle, Supervisor, born, end, run
from tools.cluster.state import State


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("CONTEXT", raising=False)
    binaries.find.cache_clear()
    return tmp_path / "gemma-serving"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Kubernetes v1.36.3", (1, 36, 3)),
        ("etcd Version: 3.7.3\nGit SHA: x", (3, 7, 3)),
        ("v4.3.1+g1234", (4, 3, 1)),
        ("CoreDNS-1.15.0\nlinux/amd64", (1, 15, 0)),
        ("v3.14", (3, 14, 0)),
        ("no number", None),
    ],
)
def test_versions_of_every_program_are_understood(text: str, version: tuple[int, ...] | None) -> None:
    assert binaries.parse_version(text) == version


def test_every_pinned_tool_has_a_version_and_kubernetes_is_stamped() -> None:
    assert all(tool.version.startswith("v") for tool in binaries.TOOLS.values())
    flags = binaries.TOOLS["kube-apiserver"].ldflags
    assert f"gitVersion={binaries.TOOLS['kube-apiserver'].version}" in flags
    assert "gitMajor=1" in flags
    assert binaries.TOOLS["etcd"].built_name == "server"
    assert binaries.TOOLS["kubelet"].built_name == "kubelet"


def test_a_program_may_need_a_newer_toolchain_than_the_machine_has() -> None:
    argocd, etcd = (binaries.build_environment(binaries.TOOLS[name]) for name in ("argocd", "etcd"))
    assert argocd["GOTOOLCHAIN"] == binaries.TOOLS["argocd"].toolchain
    assert etcd.get("GOTOOLCHAIN") == os.environ.get("GOTOOLCHAIN")


def test_modes_build_only_what_they_need() -> None:
    assert set(binaries.MODES["control-plane"]) < set(binaries.MODES["node"]) <= set(binaries.TOOLS)
    assert "kubelet" not in binaries.MODES["control-plane"]


def program(folder: Path, name: str, prints: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return path


def test_a_program_of_the_machine_wins_when_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    new = program(tmp_path, "helm", "v3.18.0")
    assert binaries.find("helm") == new


def test_an_old_program_of_the_machine_is_named_and_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    old = program(tmp_path, "helm", "v3.9.4")
    assert binaries.find("helm") != old
    assert "3.14" in capsys.readouterr().err


def test_kubebuilder_assets_win_over_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    theirs = program(assets, "etcd", "etcd Version: 3.6.0")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert binaries.find("etcd") == theirs


def test_an_unknown_program_is_refused_with_the_list() -> None:
    with pytest.raises(ClusterError, match=r"no such program: kubctl; there are: .*kubectl"):
        binaries.ensure(["kubctl"])


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "x" * 41, "a/b", ".."])
def test_cluster_names_that_are_no_safe_folder_are_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="not usable"):
        State(name)


def test_a_state_folder_too_deep_for_a_socket_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/" + "deep/" * 20)
    with pytest.raises(ClusterError, match="XDG_CACHE_HOME"):
        _ = State("local").containerd_socket


@pytest.mark.parametrize(("seconds", "text"), [(0.42, "0.4 s"), (35, "35 s"), (250, "4 min 10 s"), (59.7, "1 min 0 s")])
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_an_archive_names_its_image_and_its_digest_follows_the_content(tmp_path: Path) -> None:
    one, other = tmp_path / "one.tar", tmp_path / "other.tar"
    images.write_archive(one, "example.test/a:1", {"a": b"1"}, ["/a"])
    images.write_archive(other, "example.test/a:1", {"a": b"2"}, ["/a"])
    first, second = images.read_archive(one), images.read_archive(other)
    assert first.names == second.names == ("example.test/a:1",)
    assert first.digest != second.digest


def test_what_is_no_image_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_text("no tar")
    with pytest.raises(ClusterError, match=r"cannot read the image archive .*x\.tar"):
        images.read_archive(path)
    with pytest.raises(ClusterError, match="cannot read"):
        images.read_archive(tmp_path / "absent.tar")


def test_a_recycled_pid_is_not_taken_for_the_program() -> None:
    assert Handle.of(os.getpid()).alive
    assert not Handle(os.getpid(), "another boot/1").alive
    assert born(2**22 + 1) is None


def test_a_program_is_ended_and_its_pid_file_with_it(tmp_path: Path) -> None:
    state = State("local")
    state.create()
    supervisor = Supervisor(state.root)
    supervisor.start("sleeper", [sys.executable, "-c", "import signal; signal.pause()"])
    handle = supervisor.handles()["sleeper"]
    assert handle.alive
    supervisor.end("sleeper", grace=5)
    assert not handle.alive
    assert supervisor.handles() == {}


def test_a_program_that_dies_while_starting_tells_its_last_words() -> None:
    state = State("local")
    state.create()
    supervisor = Supervisor(state.root)
    supervisor.start("doomed", [sys.executable, "-c", "raise SystemExit('the port is taken')"])
    with pytest.raises(ClusterError, match="the port is taken"):
        supervisor.wait("doomed", lambda: False)
    supervisor.end("doomed", grace=0)


def test_a_program_deaf_to_sigterm_is_killed() -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        end([Handle.of(child.pid)], grace=0.1)
        assert child.wait() == -9


def test_a_failed_command_is_quoted_with_what_it_said() -> None:
    with pytest.raises(ClusterError, match=r"(?s)'sh -c .*' failed:\nno such thing"):
        run(["sh", "-c", "echo no such thing >&2; exit 3"])


def test_clearing_a_state_keeps_only_the_images(cache: Path) -> None:
    state = State("local")
    state.create()
    state.images.mkdir(parents=True)
    (state.images / "blob").write_text("x")
    (state.root / "audit.log").write_text("x")
    leftovers.clear(state, Supervisor(state.root))
    assert [path.relative_to(state.root).as_posix() for path in state.root.rglob("*") if path.is_file()] == [
        "containerd/root/blob"
    ]
    leftovers.delete_images(state)
    leftovers.clear(state, Supervisor(state.root))
    assert not state.root.exists()


def test_mount_points_are_unescaped() -> None:
    assert leftovers._unescape(r"/a\040b\134c") == r"/a b\c"


def test_private_keys_and_kubeconfigs_are_for_their_owner_only(tmp_path: Path) -> None:
    authority = pki.Authority(tmp_path)
    authority.create()
    client = authority.issue("admin", "/O=system:masters/CN=admin")
    path = authority.kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", "admin", client)
    assert {oct(p.stat().st_mode & 0o777) for p in (client.key, authority.ca.key, path)} == {"0o600"}
    value = json.loads(path.read_text())
    assert "certificate-authority-data" in value["clusters"][0]["cluster"]
    checked = run(["openssl", "verify", "-CAfile", authority.ca.cert, client.cert])
    assert checked.strip().endswith("OK")


def test_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


def test_every_path_in_the_node_configuration_is_below_the_state_folder() -> None:
    root = Path("/state")
    texts = (
        json.dumps(kubelet_config(root, root / "sock", "/gemma-serving-local")),
        json.dumps(proxy_config(root / "kubeconfig", "node1")),
        containerd_config(root, root / "sock", root / "cni", root / "conf"),
        dns.corefile(root / "kubeconfig"),
    )
    for text in texts:
        assert not any(place in text for place in ("/var/", "/run/", "/opt/", "/etc/"))


def test_the_audit_log_counts_every_write() -> None:
    silent = [rule for rule in audit_policy()["rules"] if rule["level"] == "None"]
    writes = [rule for rule in silent if not {"get", "list", "watch"} >= set(rule.get("verbs", ["*"]))]
    # the node's heartbeat, many times a minute, and no other write
    assert [rule["resources"] for rule in writes] == [[{"group": "coordination.k8s.io"}]]
    assert audit_policy()["rules"][-1] == {"level": "Metadata"}


def test_a_node_that_cannot_run_here_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(cgroup, "hierarchies", lambda: [])
    if not sys.platform.startswith("linux"):
        pytest.skip("the message is about Linux there")
    with pytest.raises(ClusterError, match=r"root .* and writable control groups .*--mode control-plane.*CONTEXT=NAME"):
        packages.check_machine()


def test_errors_reach_the_person_as_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["kubeconfig", "--name", "nowhere"]) == 1
    assert capsys.readouterr().err == (
        "[cluster] error: cluster 'nowhere' is not running: start it with 'python3 -m tools.cluster up --name nowhere'\n"
    )


def test_a_foreign_context_is_never_started_or_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["down", "--context", "kind-x"]) == 0
    assert "not ours" in capsys.readouterr().err
    assert cli.main(["load", "--context", "prod", "x.tar"]) == 1
    assert "registry" in capsys.readouterr().err


def test_clusters_of_the_same_name_in_other_homes_share_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = cgroup.root_name(State("local")), bridge.mark(State("local"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/other/.cache")
    theirs = cgroup.root_name(State("local")), bridge.mark(State("local"))
    assert not set(mine) & set(theirs)


def test_a_go_that_is_too_old_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho 'go: go.mod requires go >= 1.26.0 (running go 1.21.0)' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    binaries.go_version.cache_clear()
    with pytest.raises(ClusterError, match=r"need Go 1.26 or newer: go: go.mod requires go >= 1.26.0"):
        binaries.go_version()
    binaries.go_version.cache_clear()
