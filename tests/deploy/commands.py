"""Rules about what manifests tell the binary: flags, variables, values, commands, ports, probes."""

from manifests import ROOT, pod_of, ports_of

# Seconds between the end of draining and the kill that a process always gets.
SPARE = 10
# The longest that one request may take, milliseconds: the router's own limit (docs/http.md).
LONGEST_REQUEST_MS = 600_000
# Names of ports, and the variable that says where the process listens.
LISTENS = {
    "grpc": "BATON_LISTEN",
    "http": "BATON_HTTP_LISTEN",
    "metrics": "BATON_METRICS_LISTEN",
    "transfer": "BATON_TRANSFER_PORT",
}
# Variables that are no flags: secrets are kept off command lines.
OTLP = "OTEL_EXPORTER_OTLP_"
SECRETS = ("BATON_ETCD_PASSWORD", "BATON_API_KEY")


def check(findings, place, manifests, binary, health):
    """All containers of Baton."""
    for workload, container in manifests.roles():
        where = f"{place} {workload['metadata']['name']}"
        environment, problems = manifests.environment(workload, container)
        findings.expect(not problems, "references", where, "; ".join(problems))
        command = list(map(str, container.get("command", []) + container.get("args", [])))
        if findings.wants("flags"):
            command_line(findings, where, command, environment, binary)
        ports(findings, where, ports_of(workload), environment)
        probes(findings, where, container, binary, health)
        k8s_01(findings, where, workload, container, environment)


def command_line(findings, where, command, environment, binary, rule="flags"):
    """Every variable is one of the command's, and every value parses."""
    role, flags = command[0], binary.variables(command[0])
    findings.expect(flags, rule, where, f"`baton {role}` is no command")
    given = []
    for name, value in sorted(environment.items()):
        if name.startswith("OTEL_") or name in SECRETS:
            findings.expect(reads(binary, name), rule, where, f"the binary does not read {name}")
        elif name.startswith("BATON_"):
            # `baton health` runs in the same container.
            known = name in flags or name in binary.variables("health")
            findings.expect(known, rule, where, f"`baton {role}` has no variable {name}")
            given += [f"{flags[name]}={value}"] if name in flags else []
    refused = binary.refusal([*command, *given])
    findings.expect(refused is None, rule, where, f"`baton {' '.join([*command, *given])}`: {refused}")


def reads(binary, name):
    """Whether the binary reads a variable that is no flag."""
    if not name.startswith(OTLP):
        return binary.mentions(name)
    # These names are put together, so the binary holds them in parts; the manual holds them whole.
    return binary.mentions(OTLP) and f"`{name}`" in (ROOT / "docs" / "tracing.md").read_text()


def ports(findings, where, named, environment):
    """Ports that are named are listened on, and the other way round."""
    for name, number in named.items():
        known = findings.expect(name in LISTENS, "ports", where, f"nothing listens on a port named {name}")
        told = str(environment.get(LISTENS.get(name), "")) if known else ""
        findings.expect(
            not known or told.rpartition(":")[2] == str(number),
            "ports",
            where,
            f"port {name} is {number}, but {LISTENS.get(name)} is {told or 'not set'}",
        )
    for name, variable in LISTENS.items():
        told = str(environment.get(variable, "off"))
        findings.expect(told == "off" or name in named, "ports", where, f"{variable}={told}, but no port is named {name}")
    own, listen = environment.get("BATON_CONNECT"), str(environment.get("BATON_LISTEN", ""))
    findings.expect(
        own is None or own.rpartition(":")[2] == listen.rpartition(":")[2],
        "ports",
        where,
        f"BATON_CONNECT={own} is not the process itself, which listens at {listen}",
    )


def probes(findings, where, container, binary, health):
    """Readiness asks `ready`; startup and liveness ask `live`, which holds while a model loads."""
    grpc = next((p["containerPort"] for p in container["ports"] if p["name"] == "grpc"), None)
    for kind, name in (("startupProbe", "live"), ("livenessProbe", "live"), ("readinessProbe", "ready")):
        probe = container.get(kind)
        if not findings.expect(probe, "k8s_04 probes", where, f"has no {kind}"):
            continue
        asked = probe.get("grpc", {}).get("service")
        if command := probe.get("exec", {}).get("command"):
            asked = command[2] if command[:2] == ["baton", "health"] and len(command) == 3 else command
            refused = binary.refusal(command[1:])
            findings.expect(refused is None, "k8s_04 probes", where, f"{kind}: {command}: {refused}")
        else:
            port = probe.get("grpc", {}).get("port")
            findings.expect(port == grpc, "k8s_04 probes", where, f"{kind} asks port {port}, gRPC is on {grpc}")
            findings.expect(asked in health, "k8s_04 probes", where, f"{kind}: the health service knows no {asked!r}")
        findings.expect(asked == name, "k8s_04 probes", where, f"{kind} asks {asked!r}, not {name!r}")
    liveness = container.get("livenessProbe", {})
    patience = liveness.get("periodSeconds", 10) * liveness.get("failureThreshold", 3)
    findings.expect(patience >= 20, "k8s_05 probes", where, f"a process is given up after {patience} s of load")


def k8s_01(findings, where, workload, container, environment):
    """Whatever runs may end before the kill comes, and (K8S-02) late requests are still taken."""
    hook = container.get("lifecycle", {}).get("preStop", {})
    before = hook.get("sleep", {}).get("seconds", 0)
    notice = number(environment.get("BATON_DRAIN_NOTICE_MS", 0))
    limit = number(environment.get("BATON_DRAIN_LIMIT_MS", 30_000))
    grace = pod_of(workload).get("terminationGracePeriodSeconds", 30)
    needed = before + (notice + limit) / 1000 + SPARE
    findings.expect(grace >= needed, "k8s_01 grace", where, f"killed after {grace} s, but may need {needed:g} s")
    findings.expect(
        limit >= LONGEST_REQUEST_MS,
        "k8s_01 grace",
        where,
        f"draining ends after {limit} ms, a request may take {LONGEST_REQUEST_MS}",
    )
    if container["args"][0] == "router":
        findings.expect(before >= 1, "k8s_02 notice", where, "no preStop hook waits for the endpoints")
        findings.expect(notice >= 1000, "k8s_02 notice", where, f"BATON_DRAIN_NOTICE_MS is {notice}")


def number(text):
    """A number; what is none has been found by its flag and counts as nought."""
    return int(text) if str(text).isdigit() else 0
