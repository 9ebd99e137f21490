"""Rules about queries: every metric that rules, scalers and dashboards name is one that the binary shows."""

import json
import re

import yaml

from manifests import ROOT, name_of
from rules import operator_rules
from rules import path as operator_path

# Series that Prometheus makes by itself.
OTHERS = {"up", "ALERTS"}
# Labels that Prometheus and its operator add to every series.
TARGET_LABELS = {"namespace", "pod", "container", "instance", "job", "le"}
WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset", "inf", "nan"}


def parts(query):
    """Names of series in a query, each with the labels that it is matched by."""
    text = re.sub(r"<<\.LabelMatchers>>", "", query).replace("<<.GroupBy>>", "pod")
    text = re.sub(r'"(\\.|[^"\\])*"|\'[^\']*\'', '""', text)
    text = re.sub(r"\[[^\]]*\]", "", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", text)
    found = []
    for match in re.finditer(r"([A-Za-z_:][\w:]*)\s*(\{[^}]*\})?(\s*\()?", text):
        name, labels, call = match.groups()
        before = text[match.start() - 1 : match.start()]
        if call or name in WORDS or before.isdigit() or before == "$":
            continue
        found.append((name, set(re.findall(r"(\w+)\s*[=!]", labels or ""))))
    return found


def check_query(findings, where, query, metrics):
    """One query against what a scrape showed."""
    shown = {}
    for of_role in metrics.values():
        for name, labels in of_role.items():
            shown.setdefault(name, set()).update(labels)
    named = [part for part in parts(query) if part[0] not in OTHERS]
    findings.expect(named, "metrics", where, f"names no metric: {query}")
    for name, labels in named:
        if findings.expect(name in shown, "metrics", where, f"no process shows {name}: {query}") and shown[name]:
            strange = labels - shown[name] - TARGET_LABELS
            findings.expect(not strange, "metrics", where, f"{name} has no label {strange}: {query}")


def check_overlay(findings, place, manifests, metrics):
    """Rules and scalers as a cluster would get them."""
    for rule in manifests.of("PrometheusRule"):
        for group in rule["spec"]["groups"]:
            for one in group["rules"]:
                check_query(findings, f"{place} {name_of(rule)} {one.get('alert')}", str(one["expr"]), metrics)
    for scaler in manifests.of("ScaledObject"):
        for trigger in scaler["spec"]["triggers"]:
            check_query(findings, f"{place} {name_of(scaler)}", trigger["metadata"]["query"], metrics)


def check_files(findings, deploy, metrics):
    """Adapter, autoscalers, rules, dashboard, and what docs/operations.md says of alerts."""
    hpa = deploy / "kubernetes" / "components" / "hpa"
    rules = yaml.safe_load((hpa / "prometheus-adapter.yaml").read_text())["rules"]
    served = set()
    for rule in rules["custom"] + rules["external"]:
        served.add(rule["name"]["as"])
        series = rule["seriesQuery"]
        query = rule["metricsQuery"].replace("<<.Series>>", series.partition("{")[0])
        for text in (series, query):
            check_query(findings, "prometheus-adapter.yaml", text, metrics)
    for scaler in yaml.safe_load_all((hpa / "autoscalers.yaml").read_text()):
        for metric in scaler["spec"]["metrics"]:
            name = metric[metric["type"].lower()]["metric"]["name"]
            findings.expect(name in served, "metrics", name_of(scaler), f"prometheus-adapter.yaml does not serve {name}")
    alerts(findings, deploy, metrics)
    for path in sorted((deploy / "grafana").glob("*.json")):
        dashboard(findings, path, metrics)


def alerts(findings, deploy, metrics):
    """The rule file of Prometheus, its copy for the operator, and the manual."""
    rules = yaml.safe_load((deploy / "prometheus" / "alerts.yaml").read_text())
    copy = operator_path(deploy)
    same = copy.read_text() == operator_rules(deploy)
    findings.expect(same, "alerts", copy.name, "is not alerts.yaml of Prometheus; run tests/deploy/rules.py")
    manual = (ROOT / "docs" / "operations.md").read_text()
    for group in rules["groups"]:
        for rule in group["rules"]:
            name = rule.get("alert")
            check_query(findings, f"alerts.yaml {name}", str(rule["expr"]), metrics)
            told = name is None or re.search(rf"^### {name}$", manual, re.M)
            findings.expect(told, "alerts", "docs/operations.md", f"says nothing of {name}")


def dashboard(findings, path, metrics):
    """Panels: known metrics, own numbers, no overlap."""
    board, taken, ids = json.loads(path.read_text()), {}, set()
    for panel in board["panels"]:
        where = f"{path.name} {panel['title']!r}"
        findings.expect(panel["id"] not in ids, "dashboard", where, f"panel {panel['id']} stands there twice")
        ids.add(panel["id"])
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                clash = taken.setdefault((x, y), panel["title"])
                findings.expect(clash == panel["title"] and x < 24, "dashboard", where, f"overlaps {clash!r}")
        if panel["type"] == "row":
            continue
        findings.expect(panel.get("targets"), "dashboard", where, "shows nothing")
        for target in panel.get("targets", []):
            check_query(findings, where, target["expr"], metrics)
