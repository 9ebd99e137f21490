"""What the containers of Baton would run in one overlay, as JSON: arguments, variables, ports, probes.

    python tests/deploy/processes.py OVERLAY
"""

import json
import sys

from manifests import DEPLOY, Manifests, build


def processes(manifests):
    """One entry per workload of Baton."""
    for workload, container in manifests.roles():
        environment, problems = manifests.environment(workload, container)
        if problems:
            sys.exit("; ".join(problems))
        kinds = ("startupProbe", "readinessProbe", "livenessProbe")
        yield {
            "role": container["args"][0],
            "arguments": container["args"],
            "environment": {name: str(value) for name, value in environment.items()},
            "ports": {port["name"]: port["containerPort"] for port in container["ports"]},
            "probes": {kind: container[kind]["grpc"] for kind in kinds},
        }


if __name__ == "__main__":
    json.dump(list(processes(Manifests(build(DEPLOY / "kubernetes" / "overlays" / sys.argv[1])))), sys.stdout)
