"""Breaks copies of the manifests on purpose, one thing at a time; each must be found, by the right rule.

    python tests/deploy/broken.py --baton target/release/baton --model MODEL
"""

import argparse
import pathlib
import shutil
import sys
import tempfile

import check
from binary import Binary, Service
from findings import Findings
from manifests import KUBERNETES

# File below deploy/kubernetes, what is replaced by what, an overlay that shows it, rule that must find it.
BREAKS = [
    ("base/router.yaml", "minReadySeconds: 10", "minReadySecond: 10", "cpu", "schema"),
    ("base/decode.yaml", "replicas: 2", "replicas: two", "cpu", "schema"),
    ("base/decode.yaml", "kind: Deployment", "kind: Deploymnt", "cpu", "schema"),
    ("base/kustomization.yaml", "  - decode.yaml\n", "  - decoder.yaml\n", "cpu", "build"),
    ("base/kustomization.yaml", "BATON_TRANSFER_PORT=7072", "BATON_TRANSFER_PROT=7072", "cpu", "flags"),
    ("base/kustomization.yaml", "BATON_TRANSFER_PORT=7072", "BATON_TRANSFER_PORT=70720", "cpu", "flags"),
    ("base/kustomization.yaml", "BATON_DRAIN_NOTICE_MS=10000", "BATON_DRAIN_NOTICE_MS=10s", "cpu", "flags"),
    ("base/kustomization.yaml", "BATON_TRANSPORT=tcp", "BATON_TRANSPORT=carrier-pigeon", "cpu", "flags"),
    ("base/decode.yaml", "args: [decode]", "args: [decoder]", "cpu", "flags"),
    ("base/decode.yaml", "args: [decode]", "args: [decode, --page-sizes=16]", "cpu", "flags"),
    ("base/decode.yaml", "containerPort: 7072", "containerPort: 7073", "cpu", "ports"),
    ("base/router.yaml", "targetPort: http", "targetPort: web", "cpu", "ports"),
    ("base/kustomization.yaml", "BATON_HTTP_LISTEN=0.0.0.0:8000", "BATON_HTTP_LISTEN=0.0.0.0:8080", "cpu", "ports"),
    ("base/prefill.yaml", "service: ready", "service: readiness", "cpu", "k8s_04"),
    ("base/prefill.yaml", "service: live", "service: ready", "cpu", "k8s_04"),
    ("base/prefill.yaml", "port: 7071", "port: 7070", "cpu", "k8s_04"),
    ("base/decode.yaml", "failureThreshold: 3", "failureThreshold: 1", "cpu", "k8s_05"),
    ("base/decode.yaml", "terminationGracePeriodSeconds: 630", "terminationGracePeriodSeconds: 60", "cpu", "k8s_01"),
    ("base/kustomization.yaml", "BATON_DRAIN_LIMIT_MS=600000", "BATON_DRAIN_LIMIT_MS=30000", "cpu", "k8s_01"),
    ("base/kustomization.yaml", "      - BATON_DRAIN_NOTICE_MS=10000\n", "", "cpu", "k8s_02"),
    ("base/prefill.yaml", "maxUnavailable: 0", "maxUnavailable: 1", "cpu", "k8s_03"),
    ("base/prefill.yaml", "maxSurge: 1", "maxSurge: 0", "cpu", "k8s_03"),
    ("base/prefill.yaml", "minReadySeconds: 10", "minReadySeconds: 0", "cpu", "k8s_03"),
    ("overlays/single-node/kustomization.yaml", "type: Recreate", "type: RollingUpdate", "single-node", "k8s_03"),
    ("base/decode.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "cpu", "security"),
    ("base/decode.yaml", "drop: [ALL]", "drop: [NET_RAW]", "cpu", "security"),
    ("base/router.yaml", "enableServiceLinks: false", "enableServiceLinks: true", "cpu", "security"),
    ("overlays/cpu/kustomization.yaml", "newTag: 0.1.0", "newTag: latest", "cpu", "image"),
    ("base/router.yaml", "            - name: tmp\n", "            - name: temp\n", "cpu", "references"),
    ("base/kustomization.yaml", "  - disruption-budgets.yaml\n", "", "cpu", "references"),
    ("base/network-policies.yaml", "name: baton-default-deny", "name: baton-router", "cpu", "build"),
    ("base/network-policies.yaml", "policyTypes: [Ingress, Egress]", "policyTypes: [Egress]", "cpu", "network"),
    ("base/network-policies.yaml", "port: transfer}", "port: grpc}", "cpu", "network"),
    ("base/network-policies.yaml", "values: [prefill, decode]", "values: [prefill]", "cpu", "network"),
    ("components/etcd/etcd.yaml", "values: [router, prefill, decode]", "values: [router]", "cpu", "network"),
    ("overlays/single-node/kustomization.yaml", "  - registrations.yaml\n", "", "single-node", "network"),
]


def found(kubernetes, overlay, rule, binary, health):
    """What one rule finds in one overlay."""
    findings = Findings(rule)
    check.check_overlay(findings, kubernetes / "overlays" / overlay, binary, health)
    return findings.problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baton", required=True, help="the binary")
    parser.add_argument("--model", required=True, help="any model, to run the binary with")
    options = parser.parse_args()
    binary, missed = Binary(options.baton), []
    with Service(binary, options.model) as service:
        health = service.health({"live", "ready"})
    for file, old, new, overlay, rule in BREAKS:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder, "kubernetes")
            shutil.copytree(KUBERNETES, copy)
            text = (copy / file).read_text()
            if old not in text:
                missed.append(f"{file} has no {old!r} to break")
                continue
            (copy / file).write_text(text.replace(old, new))
            problems = found(copy, overlay, rule, binary, health)
            if not problems:
                missed.append(f"{file}: {old!r} as {new!r} is not found by {rule}")
    print(*missed, f"{len(BREAKS)} broken copies, {len(missed)} not found", sep="\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
