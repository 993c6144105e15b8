"""A launch directory on Kubernetes: one JobSet, or one PyTorchJob a group of nodes.

A group is a run of nodes in rank order with one class and as many processes; its pods get the node
ranks that follow its offset. No pod name or scheduling order decides what runs where.
(JobSet v1alpha2 and Kubeflow training operator v1, documentation; pods of a JobSet answer to
NAME-GROUP-JOB-POD.NAME.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import yaml

from planner.data.chip import Backend
from planner.data.problem import Problem
from planner.launchers.placement import HostPlace

CLASS_LABEL = "hetplan.io/node-class"
"""Label by which pods find the nodes of their class."""

_DEVICES: dict[Backend, str] = {
    "cuda": "nvidia.com/gpu",
    "rocm": "amd.com/gpu",
    "ascend": "huawei.com/Ascend910",
    "gaudi": "habana.ai/gaudi",
    "tpu": "google.com/tpu",
    "neuron": "aws.amazon.com/neuron",
}
"""Resource name of a platform's device plugin, as its vendor documents it."""

_PORT = 29500
_FOLDER = "/hetplan"
_SHARED_MEMORY = "64Gi"
"""Most that loaders and NCCL may take in /dev/shm; the default of containers, 64 MiB, is too little."""
_RESTARTS = 3
"""How often a run that has failed starts anew by itself."""
_SETTINGS = ("CHECKPOINT_PATH", "DATA_PATH", "TOKENIZER_MODEL", "LOG_DIR")
"""Variables of launch.sh that are empty in the manifests, for paths of volumes."""
Tree = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Nodes with neighbouring ranks, one class and as many processes each."""

    name: str
    node_class: str
    first_node: int
    num_nodes: int
    num_chips: int
    backend: Backend


def kubernetes_files(problem: Problem, places: tuple[HostPlace, ...], library: list[str]) -> dict[str, str]:
    """Manifests of a launch directory, by path.

    Parameters
    ----------
    library
        Names of the files in `lib/`.
    """
    job = _label(f"hetplan-{problem.name}")[:40].strip("-")
    made = groups(problem, places)
    files = {"forms/kubernetes/jobset.yaml": _text(job, library, [_jobset(job, made, library)])}
    jobs = [_pytorchjob(job, group, made[0], library) for group in made]
    return files | {"forms/kubernetes/pytorchjobs.yaml": _text(job, library, jobs)}


def groups(problem: Problem, places: tuple[HostPlace, ...]) -> tuple[Group, ...]:
    """The nodes in rank order, cut wherever class or number of processes changes."""
    class_of_host = {
        host: node_class.name
        for i, node_class in enumerate(problem.cluster.classes)
        for host in problem.cluster.hosts_of(i)
    }

    def kind(item: tuple[int, HostPlace]) -> tuple[str, int]:
        return class_of_host.get(item[1].name, item[1].chip), item[1].num_processes

    found = []
    for number, ((name, _), run) in enumerate(groupby(enumerate(places), key=kind)):
        members = list(run)
        first, place = members[0]
        backend = problem.chips[place.chip].backend
        found.append(Group(f"g{number}", _label(name), first, len(members), place.num_chips, backend))
    return tuple(found)


def _jobset(job: str, made: tuple[Group, ...], library: list[str]) -> Tree:
    master = f"{job}-{made[0].name}-0-0.{job}"
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job},
            # A run that lost a pod starts anew as a whole.
            "failurePolicy": {"maxRestarts": _RESTARTS},
            "replicatedJobs": [
                {
                    "name": group.name,
                    "replicas": 1,
                    "template": {
                        "spec": {
                            "completionMode": "Indexed",
                            "parallelism": group.num_nodes,
                            "completions": group.num_nodes,
                            "backoffLimit": 0,
                            "template": {
                                "spec": _pod(job, group, master, "JOB_COMPLETION_INDEX", [], library)
                            },
                        }
                    },
                }
                for group in made
            ],
        },
    }


def _pytorchjob(job: str, group: Group, first: Group, library: list[str]) -> Tree:
    index = {
        "name": "REPLICA_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}},
    }
    master = f"{job}-{first.name}-worker-0"
    pod = _pod(job, group, master, "REPLICA_INDEX", [index], library)
    pod["restartPolicy"] = "OnFailure"
    pod["containers"][0]["name"] = "pytorch"  # the operator looks for this name
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": f"{job}-{group.name}"},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": _RESTARTS * group.num_nodes},
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": group.num_nodes,
                    "restartPolicy": "OnFailure",
                    "template": {"spec": pod},
                }
            },
        },
    }


def _pod(job: str, group: Group, master: str, index: str, more: list[Tree], library: list[str]) -> Tree:
    device = _DEVICES.get(group.backend, f"FILL_IN/{group.backend}")
    start = f"NODE_RANK=$(({group.first_node} + {index})) exec bash {_FOLDER}/launch.sh"
    names = ["launch.sh", "hosts.txt"]
    items = [{"key": name, "path": name} for name in names]
    items += [{"key": name, "path": f"lib/{name}"} for name in library]
    return {
        "restartPolicy": "Never",
        "nodeSelector": {CLASS_LABEL: group.node_class},
        "containers": [
            {
                "name": "trainer",
                "image": "FILL_IN",
                "command": ["bash", "-c", start],
                "env": [
                    *more,
                    {"name": "MASTER_ADDR", "value": master},
                    {"name": "MASTER_PORT", "value": str(_PORT)},
                    {"name": "MEGATRON_PATH", "value": "/opt/Megatron-LM"},
                    *({"name": name, "value": ""} for name in _SETTINGS),
                ],
                "ports": [{"containerPort": _PORT}],
                "resources": {"limits": {device: group.num_chips}},
                "volumeMounts": [
                    {"name": "hetplan", "mountPath": _FOLDER},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "hetplan", "configMap": {"name": job, "items": items}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}},
        ],
    }


def _text(job: str, library: list[str], objects: list[Tree]) -> str:
    """Objects under a heading that says what must be there before them."""
    files = " ".join(f"--from-file=lib/{name}" for name in library)
    heading = (
        "# Before: from the launch directory,\n"
        f"#   kubectl create configmap {job} --from-file=launch.sh --from-file=hosts.txt {files}\n"
        f"# and label the nodes of each class: kubectl label node NODE {CLASS_LABEL}=CLASS\n"
        "# Fill in the image, which holds Megatron-LM under MEGATRON_PATH. Untried on a real cluster.\n"
        "# RDMA needs your device plugin's resource and, in securityContext, the capability IPC_LOCK.\n"
        f"# When a pod fails, a JobSet starts anew as a whole, {_RESTARTS} times at most. Of PyTorchJobs\n"
        "# each pod starts anew, as soon as it misses the lost one. Without CHECKPOINT_PATH on a volume\n"
        "# they begin with the first step again.\n"
        "# Logs: kubectl logs, or a volume's path in LOG_DIR. Shared memory counts as memory of the pod.\n"
    )
    return heading + "---\n".join(_dumped(objects))


def _dumped(objects: list[Tree]) -> Iterator[str]:
    for tree in objects:
        yield yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    """No anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _label(text: str) -> str:
    """A name that Kubernetes takes: lower case, digits and dashes, at most 63 characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-") or "plan"
