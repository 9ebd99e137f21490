"""Who reaches whom: network policies evaluated over every pair of pods and every port.

The matrix in `ALLOWED` is what the service needs; everything else must be denied.
"""

from manifests import labels_of, ports_of, selects

# From, to, port. A stranger is a pod of another namespace.
ALLOWED = {
    ("stranger", "router", "grpc"),
    ("stranger", "router", "http"),
    ("router", "prefill", "grpc"),
    ("router", "decode", "grpc"),
    ("prefill", "decode", "transfer"),
    ("router", "etcd", "client"),
    ("prefill", "etcd", "client"),
    ("decode", "etcd", "client"),
}
# Workers register with their router where there is no etcd.
EMBEDDED = {("prefill", "router", "grpc"), ("decode", "router", "grpc")}
PODS = ("router", "prefill", "decode", "etcd")


def check(findings, place, manifests):
    """Every pair, every port."""
    pods = {name: w for name in PODS if (w := manifests.component(name))}
    policies = manifests.of("NetworkPolicy")
    closed = [p for p in policies if p["spec"]["podSelector"] == {} and not {"ingress", "egress"} & set(p["spec"])]
    both = any(set(p["spec"]["policyTypes"]) == {"Ingress", "Egress"} for p in closed)
    findings.expect(both, "network", place, "no policy denies what no other policy allows")
    members = [manifests.environment(*role)[0].get("BATON_MEMBERSHIP", "embedded") for role in manifests.roles()]
    expected = ALLOWED | EMBEDDED if "embedded" in members else ALLOWED
    for target, workload in pods.items():
        for port, number in ports_of(workload).items():
            for source in (*pods, "stranger"):
                if source == target:
                    continue
                may = leaves(policies, pods, source, workload, (port, number))
                may = may and arrives(policies, pods, source, workload, (port, number))
                should = (source, target, port) in expected
                says = "reaches" if may else "does not reach"
                findings.expect(may == should, "network", place, f"{source} {says} port {port} of {target}")


def arrives(policies, pods, source, workload, port):
    """Whether the target's policies let it in."""
    rules = [p["spec"] for p in policies if "Ingress" in p["spec"]["policyTypes"]]
    rules = [r for r in rules if selects(r["podSelector"], labels_of(workload))]
    peer = labels_of(pods[source]) if source in pods else None
    return not rules or any(
        matches(rule, "from", peer, port) for policy in rules for rule in policy.get("ingress", [])
    )


def leaves(policies, pods, source, workload, port):
    """Whether the source's policies let it out; strangers have none."""
    if source not in pods:
        return True
    rules = [p["spec"] for p in policies if "Egress" in p["spec"]["policyTypes"]]
    rules = [r for r in rules if selects(r["podSelector"], labels_of(pods[source]))]
    return not rules or any(
        matches(rule, "to", labels_of(workload), port) for policy in rules for rule in policy.get("egress", [])
    )


def matches(rule, side, peer, port):
    """Whether one rule takes this peer (None: of another namespace) and this port."""
    named = [p["port"] for p in rule.get("ports", [])]
    if named and not set(port) & set(named):
        return False
    peers = rule.get(side)
    return not peers or any(fits(one, peer) for one in peers)


def fits(one, peer):
    """Whether an entry of `from` or `to` is this peer."""
    if "ipBlock" in one:
        return False
    if "namespaceSelector" in one:
        return one["namespaceSelector"] == {} and not one.get("podSelector")
    return peer is not None and selects(one["podSelector"], peer)
