"""Checks the manifests of this folder, and prints the environment of each pod that they would start.

    manifests.py FILE...

Against the JSON schemas of Kubernetes' own types (in kubernetes-validate, from PyPI), strictly: a field that there is
not is an error. And for what schemas do not say: that the names, labels and numbers in one file fit together.

Printed is one line for each pod, `FILE RANK NAME=VALUE NAME=VALUE ..`, with what Kubernetes sets by itself included.
Values that only a cluster knows are printed as `-`.
"""

import sys
from pathlib import Path

import kubernetes_validate
import yaml

VERSIONS = ["1.27", kubernetes_validate.latest_version()]


def check_schemas(document):
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


def variables(container):
    """What the manifest sets; None for what only a cluster knows."""
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def pods(service, owner):
    """The environment of each pod, after a look at whether the two documents fit together."""
    name, spec = owner["metadata"]["name"], owner["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    said = variables(container)

    if owner["kind"] == "Job":
        assert spec["completionMode"] == "Indexed", "pods without an index have no rank"
        assert spec["completions"] == spec["parallelism"], "some pods would wait for others to end"
        size, subdomain, labels = spec["completions"], pod["subdomain"], {"job-name": name}
    else:
        assert spec["podManagementPolicy"] == "Parallel", "the first pod would wait for the rest"
        size, subdomain = spec["replicas"], spec["serviceName"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels

    assert service["spec"]["clusterIP"] == "None", "a service with an address gives its pods no names"
    assert service["spec"]["publishNotReadyAddresses"], "pods could not find each other before they are ready"
    assert service["spec"]["selector"] == labels, "the service is for other pods"
    assert service["metadata"]["name"] == subdomain, "the pods have no names in this service"
    assert said["FARREF_WORLD_SIZE"] == str(size), "the world size is not the number of pods"
    assert said["MASTER_ADDR"] == f"{name}-0.{subdomain}", "rank 0 is elsewhere"
    assert not {"RANK", "WORLD_SIZE"} & set(said), "these would make torchrun the launcher"
    assert {"FARREF_ADVERTISE", "FARREF_TOKEN", "MASTER_PORT"} <= set(said)

    for rank in range(size):
        environment = {**said, "HOSTNAME": f"{name}-{rank}"}
        if owner["kind"] == "Job":
            environment["JOB_COMPLETION_INDEX"] = str(rank)
        yield rank, environment


def main():
    for path in map(Path, sys.argv[1:]):
        documents = list(yaml.safe_load_all(path.read_text()))
        for document in documents:
            check_schemas(document)
            kind, name = document["kind"], document["metadata"]["name"]
            print(f"{path.name}: {kind} {name} is valid for Kubernetes {' and '.join(VERSIONS)}", file=sys.stderr)
        for rank, environment in pods(*documents):
            settings = (f"{name}={'-' if value is None else value}" for name, value in environment.items())
            print(path.name, rank, *settings)


main()
