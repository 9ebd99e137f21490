"""Checks everything in deploy/ without a cluster. Prints what is wrong and fails if anything is.

    python tests/deploy/check.py --baton target/release/baton --model MODEL [--only RULE] [--deploy FOLDER]
"""

import argparse
import pathlib
import sys

import commands
import pods
import reach
import schemas
from binary import Binary, Service
from findings import Findings
from manifests import KUBERNETES, BuildError, Manifests, build


def overlays(kubernetes):
    """Folders to build."""
    return sorted(path.parent for path in kubernetes.glob("overlays/*/kustomization.yaml"))


def check_overlay(findings, folder, binary, health):
    """One overlay, all rules."""
    try:
        documents = build(folder)
    except BuildError as error:
        documents, problem = [], str(error)
    else:
        problem = None
    findings.expect(problem is None, "build", folder.name, problem)
    place, manifests = folder.name, Manifests(documents)
    schemas.check(findings, place, documents)
    commands.check(findings, place, manifests, binary, health)
    pods.check(findings, place, manifests)
    reach.check(findings, place, manifests)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baton", required=True, help="the binary")
    parser.add_argument("--model", required=True, help="any model, to run the binary with")
    parser.add_argument("--only", help="rules that begin with this")
    parser.add_argument("--kubernetes", type=pathlib.Path, default=KUBERNETES, help="folder of base and overlays")
    options = parser.parse_args()
    binary, findings = Binary(options.baton), Findings(options.only)
    with Service(binary, options.model) as service:
        health = service.health({"live", "ready"})
    for folder in overlays(options.kubernetes):
        check_overlay(findings, folder, binary, health)
    for problem in findings.problems:
        print(problem)
    print(f"{findings.checked} checks, {len(findings.problems)} problems")
    sys.exit(1 if findings.problems or not findings.checked else 0)


if __name__ == "__main__":
    main()
