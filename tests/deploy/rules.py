"""Writes the alert rules for the Prometheus operator from those for Prometheus, or compares them.

    python tests/deploy/rules.py
"""

import textwrap

from manifests import DEPLOY

HEAD = """\
# Written by tests/deploy/rules.py from deploy/prometheus/alerts.yaml, which is what to change.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: baton
spec:
"""


def operator_rules(deploy):
    """Text of the PrometheusRule."""
    lines = (deploy / "prometheus" / "alerts.yaml").read_text().splitlines(keepends=True)
    rules = "".join(line for line in lines if not line.startswith("#"))
    return HEAD + textwrap.indent(rules, "  ")


def path(deploy):
    """Where it stands."""
    return deploy / "kubernetes" / "components" / "monitoring" / "alerts.yaml"


if __name__ == "__main__":
    path(DEPLOY).write_text(operator_rules(DEPLOY))
