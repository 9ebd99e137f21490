"""Manifests as they reach a cluster: built by kubectl, with what the checks ask of them.

Must not know what is right and what is wrong.
"""

import pathlib
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
WORKLOADS = ("Deployment", "StatefulSet")


def tool(name):
    """A program of the environment that this script runs in."""
    return str(pathlib.Path(sys.executable).parent / name)


class BuildError(Exception):
    """kubectl cannot build it."""


def build(folder):
    """All documents of one kustomization."""
    command = [tool("kubectl"), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise BuildError(done.stderr.strip())
    # Warnings tell of fields that will be gone.
    if done.stderr.strip():
        raise BuildError(f"kubectl kustomize warns: {done.stderr.strip()}")
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def name_of(document):
    """`Kind/name`, for messages."""
    return f"{document.get('kind')}/{document.get('metadata', {}).get('name')}"


class Manifests:
    """The documents of one overlay."""

    def __init__(self, documents):
        self.documents = documents

    def of(self, *kinds):
        """Documents of these kinds."""
        return [d for d in self.documents if d.get("kind") in kinds]

    def find(self, kind, name):
        """The document of this name, or None."""
        return next((d for d in self.of(kind) if d["metadata"]["name"] == name), None)

    def workloads(self):
        """Everything that runs pods."""
        return self.of(*WORKLOADS)

    def component(self, name):
        """The workload of one component (`router`, `prefill`, …), or None."""
        label = "app.kubernetes.io/component"
        return next((w for w in self.workloads() if labels_of(w).get(label) == name), None)

    def roles(self):
        """Workloads that run Baton, with their container."""
        for workload in self.workloads():
            for container in pod_of(workload)["containers"]:
                if container["name"] == "baton":
                    yield workload, container

    def environment(self, workload, container):
        """Variables of a container as its process sees them; None is the value of a Secret."""
        values, problems = {}, []
        for source in container.get("envFrom", []):
            reference = source.get("configMapRef")
            found = reference and self.find("ConfigMap", reference["name"])
            if reference and found:
                values |= found.get("data", {})
            elif not (reference or source.get("secretRef", {})).get("optional"):
                problems.append(f"envFrom names {source}, which is not there")
        for variable in container.get("env", []):
            values[variable["name"]] = self.value(variable, workload, container)
        return values, problems

    def value(self, variable, workload, container):
        """What one variable would be in a first pod."""
        if "value" in variable:
            return variable["value"]
        source = variable["valueFrom"]
        if "fieldRef" in source:
            name = workload["metadata"]["name"]
            known = {"status.podIP": "10.0.0.1", "metadata.name": f"{name}-6f7c9d5b4d-x2x7k"}
            return known.get(source["fieldRef"]["fieldPath"], "")
        if "resourceFieldRef" in source:
            kind, resource = source["resourceFieldRef"]["resource"].split(".")
            return whole(container["resources"][kind][resource])
        return None


def whole(quantity):
    """CPUs as a whole number, rounded up as Kubernetes does."""
    text = str(quantity)
    return str(-(-int(text[:-1]) // 1000)) if text.endswith("m") else text


def pod_of(workload):
    """The pod's specification."""
    return workload["spec"]["template"]["spec"]


def labels_of(workload):
    """The pod's labels."""
    return workload["spec"]["template"]["metadata"].get("labels", {})


def selects(selector, labels):
    """Whether a label selector takes these labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for rule in selector.get("matchExpressions") or []:
        has, value = rule["key"] in labels, labels.get(rule["key"])
        fits = {
            "In": value in rule.get("values", []),
            "NotIn": value not in rule.get("values", []),
            "Exists": has,
            "DoesNotExist": not has,
        }[rule["operator"]]
        if not fits:
            return False
    return True


def ports_of(workload):
    """Ports of a pod by name."""
    containers = pod_of(workload)["containers"]
    return {p["name"]: p["containerPort"] for c in containers for p in c.get("ports", [])}
