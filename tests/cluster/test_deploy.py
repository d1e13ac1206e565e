"""What deploy/ holds fits the server and itself: flags, ports, paths, labels, times, names of figures. Each file is shown to the
tool that it is for, where that is installed."""
import glob
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from balancer import free_port, get, wait_for  # noqa: E402

BIN = os.path.abspath(os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti")))
BUILD = os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build"))
DEMO = os.path.join(ROOT, "models", "demo")
PATIENCE = 60 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
# Leaks within Open MPI are not ours.
MPI_ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
KUBERNETES = os.path.join(ROOT, "deploy", "kubernetes")
DOCKER = os.path.join(ROOT, "deploy", "docker")
SBATCH = os.path.join(ROOT, "deploy", "slurm", "tutti.sbatch")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def run(*args, **more):
    return subprocess.run([str(a) for a in args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
                          check=False, **more)


def documents(name):
    return [document for document in yaml.safe_load_all(read(KUBERNETES, name)) if document]


MANIFESTS = ("replicas.yaml", "autoscaling.yaml", "tensor-parallel.yaml")
ALL = [document for name in MANIFESTS for document in documents(name)]
VERSION = re.search(r"version: '([\d.]+)'", read("meson.build")).group(1)


def one(kind, name):
    found, = [d for d in ALL if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


def pod_of(workload):
    """[(labels, pod spec, what happens to be there only in pods of the MPI operator)] of everything that makes pods."""
    if workload["kind"] == "StatefulSet":
        template = workload["spec"]["template"]
        return [(template["metadata"]["labels"], template["spec"])]
    name = workload["metadata"]["name"]
    return [({"training.kubeflow.org/job-name": name, "training.kubeflow.org/job-role": role.lower(),
              "training.kubeflow.org/replica-index": "0"}, replica["template"]["spec"])
            for role, replica in workload["spec"]["mpiReplicaSpecs"].items()]


PODS = [pod for d in ALL if d["kind"] in ("StatefulSet", "MPIJob") for pod in pod_of(d)]
REPLICA = one("StatefulSet", "tutti")["spec"]["template"]["spec"]


def flag(args, name):
    found, = [a.split("=", 1)[1] for a in args if a.startswith(f"--{name}=")]
    return found


def seconds_of_help(name):
    """The default of a flag that counts seconds."""
    return int(re.search(rf"--{name} .*?default (\d+)", run(BIN, "help", "serve").stdout, re.S).group(1))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The container's command line, but for the model and the addresses: the ports by their names."""
    assert REPLICA["containers"][0]["args"][:2] == ["serve", "/models/model"]
    with socket.socket() as one_sock, socket.socket() as other_sock:
        one_sock.bind(("127.0.0.1", 0))
        other_sock.bind(("127.0.0.1", 0))
        port, metrics = one_sock.getsockname()[1], other_sock.getsockname()[1]
    with open(tmp_path_factory.mktemp("server") / "log", "wb") as log:
        process = subprocess.Popen([BIN, "serve", DEMO, *REPLICA["containers"][0]["args"][2:], "--host", "127.0.0.1", "--port", str(port),
                                    "--metrics-listen", f"127.0.0.1:{metrics}", "--drain-delay", "0"], stdout=log, stderr=log)
    wait_for("the server", lambda: process.poll() is not None or get(port, "/ready")[0] == 200, PATIENCE)
    assert process.poll() is None
    yield {"http": port, "metrics": metrics}
    process.terminate()
    assert process.wait(PATIENCE) == 0


# ---- Kubernetes ---------------------------------------------------------------------------------------------------------


def test_every_manifest_is_read():
    named = set(yaml.safe_load(read(KUBERNETES, "kustomization.yaml"))["resources"])
    there = {os.path.basename(path) for path in glob.glob(os.path.join(KUBERNETES, "*"))}
    assert named | {"tensor-parallel.yaml"} == set(MANIFESTS)
    assert there == set(MANIFESTS) | {"kustomization.yaml", "prometheus-adapter-values.yaml"}


def test_manifests_fit_the_published_schemas():
    """Those of the Kubernetes API, by kubernetes-validate from PyPI. MPIJob is no part of that API."""
    validate = pytest.importorskip("kubernetes_validate")
    for document in ALL:
        if document["kind"] != "MPIJob":
            version = validate.latest_version()
            validate.validate(document, version, strict=True)


def test_services_lead_to_ports_that_listen():
    for service in (d for d in ALL if d["kind"] == "Service"):
        selector = service["spec"]["selector"].items()
        chosen = [spec for labels, spec in PODS if selector <= labels.items()]
        assert len(chosen) == 1, service["metadata"]["name"]
        names = {port["name"]: port["containerPort"] for c in chosen[0]["containers"] for port in c.get("ports", ())}
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in names
            if service["spec"].get("clusterIP") == "None":  # no translation: the port must be the real one
                assert port["port"] == names[port["targetPort"]]


def test_the_replica_listens_where_it_is_said():
    container, = REPLICA["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert int(flag(container["args"], "port")) == ports["http"]
    assert flag(container["args"], "host") == "0.0.0.0"
    annotations = one("StatefulSet", "tutti")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["metrics"])
    assert flag(container["args"], "metrics-listen") == f"0.0.0.0:{ports['metrics']}"
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"]["port"] in ports
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in REPLICA["volumes"]}


def test_probes_ask_what_the_server_answers(server):
    container, = REPLICA["containers"]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[name]["httpGet"]
        assert get(server[probe["port"]], probe["path"])[0] == 200, name
    # A server that drains is not ready, but must live.
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/health", "readinessProbe": "/ready?queue=ignore", "livenessProbe": "/health"}
    annotations = one("StatefulSet", "tutti")["spec"]["template"]["metadata"]["annotations"]
    assert get(server["metrics"], annotations["prometheus.io/path"])[0] == 200


def test_a_pod_has_the_time_that_its_end_takes():
    container, = REPLICA["containers"]
    sleep, pause = container["lifecycle"]["preStop"]["exec"]["command"]
    delay = int(flag(container["args"], "drain-delay"))
    needed = int(pause) + delay + int(flag(container["args"], "drain-timeout"))
    assert sleep == "sleep" and REPLICA["terminationGracePeriodSeconds"] >= needed + 10
    probe = container["readinessProbe"]
    assert delay > probe["periodSeconds"] * probe["failureThreshold"]  # seen as unready before it refuses


def test_what_selects_pods_selects_the_replicas():
    workload = one("StatefulSet", "tutti")
    labels = workload["spec"]["template"]["metadata"]["labels"].items()
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels
    assert one("PodDisruptionBudget", "tutti")["spec"]["selector"]["matchLabels"].items() <= labels
    for constraint in REPLICA["topologySpreadConstraints"]:
        assert constraint["labelSelector"]["matchLabels"].items() <= labels
    assert one("Service", workload["spec"]["serviceName"])["spec"]["clusterIP"] == "None"


def test_the_autoscaler_asks_for_figures_that_there_are(server):
    scaler = one("HorizontalPodAutoscaler", "tutti")["spec"]
    target = scaler["scaleTargetRef"]
    assert one(target["kind"], target["name"])["apiVersion"] == target["apiVersion"]
    assert "replicas" not in one("StatefulSet", "tutti")["spec"]
    names = [metric["pods"]["metric"]["name"] for metric in scaler["metrics"]]
    rules = yaml.safe_load(read(KUBERNETES, "prometheus-adapter-values.yaml"))["rules"]["custom"]
    assert names == ["tutti_requests_waiting", "tutti_sequences_running"] == [rule["name"]["as"] for rule in rules]
    figures = get(server["metrics"], "/metrics")[1].decode()
    for name, rule in zip(names, rules):
        assert f"# TYPE {name} gauge\n" in figures
        assert rule["seriesQuery"].startswith(name + "{") and re.search(rule["name"]["matches"], name)
        assert set(re.findall(r"(\w+)!=", rule["seriesQuery"])) == set(rule["resources"]["overrides"])


def test_the_group_has_as_many_ranks_as_workers():
    job = one("MPIJob", "tutti-group")["spec"]
    launcher, = job["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    worker, = job["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    args = launcher["args"]
    n_ranks = int(args[args.index("-n") + 1])
    assert launcher["command"] == ["mpirun"] and n_ranks == int(flag(args, "tp"))
    assert n_ranks == job["mpiReplicaSpecs"]["Worker"]["replicas"] * job["slotsPerWorker"]
    ports = {port["name"]: port["containerPort"] for port in worker["ports"]}
    assert int(flag(args, "port")) == ports["http"] and flag(args, "host") == "0.0.0.0"
    with_keepalive = [args[i + 1] for i, word in enumerate(args) if word == "--mca"]
    assert with_keepalive == re.findall(r"--mca (\S+) \S+", value(unit("tutti-group.service"), "ExecStart")) and with_keepalive
    sleep, pause = launcher["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep" and int(pause) > int(flag(args, "drain-delay")) + int(flag(args, "drain-timeout"))
    for role in ("Launcher", "Worker"):
        assert job["mpiReplicaSpecs"][role]["template"]["spec"]["terminationGracePeriodSeconds"] > int(pause)
    assert "pkill -TERM -x tutti" in worker["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert " procps " in read(DOCKER, "Dockerfile")
    # ssh, from the image.
    sshd = dict(line.split(None, 1) for line in read(DOCKER, "sshd_config").splitlines() if line and not line.startswith("#"))
    assert int(sshd["Port"]) == ports["ssh"] and f"Port {sshd['Port']}" in read(DOCKER, "ssh_config")
    assert os.path.dirname(sshd["HostKey"]) == os.path.dirname(sshd["AuthorizedKeysFile"]) == job["sshAuthMountPath"]
    assert f"COPY deploy/docker/sshd_config {worker['args'][-1]}\n" in read(DOCKER, "Dockerfile")


def test_flags_are_those_of_the_program():
    known = set(re.findall(r"--([\w-]+)", run(BIN, "help", "serve").stdout))
    texts = {"replicas": "\n".join(REPLICA["containers"][0]["args"]), "sbatch": read(SBATCH).split('serve "$model"')[1],
             "group": "\n".join(one("MPIJob", "tutti-group")["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
                                [0]["args"]).split("serve")[1]}
    for path in glob.glob(os.path.join(ROOT, "deploy", "systemd", "*.service.in")):
        texts[path] = re.search(r"^ExecStart=.*/tutti serve (.*)$", read(path), re.M).group(1)
    for place, text in texts.items():
        flags = re.findall(r"(?<!\S)--([\w-]+)", text)
        assert set(flags) <= known, place


def test_images_are_of_this_version():
    tags = re.findall(r"image: (tutti\S*)", read(KUBERNETES, "replicas.yaml") + read(KUBERNETES, "tensor-parallel.yaml"))
    assert {tag.split(":")[0] for tag in tags} == {"tutti", "tutti-mpi"}
    assert {tag.split(":")[1] for tag in tags if ":" in tag} == {VERSION}
    image, = yaml.safe_load(read(KUBERNETES, "kustomization.yaml"))["images"]
    assert image == {"name": "tutti", "newTag": VERSION}


# ---- the image ----------------------------------------------------------------------------------------------------------


def test_the_image_is_made_of_files_and_commands_that_there_are():
    text = read(DOCKER, "Dockerfile")
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.M)
    assert stages == ["build", "run", "mpi"] and text.rstrip().endswith("FROM run")
    for stage, source in re.findall(r"^COPY (?:--from=(\w+) )?(\S+) \S+$", text, re.M):
        assert stage in stages if stage else os.path.exists(os.path.join(ROOT, source)), source
    for command in re.findall(r"^RUN \./run (.*?)(?: &&|$)", text, re.M):
        words = command.split()
        usage = run("sh", os.path.join(ROOT, "run"), "help").stdout
        assert re.search(rf"^  {words[0]}\b", usage, re.M)
        assert len(words) == 1 or re.search(rf"^  {words[0]} \[[\w|]*\b{words[1]}\b", usage, re.M), command
    users = {spec["runAsUser"] for _, pod in PODS for spec in (pod.get("securityContext", {}), *(c["securityContext"]
             for c in pod["containers"])) if "runAsUser" in spec}
    assert users == {int(re.search(r"useradd --uid (\d+)", text).group(1))}
    ignored = read(".dockerignore").split()
    assert "/build*/" in ignored and "!/models/demo/" in ignored


def test_the_ssh_daemon_takes_its_configuration(tmp_path):
    if not shutil.which("sshd", path="/usr/sbin") or not shutil.which("ssh-keygen"):
        pytest.skip("openssh-server is not installed")
    key = tmp_path / "id_rsa"
    run("ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", key)
    config = tmp_path / "sshd_config"
    config.write_text(read(DOCKER, "sshd_config").replace("/home/tutti/.ssh/id_rsa", str(key)))
    done = run("/usr/sbin/sshd", "-t", "-f", config)
    assert done.returncode == 0 or "Missing privilege separation directory" in done.stderr, done.stderr


# ---- systemd ------------------------------------------------------------------------------------------------------------


def unit(name):
    return read(BUILD, "deploy", name)


UNITS = ("tutti.service", "tutti@.service", "tutti-group.service")


def test_systemd_understands_every_unit(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    names = []
    for name in UNITS:
        text = re.sub(r"(?<=[= ])/\S*/bin/tutti(?= )", BIN, unit(name))
        assert BIN in text
        assert value(text, "RuntimeDirectory") == "%N"  # its own: systemd removes the folder of a unit that stops
        if not os.path.exists("/usr/bin/mpirun"):
            text = text.replace("/usr/bin/mpirun", "/bin/true")
        names.append(name.replace("@", "@8081"))
        (tmp_path / name).write_text(text)
    for name in ("tutti.socket", "tutti-replicas.target"):
        shutil.copy(os.path.join(ROOT, "deploy", "systemd", name), tmp_path)
    (tmp_path / "tutti.service.d").mkdir()
    shutil.copy(os.path.join(ROOT, "deploy", "systemd", "gpu.conf"), tmp_path / "tutti.service.d")
    done = run("systemd-analyze", "verify", "--man=no", *(tmp_path / n for n in names), tmp_path / "tutti-replicas.target",
               env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"})
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "tutti" in line]
    assert not ours, ours
    for name in UNITS:
        offline = run("systemd-analyze", "security", "--offline=yes", "--threshold=25", tmp_path / name)
        assert offline.returncode == 0, offline.stdout[-2000:] + offline.stderr


def value(text, name):
    return re.search(rf"^{name}=(.*)$", text, re.M).group(1)


def test_units_wait_for_what_drains():
    drain = seconds_of_help("drain-timeout")
    assert int(value(unit("tutti.service"), "TimeoutStopSec")) > drain
    replica = unit("tutti@.service")
    delay = int(value(replica, "Environment").removeprefix("TUTTI_DRAIN_DELAY="))
    assert int(value(replica, "TimeoutStopSec")) > drain + delay
    # HAProxy has noticed by then.
    haproxy = read("deploy", "haproxy", "haproxy.cfg")
    assert re.search(r"default-server inter 1s fastinter 250ms .*fall 2 ", haproxy) and delay > 2
    group = unit("tutti-group.service")
    assert drain < int(value(group, "TimeoutStopSec"))
    for text in (replica, group):
        assert value(text, "Restart") == "on-failure"


def test_a_replica_of_systemd_is_one_of_haproxy(tmp_path):
    """The line of the unit, as systemd would fill it in for the ports that haproxy.cfg names."""
    ports = set(re.findall(r"^    server \S+ 127\.0\.0\.1:(\d+) check", read("deploy", "haproxy", "haproxy.cfg"), re.M))
    assert "8081" in ports and "tutti@8081" in read("deploy", "systemd", "tutti-replicas.target")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = str(sock.getsockname()[1])
    line = value(unit("tutti@.service"), "ExecStart")
    words = shlex.split(line.replace("%i", port).replace("${TUTTI_MODEL}", DEMO).replace("${TUTTI_DRAIN_DELAY}", "0")
                        .replace("$TUTTI_FLAGS", value(read("deploy", "tutti.conf"), "TUTTI_FLAGS")))
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([BIN, *words[1:]], stdout=log, stderr=log)
    try:
        wait_for("the replica", lambda: process.poll() is not None or get(int(port), "/ready")[0] == 200, PATIENCE)
        assert process.poll() is None, (tmp_path / "log").read_text()
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.fixture(name="group")
def group_fixture(tmp_path):
    """(mpirun's process, port) of the unit's line, as systemd would fill it in."""
    if not shutil.which("mpirun") or not glob.glob(os.path.join(os.path.dirname(BIN), "tutti-mpi*")):
        pytest.skip("built without MPI, or mpirun is not installed")
    if "TSAN_OPTIONS" in os.environ:
        pytest.skip("the thread sanitizer does not see into Open MPI")
    port = str(free_port())
    line = value(unit("tutti-group.service"), "ExecStart")
    flags = {"${TUTTI_TP}": "2", "$TUTTI_MPIRUN_FLAGS": "--allow-run-as-root --oversubscribe", "${TUTTI_MODEL}": DEMO,
             "$TUTTI_FLAGS": f"--port {port} --drain-timeout 45"}
    for name, text in flags.items():
        assert name in line
        line = line.replace(name, text)
    words = [BIN if word.endswith("/bin/tutti") else word for word in shlex.split(line)]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=MPI_ENVIRONMENT)
    wait_for("rank 0", lambda: process.poll() is not None or get(int(port), "/ready")[0] == 200, PATIENCE)
    assert process.poll() is None, (tmp_path / "log").read_text()
    yield process, port, tmp_path / "log"
    if process.poll() is None:
        process.kill()
        process.wait(PATIENCE)


def stream_of(port):
    """A connection over which an answer has begun."""
    body = b'{"prompt": "Mia", "ignore_eos": true, "max_tokens": 300, "stream": true}'
    sock = socket.create_connection(("127.0.0.1", int(port)), PATIENCE)
    sock.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    begun = b""
    while b"data: " not in begun:
        piece = sock.recv(4096)
        assert piece
        begun += piece
    return sock


def rest_of(sock):
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def test_a_group_that_is_stopped_ends_its_answers(group):
    """As systemd does it, one command after the other; of the ranks one has an answer to end, the other to follow."""
    process, port, log = group
    commands = re.findall(r"^ExecStop=(.*)$", unit("tutti-group.service"), re.M)
    with stream_of(port) as sock:
        stops = [shlex.split(command.replace("$MAINPID", str(process.pid))) for command in commands]
        assert run(*stops[0]).returncode == 0
        assert b"data: [DONE]" in rest_of(sock), log.read_text()
    assert process.wait(PATIENCE) == 0
    for stop in stops[1:]:
        run(*stop)  # ends, since mpirun has


def test_a_group_that_loses_a_rank_ends_so_that_it_is_started_again(group):
    process, port, log = group
    ranks = []
    for path in glob.glob(f"/proc/{process.pid}/task/*/children"):
        with open(path, encoding="ascii") as file:
            ranks += map(int, file.read().split())
    with stream_of(port) as sock:
        os.kill(max(ranks), signal.SIGSTOP)
        rest_of(sock)  # ends, in whatever way
    status = process.wait(PATIENCE)
    os.kill(max(ranks), signal.SIGKILL) if os.path.exists(f"/proc/{max(ranks)}/exe") else None
    assert status not in (0, -signal.SIGTERM) and "of 2" in log.read_text(), (status, log.read_text())


# ---- Slurm --------------------------------------------------------------------------------------------------------------


def test_the_batch_script_is_right():
    assert run("bash", "-n", SBATCH).returncode == 0
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    done = run("shellcheck", SBATCH)
    assert done.returncode == 0, done.stdout


def test_the_batch_script_leaves_time_to_drain():
    text = read(SBATCH)
    assert int(re.search(r"^#SBATCH --signal=TERM@(\d+)$", text, re.M).group(1)) > int(re.search(r"--drain-timeout (\d+)", text).group(1))


def test_the_batch_script_says_what_is_missing():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    done = run("bash", SBATCH, env=clean)
    assert done.returncode == 2 and done.stderr.startswith("usage: ")
    done = run("bash", SBATCH, "/model", env=clean)
    assert done.returncode == 2 and "not started by Slurm" in done.stderr


@pytest.mark.parametrize("status, lived, requeues", [(0, 0, False), (143, 100, False), (1, 100, True), (1, 1, False)])
def test_the_batch_script_starts_the_group_and_queues_it_again(tmp_path, status, lived, requeues):
    """With stand-ins for Slurm's commands: what they are called with, and what follows from their status."""
    log = tmp_path / "log"
    for name, end in (("srun", f"exit {status}"), ("scontrol", "exit 0")):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{log}\n{end}\n')
        (tmp_path / name).chmod(0o755)
    script = read(SBATCH).replace("status=0\n", f"status=0; SECONDS={lived}\n")
    assert f"SECONDS={lived}" in script
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "77",
           "SLURM_CPUS_PER_TASK": "8", "SLURMD_NODENAME": "node3"}
    done = run("bash", "-c", script, "tutti.sbatch", "/models/m", "--name", "it", env=env)
    assert done.returncode == status
    calls = log.read_text()
    assert re.search(r"^srun .*--kill-on-bad-exit=1 .* tutti serve /models/m --tp 4 --threads 8 .* --name it$", calls, re.M)
    assert "scontrol update JobId=77 Comment=http://node3:8080\n" in calls
    assert ("scontrol requeue 77\n" in calls) == requeues


def test_slurm_would_run_the_batch_script(tmp_path):
    """sbatch --test-only, with a controller and two node daemons of this test's own."""
    for program in "slurmctld", "slurmd", "sbatch":
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    if os.geteuid() != 0:
        pytest.skip("only root may run slurmctld here")
    ports = [free_port() for _ in range(3)]
    host = socket.gethostname()
    for folder in ("state", "spool-n1", "spool-n2"):
        (tmp_path / folder).mkdir()
    config = tmp_path / "slurm.conf"
    config.write_text(f"""ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={tmp_path}/state
SlurmdSpoolDir={tmp_path}/spool-%n
SlurmctldPidFile={tmp_path}/ctld.pid
SlurmdPidFile={tmp_path}/%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 RealMemory=1000
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
    env = {**os.environ, "SLURM_CONF": str(config)}
    daemons = []
    try:
        for command in (["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]):
            with open(tmp_path / f"{'-'.join(command)}.log", "wb") as log:
                daemons.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        wait_for("two nodes", lambda: run("sinfo", "-h", "-t", "idle", "-o", "%D", env=env).stdout.strip() == "2", PATIENCE)
        done = run("sbatch", "--test-only", SBATCH, "/models/m", env=env)
        assert done.returncode == 0 and "on nodes n[1-2]" in done.stderr, done.stdout + done.stderr
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(PATIENCE)
