"""The Debian packages of this build: what is in them, that they install, and that their parts are understood by those they are for."""
import os
import re
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build"))
PATIENCE = 120 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))


def run(*args, check=True, **more):
    done = subprocess.run([str(a) for a in args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
                          check=False, **more)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """{name: path}"""
    with open(os.path.join(BUILD, "deploy", "tutti.service"), encoding="utf-8") as file:
        if "ExecStart=/usr/bin/tutti " not in file.read():
            pytest.skip("this build is not set up with --prefix=/usr")
    if not shutil.which("dpkg-shlibdeps"):
        pytest.skip("dpkg-dev is not installed")
    made = run(os.path.join(ROOT, "deploy", "debian", "build.sh"), BUILD, tmp_path_factory.mktemp("deb"))
    return {os.path.basename(path).split("_")[0]: path for path in made.stdout.split()}


@pytest.fixture(scope="module")
def package(packages):
    return packages["tutti"]


@pytest.fixture(scope="module")
def unpacked(package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    run("dpkg-deb", "-x", package, folder)
    return folder


def test_it_holds_what_an_administrator_expects(package):
    lines = run("dpkg-deb", "-c", package).stdout.splitlines()
    listed = {line.split()[5]: line.split()[:2] for line in lines}
    assert all(owner == "root/root" for _, owner in listed.values())
    for path, mode in {"usr/bin/tutti": "-rwxr-xr-x", "usr/lib/systemd/system/tutti.service": "-rw-r--r--",
                       "usr/lib/systemd/system/tutti.socket": "-rw-r--r--", "usr/lib/systemd/system/tutti@.service": "-rw-r--r--",
                       "usr/lib/systemd/system/tutti-group.service": "-rw-r--r--",
                       "usr/lib/systemd/system/tutti-replicas.target": "-rw-r--r--",
                       "usr/share/tutti/haproxy/haproxy.cfg": "-rw-r--r--", "usr/share/tutti/systemd/gpu.conf": "-rw-r--r--",
                       "usr/share/tutti/slurm/tutti.sbatch": "-rwxr-xr-x",
                       "usr/lib/sysusers.d/tutti.conf": "-rw-r--r--",
                       "etc/tutti/tutti.conf": "-rw-r--r--", "usr/share/man/man1/tutti.1.gz": "-rw-r--r--",
                       "usr/share/man/man1/tutti-serve.1.gz": "-rw-r--r--",
                       "usr/share/bash-completion/completions/tutti": "-rw-r--r--",
                       "usr/share/zsh/vendor-completions/_tutti": "-rw-r--r--",
                       "usr/share/tutti/grafana/tutti.json": "-rw-r--r--"}.items():
        assert listed["./" + path][0] == mode, path
    # The module for several ranks is a part of the program, not a library for others.
    assert not [p for p in listed if re.search(r"(?<!/tutti/tutti-mpi)\.so(\.|$)|/include/", p)]
    depends = run("dpkg-deb", "-f", package, "Depends").stdout
    for library in ("libc6", "libssl3", "libevent-2.1", "libsystemd0", "libjansson4"):
        assert library in depends


def test_the_same_build_gives_the_same_packages_with_git_and_without(packages, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").write_text("#!/bin/sh\nexit 128\n")  # as where the sources were unpacked from an archive
    (tools / "git").chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8"}
    env.pop("SOURCE_DATE_EPOCH", None)
    again = run(os.path.join(ROOT, "deploy", "debian", "build.sh"), BUILD, tmp_path / "again", env=env).stdout.split()
    assert sorted(map(os.path.basename, again)) == sorted(map(os.path.basename, packages.values())) and len(again) == 3
    for path in again:
        with open(packages[os.path.basename(path).split("_")[0]], "rb") as one, open(path, "rb") as other:
            assert one.read() == other.read(), path


def test_a_program_is_built_and_runs_with_the_library_and_its_header(packages, tmp_path):
    """As where libtutti0 and libtutti-dev are installed, but below a folder."""
    for name in "libtutti0", "libtutti-dev":
        run("dpkg-deb", "-x", packages[name], tmp_path)
    assert run("dpkg-deb", "-f", packages["libtutti-dev"], "Depends").stdout.startswith("libtutti0 (= ")
    (config,) = tmp_path.glob("usr/lib/*/pkgconfig/tutti.pc")
    env = {**os.environ, "PKG_CONFIG_PATH": str(config.parent), "PKG_CONFIG_SYSROOT_DIR": str(tmp_path)}
    flags = run("pkg-config", "--cflags", "--libs", "tutti", env=env).stdout.split()
    run("cc", "-o", tmp_path / "chat", os.path.join(ROOT, "examples", "chat.c"), *flags)
    env = {**os.environ, "LD_LIBRARY_PATH": str(config.parent.parent)}
    done = run(tmp_path / "chat", os.path.join(ROOT, "models", "demo"), "What is the capital of France?", env=env)
    assert "Paris" in done.stdout


def test_an_installed_library_is_where_the_linker_and_pkg_config_look():
    """./run tells meson the folder itself, since meson only asks a tool of dpkg-dev for it."""
    with open(os.path.join(ROOT, "run"), encoding="utf-8") as file:
        function = re.search(r"^libdir\(\)\n\{.*?^\}", file.read(), re.M | re.S).group()
    flag = run("sh", "-c", function + "\nlibdir").stdout.strip()
    searched = run("pkg-config", "--variable", "pc_path", "pkg-config").stdout.strip().split(":")
    assert f"/usr/local/{flag.removeprefix('--libdir=')}/pkgconfig" in searched


def test_the_program_runs_from_it(unpacked):
    assert re.fullmatch(r"tutti \d+\.\d+\.\d+\n", run(unpacked / "usr/bin/tutti", "--version").stdout)


def test_it_installs_and_is_removed(package, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root may install")
    for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "etc", "usr"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").touch()
    (tmp_path / "etc/passwd").touch()
    (tmp_path / "etc/group").touch()
    dpkg = ["dpkg", f"--root={tmp_path}", "--force-script-chrootless", "--force-depends", "--log=/dev/null"]
    run(*dpkg, "-i", package)
    assert "installed" in run("dpkg-query", f"--admindir={tmp_path}/var/lib/dpkg", "-W", "-f", "${Status}", "tutti").stdout
    assert run(tmp_path / "usr/bin/tutti", "--version").stdout.startswith("tutti ")
    if shutil.which("systemd-sysusers"):
        assert re.search(r"^tutti:", (tmp_path / "etc/passwd").read_text(), re.M)
    links = tmp_path / "etc/systemd/system"
    for enabled in ("multi-user.target.wants/tutti.service", "multi-user.target.wants/tutti-group.service",
                    "multi-user.target.wants/tutti-replicas.target", "tutti-replicas.target.wants/tutti@8081.service",
                    "sockets.target.wants/tutti.socket", "multi-user.target.wants/ssh.service"):
        (links / enabled).parent.mkdir(parents=True, exist_ok=True)
        (links / enabled).symlink_to("/usr/lib/systemd/system/" + os.path.basename(enabled))
    run(*dpkg, "-r", "tutti")
    assert not (tmp_path / "usr/bin/tutti").exists() and (tmp_path / "etc/tutti/tutti.conf").exists()
    run(*dpkg, "--purge", "tutti")
    assert not (tmp_path / "etc/tutti").exists()
    assert [path.name for path in links.rglob("*.*") if path.is_symlink()] == ["ssh.service"]


# Says what it is called with, and that two replicas run; tutti@8082 does not start.
SYSTEMCTL = """#!/bin/sh
case "$1" in
list-units) printf 'tutti@8081.service loaded active running\\ntutti@8082.service loaded active running\\ntutti@8083.service loaded active running\\n' ;;
*) echo "${0##*/} $*" >>"$CALLS"; [ "$2" != tutti@8082.service ] ;;
esac
"""


@pytest.mark.parametrize("script, args, calls", [
    ("postinst", ["configure", "0.0.9-1"], ["try-restart tutti.service tutti-group.service", "try-restart tutti@8081.service",
                                            "try-restart tutti@8082.service"]),
    ("postinst", ["configure", ""], []),
    ("prerm", ["remove"], ["stop tutti.socket tutti.service tutti-group.service tutti-replicas.target tutti@*.service"]),
    ("prerm", ["upgrade", "0.2.0-1"], [])])
def test_scripts_know_every_unit(tmp_path, script, args, calls):
    """Under a systemd that is none: replicas are restarted one after the other, up to one that fails."""
    for name in ("systemctl", "deb-systemd-invoke", "systemd-sysusers"):
        (tmp_path / name).write_text(SYSTEMCTL)
        (tmp_path / name).chmod(0o755)
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec "$@"', "sh"]
    if run(*inside, "true", check=False).returncode != 0:
        pytest.skip("namespaces are not allowed here")
    run(*inside, "sh", os.path.join(ROOT, "deploy", "debian", script), *args,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")})
    found = (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
    assert [line.split(" ", 1)[1] for line in found if line.startswith("deb-systemd-invoke ")] == calls


def test_systemd_understands_the_units(unpacked, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    units = unpacked / "usr/lib/systemd/system"
    service = (units / "tutti.service").read_text().replace("=/usr/bin/tutti", f"={unpacked}/usr/bin/tutti")
    for line in ("User=tutti", "Group=tutti"):
        assert line in service
    (tmp_path / "tutti.service").write_text(service)
    shutil.copy(units / "tutti.socket", tmp_path)
    done = run("systemd-analyze", "verify", "--man=no", tmp_path / "tutti.service", tmp_path / "tutti.socket", check=False)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "tutti" in line]
    assert not ours, ours
    offline = run("systemd-analyze", "security", "--offline=yes", "--threshold=25", tmp_path / "tutti.service", check=False)
    assert offline.returncode == 0, offline.stdout[-3000:] + offline.stderr


def test_lintian_finds_no_error(packages):
    if not shutil.which("lintian"):
        pytest.skip("lintian is not installed")
    done = run("lintian", "--allow-root", "--fail-on", "error", *packages.values(), check=False)
    assert done.returncode == 0 and "E: " not in done.stdout, done.stdout


def test_shell_scripts_are_right():
    folder = os.path.join(ROOT, "deploy", "debian")
    for name in ("build.sh", "postinst", "prerm", "postrm"):
        run("sh", "-n", os.path.join(folder, name))
