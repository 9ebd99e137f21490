"""Rules about docs/operations.md: what it names is there, and what is there is named."""

import re

from binary import ROLES
from manifests import ROOT

PATH = ROOT / "docs" / "operations.md"


def check(findings, deploy, facts):
    """Metrics, variables, overlays, components."""
    text, where = PATH.read_text(), PATH.name
    shown = {name for of_role in facts.metrics.values() for name in of_role}
    for name in sorted(set(re.findall(r"\b(?:baton_[a-z_]+|vllm:[a-z_]+)", text))):
        there = {name, f"{name}_bucket"} & shown
        findings.expect(there, "manual", where, f"no process shows {name}")
    known = {variable for command in (*ROLES, "health") for variable in facts.binary.variables(command)}
    for name in sorted(set(re.findall(r"\bBATON_[A-Z_]+", text))):
        findings.expect(name in known, "manual", where, f"no command has {name}")
    for kind in ("overlays", "components"):
        for folder in (deploy / "kubernetes" / kind).iterdir():
            # Overlays that the checks have added are told by their components.
            told = "+" in folder.name or f"`{folder.name}`" in text
            findings.expect(told, "manual", where, f"says nothing of {kind}/{folder.name}")
