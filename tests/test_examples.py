"""The examples for clusters: their form, and that torchrun and the training program know every option.

No cluster is here. In the place of `srun`, `torchrun` and the other programs that a script starts, there are
some that write down how they were called.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from torch.distributed.run import get_args_parser

from shardbook.train import ranks
from shardbook.train.options import parse

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SHELLCHECK = Path(sys.executable).parent / "shellcheck"
JOB = EXAMPLES / "pytorchjob.yaml"
SCHEMA = yaml.safe_load((Path(__file__).parent / "pytorchjob_schema.yaml").read_text("utf-8"))


def shellcheck(*files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SHELLCHECK), *map(str, files)], capture_output=True, text=True, check=False)


def test_shellcheck_has_no_objection_to_any_script(tmp_path: Path) -> None:
    scripts = sorted(EXAMPLES.glob("*.sh"))
    assert [script.name for script in scripts] == ["slurm.sh", "torchrun.sh"]
    checked = shellcheck(*scripts)
    assert checked.returncode == 0, checked.stdout
    for script in scripts:
        assert os.access(script, os.X_OK)
    # It sees what is wrong.
    (tmp_path / "bad.sh").write_text("#!/bin/bash\nrm $1/*\n", "utf-8")
    assert "SC2086" in shellcheck(tmp_path / "bad.sh").stdout


# A torchrun that tells how long it would wait for a save.
TORCHRUN = "print(os.environ['PET_SHUTDOWN_TIMEOUT'])"


def understood(
    words: list[str], monkeypatch: pytest.MonkeyPatch, seconds: int = 30
) -> tuple[Any, argparse.Namespace]:
    """The words after `torchrun` as it reads them, and those of the program as the program reads them."""
    monkeypatch.setenv("PET_SHUTDOWN_TIMEOUT", str(seconds))
    launch = get_args_parser().parse_args(words)
    assert launch.module
    # PyTorch 2.11 does not read it.
    assert getattr(launch, "shutdown_timeout", seconds) == seconds
    assert launch.training_script == "shardbook.train"
    # The folders are on other machines: a rank that writes no file does not look for them.
    monkeypatch.setenv("RANK", "1")
    return launch, parse(launch.training_script_args)


def check_mesh(launch: Any, options: argparse.Namespace) -> None:
    """Each machine has a copy of the model."""
    assert str(options.mesh) == f"{launch.nnodes}x{launch.nproc_per_node}"
    assert options.checkpoints is not None


@pytest.fixture
def programs(tmp_path: Path) -> Callable[..., Path]:
    """Programs that write their name and arguments into a file, as a line of JSON, and then run some code."""

    def make(**codes: str) -> Path:
        for name, code in codes.items():
            program = tmp_path / name
            program.write_text(
                f"#!{sys.executable} -IS\nimport json, os, signal, sys\n"
                f"with open({str(tmp_path / 'called')!r}, 'a') as file:\n"
                f"    print(json.dumps([{name!r}, *sys.argv[1:]]), file=file)\n{code}\n",
                "utf-8",
            )
            program.chmod(0o755)
        return tmp_path

    return make


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "called").read_text("utf-8").splitlines()]


def run_script(
    name: str, *arguments: str, programs: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script with the programs of a folder before all others."""
    path = os.pathsep.join([*([str(programs)] if programs else []), os.environ["PATH"]])
    return subprocess.run(
        [str(EXAMPLES / name), *arguments],
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_line_for_several_machines_is_understood(
    programs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = programs(torchrun=TORCHRUN)
    done = run_script("torchrun.sh", "host-1", "3", "4", "--steps", "50", "--data", "a b", programs=folder)
    assert done.returncode == 0, done.stderr
    ((_, *words),) = calls(folder)
    launch, options = understood(words, monkeypatch, int(done.stdout))
    check_mesh(launch, options)
    assert (launch.nnodes, launch.nproc_per_node, launch.rdzv_endpoint) == ("3", "4", "host-1:29500")
    assert (options.steps, options.data) == (50, Path("a b"))
    assert run_script("torchrun.sh", "host-1").returncode == 2


SLURM = {
    "SLURM_JOB_ID": "12345678",
    "SLURM_JOB_NODELIST": "gpu[3-4]",
    "SLURM_NNODES": "2",
    "SLURM_CPUS_PER_TASK": "32",
}
SCONTROL = "print('gpu3\\ngpu4') if sys.argv[1] == 'show' else None"


def slurm_options() -> dict[str, str]:
    """What the script asks Slurm for."""
    lines = (EXAMPLES / "slurm.sh").read_text("utf-8").splitlines()
    asked = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH --")]
    return dict(one.split("=", 1) for one in asked if "=" in one)


def test_the_job_for_slurm_is_understood(
    programs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # srun starts the rest of its line, here once.
    srun = "words = [word for word in sys.argv[1:] if 'torchrun' in word or not word.startswith('--kill')]\n"
    folder = programs(
        srun=f"{srun}os.execvp(words[0], words)", torchrun=TORCHRUN, scontrol=SCONTROL, scancel=""
    )
    done = run_script("slurm.sh", "--steps", "900", programs=folder, **SLURM)
    assert done.returncode == 0, done.stderr
    names = [name for name, *_ in calls(folder)]
    assert names == ["scontrol", "srun", "torchrun"]
    asked = slurm_options()
    seconds = int(done.stdout)
    launch, options = understood(calls(folder)[-1][1:], monkeypatch, seconds)
    check_mesh(launch, options)
    assert (launch.nnodes, launch.nproc_per_node) == (asked["nodes"], asked["gpus-per-node"])
    assert launch.rdzv_endpoint == "gpu3:25678"
    assert options.steps == 900
    # One torchrun on a machine. It may wait for a save, and Slurm warns earlier than that.
    assert asked["ntasks-per-node"] == "1"
    assert seconds + 60 < int(asked["signal"].removeprefix("B:USR1@"))
    assert "#SBATCH --requeue" in (EXAMPLES / "slurm.sh").read_text("utf-8").splitlines()


# What srun does once the time is up, and what the script then does with the job.
ENDINGS = [
    ("the run saves itself and leaves", "sys.exit(1)", 1, True),
    ("the run was done", "sys.exit(0)", 0, False),
]


@pytest.mark.parametrize(("ending", "code", "returned", "again"), ENDINGS, ids=[row[0] for row in ENDINGS])
def test_before_its_time_is_up_the_job_ends_its_run_and_comes_back(
    programs: Callable[..., Path], ending: str, code: str, returned: int, again: bool
) -> None:
    # The signal comes from Slurm to the script; the run ends when scancel has passed it on.
    srun = f"""
def leave(*_):
    {code}
signal.signal(signal.SIGTERM, leave)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with open({"FOLDER"!r} + '/pid', 'w') as file:
    file.write(str(os.getpid()))
os.kill(os.getppid(), signal.SIGUSR1)
signal.sigwait([signal.SIGTERM])
leave()
"""
    folder = programs(scontrol=SCONTROL)
    programs(srun=srun.replace("FOLDER", str(folder)))
    programs(scancel=f"os.kill(int(open({str(folder / 'pid')!r}).read()), signal.SIGTERM)")
    done = run_script("slurm.sh", programs=folder, **SLURM)
    assert done.returncode == returned, done.stderr
    after = calls(folder)[2:]
    assert after[0] == ["scancel", "--signal=TERM", "12345678"]
    assert after[1:] == ([["scontrol", "requeue", "12345678"]] if again else [])


def test_after_an_error_the_job_does_not_come_back(programs: Callable[..., Path]) -> None:
    folder = programs(srun="sys.exit(3)", scontrol=SCONTROL, scancel="")
    assert run_script("slurm.sh", programs=folder, **SLURM).returncode == 3
    assert [name for name, *_ in calls(folder)] == ["scontrol", "srun"]


def test_the_line_in_the_chapter_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    commentary = re.sub(r"(?m)^# ?", "", Path(ranks.__file__).read_text("utf-8"))
    (line,) = re.findall(r"```sh\n(torchrun .*?)```", commentary, re.DOTALL)
    _, *words = shlex.split(line.replace("\\\n", " "))
    check_mesh(*understood(words, monkeypatch))


def job() -> Any:
    return yaml.safe_load(JOB.read_text("utf-8"))


def test_the_job_for_kubernetes_is_one_and_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(job(), SCHEMA)
    spec = job()["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    count = sum(each["replicas"] for each in replicas.values())
    pod = replicas["Master"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["torchrun"]
    # What the operator tells each container.
    operator = {"NNODES": count, "NPROC_PER_NODE": spec["nprocPerNode"], "NODE_RANK": 1}
    for name, value in {**operator, "MASTER_ADDR": "shardbook-master-0", "MASTER_PORT": 23456}.items():
        monkeypatch.setenv(f"PET_{name}", str(value))
    variables = {each["name"]: each["value"] for each in container["env"]}
    seconds = int(variables["PET_SHUTDOWN_TIMEOUT"])
    launch, options = understood(container["args"], monkeypatch, seconds)
    check_mesh(launch, options)
    assert (launch.node_rank, launch.master_addr) == (1, "shardbook-master-0")
    limits = container["resources"]["limits"]
    assert str(limits["nvidia.com/gpu"]) == spec["nprocPerNode"]
    # Kubernetes waits longer than torchrun, which waits for a save.
    assert seconds < pod["terminationGracePeriodSeconds"]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounted.values()) == set(volumes)
    for folder in (options.checkpoints, options.data):
        claim = volumes[mounted[str(folder.parent)]]
        assert "persistentVolumeClaim" in claim


def changed(change: Callable[[Any], object]) -> Any:
    wrong = copy.deepcopy(job())
    change(wrong["spec"])
    return wrong


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(nprocPerNode=8),
        lambda spec: spec.update(restartPolicy="OnFailure"),
        lambda spec: spec.pop("pytorchReplicaSpecs"),
        lambda spec: spec["pytorchReplicaSpecs"]["Master"].update(replicas=2),
        lambda spec: spec["pytorchReplicaSpecs"]["Worker"].update(restartPolicy="Sometimes"),
        lambda spec: spec["runPolicy"].update(backofLimit=3),
        lambda spec: spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0].update(
            name="train"
        ),
    ],
)
def test_the_schema_sees_a_mistake(change: Callable[[Any], object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(change), SCHEMA)
