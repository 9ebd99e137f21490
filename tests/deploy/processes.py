"""What the containers of Baton would run in one overlay, as JSON: arguments, variables, ports, probes.

    python tests/deploy/processes.py OVERLAY        (`cpu+mtls` is `cpu` with the component `mtls`)
"""

import json
import sys
import tempfile

from check import copy_of
from manifests import DEPLOY, Manifests, build


def processes(manifests):
    """One entry per workload of Baton."""
    for workload, container in manifests.roles():
        environment, problems = manifests.environment(workload, container)
        if problems:
            sys.exit("; ".join(problems))
        certificate = manifests.find("Certificate", f"{workload['metadata']['name']}-tls")
        kinds = ("startupProbe", "readinessProbe", "livenessProbe")
        yield {
            "role": container["args"][0],
            "arguments": container["args"],
            "environment": {name: str(value) for name, value in environment.items()},
            "ports": {port["name"]: port["containerPort"] for port in container["ports"]},
            "probes": {kind: container[kind].get("grpc") or container[kind]["exec"] for kind in kinds},
            "certificate": certificate["spec"]["dnsNames"] if certificate else [],
        }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        overlay = copy_of(DEPLOY, folder) / "kubernetes" / "overlays" / sys.argv[1]
        json.dump(list(processes(Manifests(build(overlay)))), sys.stdout)
