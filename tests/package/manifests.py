#!/usr/bin/python3
"""Checks the manifests in FOLDER: fields and types against the classes of python3-kubernetes, which are generated from
the published OpenAPI of Kubernetes, and what no schema says: that names, selectors and numbers fit each other.

  manifests.py FOLDER     exit code 77: a Python module is missing
"""
import pathlib
import re
import sys

try:
    import yaml
    from kubernetes.client import models
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PRIMITIVES = {"str": str, "int": int, "bool": bool, "object": (str, int, dict)}


def check(value, kind, path):
    """Recurses; makes the objects, whose constructors raise ValueError when a required field is missing."""
    if inner := re.fullmatch(r"list\[(.*)\]", kind):
        assert isinstance(value, list), f"{path}: is no list"
        return [check(item, inner[1], f"{path}[{i}]") for i, item in enumerate(value)]
    if inner := re.fullmatch(r"dict\(str, (.*)\)", kind):
        return {key: check(item, inner[1], f"{path}.{key}") for key, item in value.items()}
    if kind in PRIMITIVES:
        assert isinstance(value, PRIMITIVES[kind]), f"{path}: {value!r} is no {kind}"
        return value
    model = getattr(models, kind)
    names = {json: name for name, json in model.attribute_map.items()}
    for key in value:
        assert key in names, f"{path}: {kind} has no field {key}"
    try:
        return model(**{names[key]: check(item, model.openapi_types[names[key]], f"{path}.{key}")
                        for key, item in value.items()})
    except ValueError as error:
        raise AssertionError(f"{path}: {error}") from error


def environment(pod):
    return {variable.name: variable.value for variable in pod.containers[0].env or []}


def check_pod(pod):
    volumes = {volume.name for volume in pod.volumes or []}
    for container in pod.containers:
        assert container.resources.limits.keys() == {"cpu", "memory"}, f"{container.name}: limits"
        assert {mount.name for mount in container.volume_mounts or []} <= volumes, f"{container.name}: volumes"


def check_job(folder):
    service, job = yaml.safe_load_all((folder / "job.yaml").read_text())
    service, job = check(service, "V1Service", "Service"), check(job, "V1Job", "Job")
    pod, name = job.spec.template.spec, job.metadata.name
    check_pod(pod)
    assert (service.api_version, service.kind, job.api_version, job.kind) == ("v1", "Service", "batch/v1", "Job")
    assert service.spec.cluster_ip == "None" and service.spec.publish_not_ready_addresses
    assert service.spec.selector == {"job-name": name}, "the Service selects other pods"
    assert pod.subdomain == service.metadata.name, "pods have no name in the Service"
    assert job.spec.completion_mode == "Indexed" and job.spec.parallelism == job.spec.completions
    assert pod.restart_policy == "Never"  # a Job takes no Always
    variables = environment(pod)
    assert variables["WORLD_SIZE"] == str(job.spec.completions), "WORLD_SIZE is not the number of pods"
    assert variables["MASTER_ADDR"] == f"{name}-0.{service.metadata.name}", "MASTER_ADDR is not pod 0"
    assert 0 < int(variables["MASTER_PORT"]) < 65536


def check_mpi_job(folder):
    """MPIJob is of kubeflow; its fields here are those of v2beta1, its pods Kubernetes' own."""
    job = yaml.safe_load((folder / "mpijob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec, name = job["spec"], job["metadata"]["name"]
    assert spec.keys() <= {"slotsPerWorker", "sshAuthMountPath", "runPolicy", "mpiReplicaSpecs"}
    assert spec["runPolicy"].keys() <= {"cleanPodPolicy", "backoffLimit"}
    assert spec["mpiReplicaSpecs"].keys() == {"Launcher", "Worker"}
    pods = {}
    for role, replica in spec["mpiReplicaSpecs"].items():
        assert replica.keys() == {"replicas", "template"}
        pods[role] = check(replica["template"], "V1PodTemplateSpec", role).spec
        check_pod(pods[role])
    launcher = pods["Launcher"].containers[0]
    ranks = spec["slotsPerWorker"] * spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    assert launcher.command == ["mpirun"] and launcher.args[:2] == ["-n", str(ranks)]
    variables = environment(pods["Launcher"])
    assert variables["MASTER_ADDR"] == f"{name}-worker-0.{name}", "MASTER_ADDR is not worker 0"
    assert all(["-x", variable] == launcher.args[i - 1:i + 1] for variable in variables
               for i in [launcher.args.index(variable)]), "mpirun does not hand a variable on"


def main():
    folder = pathlib.Path(sys.argv[1])
    check_job(folder)
    check_mpi_job(folder)
    print("nothing wrong")


if __name__ == "__main__":
    main()
