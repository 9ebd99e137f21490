"""Rules about the container image and the compose file."""

import json
import re
import subprocess

import yaml

import commands
from manifests import ROOT, tool

# What a service of the compose file may say; anything else is added here on purpose.
KNOWN = {
    "image", "read_only", "tmpfs", "cap_drop", "security_opt", "restart", "stop_grace_period", "volumes",
    "healthcheck", "command", "environment", "ports",
}  # fmt: skip


def check(findings, folder, binary):
    """Dockerfile, its context, compose file."""
    dockerfile(findings, folder / "Dockerfile", binary)
    context(findings)
    compose(findings, folder / "compose.yaml", binary)


def dockerfile(findings, path, binary):
    """Linted; runs as nobody's number; what it runs parses."""
    linted = subprocess.run([tool("hadolint"), str(path)], capture_output=True, text=True, timeout=60, check=False)
    findings.expect(linted.returncode == 0, "image", "Dockerfile", linted.stdout + linted.stderr)
    text = path.read_text()
    last = text[text.rindex("\nFROM ") :]
    for base in re.findall(r"^FROM (\S+)", text, re.M):
        findings.expect(re.search(r":\d+\.\d+", base), "image", "Dockerfile", f"{base} has no version")
    user = re.findall(r"^USER (\S+)", last, re.M)
    findings.expect(user and re.fullmatch(r"[1-9]\d{3,}:\d+", user[-1]), "image", "Dockerfile", f"its user is {user}")
    findings.expect(not re.search(r"^(ENV|ARG) .*(KEY|TOKEN|PASSWORD)", text, re.M), "image", "Dockerfile", "a secret")
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", last, re.M).group(1))
    findings.expect(entry == ["baton"], "image", "Dockerfile", f"starts {entry}")
    asked = json.loads(re.search(r"^HEALTHCHECK .*CMD (\[.*\])$", last, re.M).group(1))
    refused = binary.refusal(asked[1:])
    findings.expect(asked[0] == "baton" and refused is None, "image", "Dockerfile", f"health check {asked}: {refused}")
    exposed = set(re.search(r"^EXPOSE (.*)$", last, re.M).group(1).split())
    findings.expect(exposed == {"7070", "7071", "7072", "8000", "9464"}, "image", "Dockerfile", f"exposes {exposed}")


def context(findings):
    """Whatever cargo reads reaches the builder: members of the workspace and files that code includes."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = [line[1:] for line in lines if line.startswith("!")]
    manifest = (ROOT / "Cargo.toml").read_text()
    members = re.findall(r'"([\w-]+)"', re.search(r"^members = \[(.*?)\]", manifest, re.M | re.S).group(1))
    for needed in [*members, "src", "Cargo.toml", "Cargo.lock"]:
        findings.expect(needed in sent, "image", ".dockerignore", f"keeps {needed} away from the builder")
    for crate in [*members, "src"]:
        for source in (ROOT / crate).rglob("*.rs"):
            for name in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', source.read_text()):
                target = (source.parent / name).resolve()
                inside = target.relative_to(ROOT)
                there = any(inside.match(rule) or inside.parts[0] == rule for rule in sent)
                findings.expect(there, "image", ".dockerignore", f"{inside} is included by {source.name}")


def compose(findings, path, binary):
    """Commands, variables, hosts and ports of every service."""
    services = yaml.safe_load(path.read_text())["services"]
    for name, service in services.items():
        where = f"compose.yaml {name}"
        unknown = set(service) - KNOWN
        findings.expect(not unknown, "compose", where, f"says {unknown}")
        findings.expect(service.get("read_only") and service.get("cap_drop") == ["ALL"], "compose", where, "is open")
        environment = {key: str(value) for key, value in service["environment"].items()}
        commands.command_line(findings, where, service["command"], environment, binary, "compose")
        asked = service["healthcheck"]["test"]
        refused = binary.refusal(asked[2:])
        findings.expect(asked[:2] == ["CMD", "baton"] and not refused, "compose", where, f"{asked}: {refused}")
        hosts = [environment.get("BATON_ROUTER", "router:").partition(":")[0], environment.get("BATON_ADVERTISE", name)]
        findings.expect(set(hosts) <= set(services), "compose", where, f"hosts {hosts} are no services")
        listens = {value.rpartition(":")[2] for key, value in environment.items() if key.endswith("_LISTEN")}
        for published in service.get("ports", []):
            findings.expect(published.startswith("127.0.0.1:"), "compose", where, f"{published} is open to the network")
            findings.expect(published.rpartition(":")[2] in listens, "compose", where, f"nobody listens for {published}")
