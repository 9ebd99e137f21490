"""Breaks copies of the manifests on purpose, one thing at a time; each must be found, by the right rule.

    python tests/deploy/broken.py --baton target/release/baton --model MODEL
"""

import argparse
import sys
import tempfile

import check
from findings import Findings
from manifests import DEPLOY

# File below deploy/, what is replaced by what, an overlay that shows it (none: files), rule that must find it.
BREAKS = [
    ("kubernetes/base/router.yaml", "minReadySeconds: 10", "minReadySecond: 10", "cpu", "schema"),
    ("kubernetes/base/decode.yaml", "replicas: 2", "replicas: two", "cpu", "schema"),
    ("kubernetes/base/decode.yaml", "kind: Deployment", "kind: Deploymnt", "cpu", "schema"),
    ("kubernetes/base/kustomization.yaml", "  - decode.yaml\n", "  - decoder.yaml\n", "cpu", "build"),
    ("kubernetes/base/kustomization.yaml", "BATON_TRANSFER_PORT=7072", "BATON_TRANSFER_PROT=7072", "cpu", "flags"),
    ("kubernetes/base/kustomization.yaml", "BATON_TRANSFER_PORT=7072", "BATON_TRANSFER_PORT=70720", "cpu", "flags"),
    ("kubernetes/base/kustomization.yaml", "BATON_DRAIN_NOTICE_MS=10000", "BATON_DRAIN_NOTICE_MS=10s", "cpu", "flags"),
    ("kubernetes/base/kustomization.yaml", "BATON_TRANSPORT=tcp", "BATON_TRANSPORT=carrier-pigeon", "cpu", "flags"),
    ("kubernetes/base/decode.yaml", "args: [decode]", "args: [decoder]", "cpu", "flags"),
    ("kubernetes/base/decode.yaml", "args: [decode]", "args: [decode, --page-sizes=16]", "cpu", "flags"),
    ("kubernetes/base/decode.yaml", "containerPort: 7072", "containerPort: 7073", "cpu", "ports"),
    ("kubernetes/base/router.yaml", "targetPort: http", "targetPort: web", "cpu", "ports"),
    ("kubernetes/base/kustomization.yaml", "BATON_HTTP_LISTEN=0.0.0.0:8000", "BATON_HTTP_LISTEN=0.0.0.0:8080", "cpu", "ports"),
    ("kubernetes/base/prefill.yaml", "service: ready", "service: readiness", "cpu", "k8s_04"),
    ("kubernetes/base/prefill.yaml", "service: live", "service: ready", "cpu", "k8s_04"),
    ("kubernetes/base/prefill.yaml", "port: 7071", "port: 7070", "cpu", "k8s_04"),
    ("kubernetes/base/decode.yaml", "failureThreshold: 3", "failureThreshold: 1", "cpu", "k8s_05"),
    ("kubernetes/base/decode.yaml", "terminationGracePeriodSeconds: 630", "terminationGracePeriodSeconds: 60", "cpu", "k8s_01"),
    ("kubernetes/base/kustomization.yaml", "BATON_DRAIN_LIMIT_MS=600000", "BATON_DRAIN_LIMIT_MS=30000", "cpu", "k8s_01"),
    ("kubernetes/base/kustomization.yaml", "      - BATON_DRAIN_NOTICE_MS=10000\n", "", "cpu", "k8s_02"),
    ("kubernetes/base/prefill.yaml", "maxUnavailable: 0", "maxUnavailable: 1", "cpu", "k8s_03"),
    ("kubernetes/base/prefill.yaml", "maxSurge: 1", "maxSurge: 0", "cpu", "k8s_03"),
    ("kubernetes/base/prefill.yaml", "minReadySeconds: 10", "minReadySeconds: 0", "cpu", "k8s_03"),
    ("kubernetes/overlays/single-node/kustomization.yaml", "type: Recreate", "type: RollingUpdate", "single-node", "k8s_03"),
    ("kubernetes/base/decode.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "cpu", "security"),
    ("kubernetes/base/decode.yaml", "drop: [ALL]", "drop: [NET_RAW]", "cpu", "security"),
    ("kubernetes/base/router.yaml", "enableServiceLinks: false", "enableServiceLinks: true", "cpu", "security"),
    ("kubernetes/overlays/cpu/kustomization.yaml", "newTag: 0.1.0", "newTag: latest", "cpu", "image"),
    ("kubernetes/base/router.yaml", "            - name: tmp\n", "            - name: temp\n", "cpu", "references"),
    ("kubernetes/base/kustomization.yaml", "  - disruption-budgets.yaml\n", "", "cpu", "references"),
    ("kubernetes/base/network-policies.yaml", "name: baton-default-deny", "name: baton-router", "cpu", "build"),
    ("kubernetes/base/network-policies.yaml", "policyTypes: [Ingress, Egress]", "policyTypes: [Egress]", "cpu", "network"),
    ("kubernetes/base/network-policies.yaml", "port: transfer}", "port: grpc}", "cpu", "network"),
    ("kubernetes/base/network-policies.yaml", "values: [prefill, decode]", "values: [prefill]", "cpu", "network"),
    ("kubernetes/components/etcd/etcd.yaml", "values: [router, prefill, decode]", "values: [router]", "cpu", "network"),
    ("kubernetes/overlays/single-node/kustomization.yaml", "  - registrations.yaml\n", "", "single-node", "network"),
    ("kubernetes/components/mtls/kustomization.yaml", "BATON_TLS_NAME=baton", "BATON_TLS_NAMES=baton", "cpu+mtls", "flags"),
    ("kubernetes/components/mtls/pods.yaml", "health, ready", "health, readiness", "cpu+mtls", "k8s_04"),
    ("kubernetes/components/mtls/certificates.yaml", "isCA: true", "isCa: true", "cpu+mtls", "schema"),
    ("kubernetes/components/mtls/kustomization.yaml", "secretName: baton-router-tls", "secretName: tls", "cpu+mtls", "references"),
    ("kubernetes/components/keda/scaled-objects.yaml", "maxReplicaCount", "maxReplicas", "cpu+keda", "schema"),
    ("kubernetes/components/keda/scaled-objects.yaml", "baton_waiting_tokens", "baton_tokens_waiting", "cpu+keda", "metrics"),
    ("kubernetes/components/keda/kustomization.yaml", "op: remove", "op: test", "cpu+keda", "build"),
    ("kubernetes/components/hpa/autoscalers.yaml", "name: baton-decode", "name: baton-decoders", "cpu+hpa", "references"),
    ("kubernetes/components/hpa/autoscalers.yaml", "name: baton_page_use", "name: baton_pages_used", None, "metrics"),
    ("kubernetes/components/hpa/prometheus-adapter.yaml", "baton_itl_seconds_bucket", "baton_itl_bucket", None, "metrics"),
    ("kubernetes/components/gateway/gateway.yaml", "number: 8000", "number: 80000", "cpu+gateway", "schema"),
    ("kubernetes/components/monitoring/pod-monitor.yaml", "port: metrics", "port: metric", "cpu+monitoring", "ports"),
    ("kubernetes/components/monitoring/alerts.yaml", "alert: BatonErrors", "alert: BatonFaults", None, "alerts"),
    ("kubernetes/components/tracing/kustomization.yaml", "OTLP_ENDPOINT", "OTLP_ENDPOINTS", "cpu+tracing", "flags"),
    ("prometheus/alerts.yaml", "baton_draining", "baton_drains", None, "metrics"),
    ("prometheus/alerts.yaml", "alert: BatonErrors", "alert: BatonFaults", None, "alerts"),
    ("grafana/baton.json", "baton_resumes_total", "baton_resume_total", None, "metrics"),
    ("grafana/baton.json", "state!~", "status!~", None, "metrics"),
    ("kubernetes/base/kustomization.yaml", "BATON_METRICS_LISTEN=0.0.0.0:9464", "BATON_METRICS_LISTEN=off", "cpu", "ports"),
    ("docker/Dockerfile", "USER 65532:65532", "USER baton", None, "image"),
    ("docker/Dockerfile", "debian:12.12-slim", "debian:latest", None, "image"),
    ("docker/Dockerfile", '"health", "live"', '"healthz"', None, "image"),
    ("docker/compose.yaml", "BATON_ADVERTISE: decode", "BATON_ADVERTISE: decoder", None, "compose"),
    ("docker/compose.yaml", "BATON_TRANSFER_PORT", "BATON_TRANSFER_PORTS", None, "compose"),
    ("docker/compose.yaml", "127.0.0.1:8000:8000", "127.0.0.1:8000:8001", None, "compose"),
]


def found(deploy, overlay, rule, facts):
    """What one rule finds in one overlay, or in the files beside them."""
    findings = Findings(rule)
    if overlay:
        check.check_overlay(findings, deploy / "kubernetes" / "overlays" / overlay, facts)
    else:
        check.check_files(findings, deploy, facts)
    return findings.problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baton", required=True, help="the binary")
    parser.add_argument("--model", required=True, help="any model, to run the binary with")
    options = parser.parse_args()
    facts, missed = check.Facts(options.baton, options.model), []
    for file, old, new, overlay, rule in BREAKS:
        with tempfile.TemporaryDirectory() as folder:
            copy = check.copy_of(DEPLOY, folder)
            text = (copy / file).read_text()
            if old not in text:
                missed.append(f"{file} has no {old!r} to break")
                continue
            (copy / file).write_text(text.replace(old, new))
            if not found(copy, overlay, rule, facts):
                missed.append(f"{file}: {old!r} as {new!r} is not found by {rule}")
    print(*missed, f"{len(BREAKS)} broken copies, {len(missed)} not found", sep="\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
