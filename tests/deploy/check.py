"""Checks everything in deploy/ without a cluster. Prints what is wrong and fails if anything is.

    python tests/deploy/check.py --baton target/release/baton --model MODEL [--only RULE]
"""

import argparse
import pathlib
import shutil
import sys
import tempfile

import commands
import image
import manual
import pods
import queries
import reach
import schemas
from binary import Binary, Service
from findings import Findings
from manifests import DEPLOY, BuildError, Manifests, build


class Facts:
    """What the binary has, asked once."""

    def __init__(self, path, model):
        self.binary = Binary(path)
        with Service(self.binary, model) as service:
            self.health = service.health({"live", "ready"})
            self.metrics = service.metrics()


def copy_of(deploy, folder):
    """A copy of deploy/ with an overlay more for each component, on top of `cpu`."""
    copy = pathlib.Path(folder, "deploy")
    shutil.copytree(deploy, copy)
    overlays = copy / "kubernetes" / "overlays"
    for component in sorted((copy / "kubernetes" / "components").iterdir()):
        text = (overlays / "cpu" / "kustomization.yaml").read_text()
        # One etcd or the other.
        told = "components/etcd" if component.name.endswith("etcd") else None
        wanted = f"components/{component.name}"
        text = text.replace(told, wanted) if told else text.replace("images:", f"  - ../../{wanted}\nimages:")
        overlay = overlays / f"cpu+{component.name}"
        overlay.mkdir()
        (overlay / "kustomization.yaml").write_text(text)
    return copy


def check_overlay(findings, folder, facts):
    """One overlay, all rules."""
    try:
        documents, problem = build(folder), None
    except BuildError as error:
        documents, problem = [], str(error)
    findings.expect(problem is None, "build", folder.name, problem)
    place, manifests = folder.name, Manifests(documents)
    schemas.check(findings, place, documents)
    commands.check(findings, place, manifests, facts.binary, facts.health)
    pods.check(findings, place, manifests)
    reach.check(findings, place, manifests)
    queries.check_overlay(findings, place, manifests, facts.metrics)


def check_files(findings, deploy, facts):
    """What stands in deploy/ beside overlays."""
    image.check(findings, deploy / "docker", facts.binary)
    queries.check_files(findings, deploy, facts.metrics)
    manual.check(findings, deploy, facts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baton", required=True, help="the binary")
    parser.add_argument("--model", required=True, help="any model, to run the binary with")
    parser.add_argument("--only", help="rules that begin with this")
    options = parser.parse_args()
    facts, findings = Facts(options.baton, options.model), Findings(options.only)
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of(DEPLOY, folder)
        for overlay in sorted((copy / "kubernetes" / "overlays").iterdir()):
            check_overlay(findings, overlay, facts)
        check_files(findings, copy, facts)
    findings.report()
    sys.exit(1 if findings.problems or not findings.checked else 0)


if __name__ == "__main__":
    main()
