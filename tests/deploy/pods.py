"""Rules about pods and what refers to them: roll-outs, security, references between documents."""

from manifests import labels_of, name_of, pod_of, ports_of, selects

OWN_USER = 1000
# Secrets that are made by hand, because they come from elsewhere; the components say how.
BY_HAND = {"baton-api-keys", "baton-etcd-client"}


def check(findings, place, manifests):
    """Every workload and everything that names one."""
    for workload in manifests.workloads():
        where = f"{place} {workload['metadata']['name']}"
        security(findings, where, pod_of(workload))
        volumes(findings, where, manifests, workload)
        selector = workload["spec"]["selector"]
        findings.expect(selects(selector, labels_of(workload)), "references", where, "does not select its own pods")
    for workload, container in manifests.roles():
        where = f"{place} {workload['metadata']['name']}"
        k8s_03(findings, where, manifests, workload, container)
        spread(findings, where, workload)
    references(findings, place, manifests)


def k8s_03(findings, where, manifests, workload, container):
    """A worker goes only when another one has come, has been seen and has stayed."""
    spec = workload["spec"]
    strategy = spec.get("strategy", {})
    environment, _ = manifests.environment(workload, container)
    if container["args"][0] == "router" and environment.get("BATON_MEMBERSHIP", "embedded") == "embedded":
        # Its workers know this one alone: a second one would never be ready.
        findings.expect(spec["replicas"] == 1, "k8s_03 roll-out", where, "workers register with one router only")
        findings.expect(strategy.get("type") == "Recreate", "k8s_03 roll-out", where, "must be replaced, not doubled")
        return
    rolling = strategy.get("rollingUpdate", {})
    findings.expect(positive(rolling.get("maxSurge")), "k8s_03 roll-out", where, f"maxSurge {rolling.get('maxSurge')}")
    findings.expect(
        str(rolling.get("maxUnavailable")) in ("0", "0%"),
        "k8s_03 roll-out",
        where,
        f"maxUnavailable {rolling.get('maxUnavailable')}",
    )
    findings.expect(spec.get("minReadySeconds", 0) >= 5, "k8s_03 roll-out", where, "minReadySeconds is below 5")


def positive(value):
    """Whether a number or percentage is above nought."""
    return value is not None and int(str(value).rstrip("%")) > 0


def spread(findings, where, workload):
    """Pods of a kind stand on different nodes and zones."""
    rules = pod_of(workload).get("topologySpreadConstraints", [])
    keys = {rule["topologyKey"] for rule in rules if selects(rule["labelSelector"], labels_of(workload))}
    findings.expect(keys >= {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}, "spread", where, f"only {keys}")


def security(findings, where, pod):
    """The `restricted` standard, and a root file system that nobody writes."""
    context = pod.get("securityContext", {})
    findings.expect(context.get("runAsNonRoot"), "security", where, "may run as root")
    findings.expect(context.get("runAsUser", 0) >= OWN_USER, "security", where, "its user is not told by number")
    findings.expect(context.get("seccompProfile", {}).get("type") == "RuntimeDefault", "security", where, "no seccomp")
    findings.expect(pod.get("automountServiceAccountToken") is False, "security", where, "has a token of the API")
    findings.expect(pod.get("enableServiceLinks") is False, "security", where, "gets variables of Services")
    findings.expect(not pod.get("hostNetwork") and not pod.get("hostPID"), "security", where, "shares with its host")
    for container in pod.get("initContainers", []) + pod["containers"]:
        inside = f"{where} container {container['name']}"
        own = container.get("securityContext", {})
        findings.expect(own.get("allowPrivilegeEscalation") is False, "security", inside, "may gain privileges")
        findings.expect(own.get("readOnlyRootFilesystem"), "security", inside, "writes its root file system")
        findings.expect(own.get("capabilities", {}).get("drop") == ["ALL"], "security", inside, "keeps capabilities")
        findings.expect(not own.get("capabilities", {}).get("add"), "security", inside, "adds capabilities")
        findings.expect(not own.get("privileged"), "security", inside, "is privileged")
        wants, most = (container.get("resources", {}).get(key, {}) for key in ("requests", "limits"))
        findings.expect({"cpu", "memory"} <= set(wants), "resources", inside, "does not say what it needs")
        findings.expect("memory" in most, "resources", inside, "has no memory limit")
        image = container["image"].rpartition("/")[2]
        findings.expect(":" in image and not image.endswith(":latest"), "image", inside, f"{image} has no version")


def volumes(findings, where, manifests, workload):
    """Mounts have volumes, volumes have their sources."""
    pod = pod_of(workload)
    claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
    declared = {volume["name"]: volume for volume in pod.get("volumes", [])}
    for container in pod.get("initContainers", []) + pod["containers"]:
        for mount in container.get("volumeMounts", []):
            there = mount["name"] in declared or mount["name"] in claims
            findings.expect(there, "references", where, f"mounts {mount['name']}, which is no volume")
    secrets = BY_HAND | {s["metadata"]["name"] for s in manifests.of("Secret")}
    secrets |= {c["spec"]["secretName"] for c in manifests.of("Certificate")}
    for volume in declared.values():
        if source := volume.get("configMap"):
            there = source.get("optional") or manifests.find("ConfigMap", source["name"])
            findings.expect(there, "references", where, f"there is no ConfigMap {source['name']}")
        if source := volume.get("secret"):
            there = source.get("optional") or source["secretName"] in secrets
            findings.expect(there, "references", where, f"there is no Secret {source['secretName']}")
        if source := volume.get("persistentVolumeClaim"):
            there = manifests.find("PersistentVolumeClaim", source["claimName"])
            findings.expect(there, "references", where, f"there is no claim {source['claimName']}")


def references(findings, place, manifests):
    """Services, budgets, monitors and scalers have what they name."""
    for service in manifests.of("Service"):
        where = f"{place} {name_of(service)}"
        selector = {"matchLabels": service["spec"].get("selector") or {}}
        chosen = [w for w in manifests.workloads() if selects(selector, labels_of(w))]
        if not findings.expect(len(chosen) == 1, "references", where, f"selects {len(chosen)} workloads"):
            continue
        named = ports_of(chosen[0])
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            findings.expect(target in named or target in named.values(), "ports", where, f"no port {target} behind it")
    for budget in manifests.of("PodDisruptionBudget"):
        where = f"{place} {name_of(budget)}"
        chosen = [w for w in manifests.workloads() if selects(budget["spec"]["selector"], labels_of(w))]
        findings.expect(len(chosen) == 1, "references", where, f"selects {len(chosen)} workloads")
    for workload, _ in manifests.roles():
        covered = [b for b in manifests.of("PodDisruptionBudget") if selects(b["spec"]["selector"], labels_of(workload))]
        findings.expect(len(covered) == 1, "references", f"{place} {name_of(workload)}", f"{len(covered)} budgets")
    for monitor in manifests.of("PodMonitor"):
        where = f"{place} {name_of(monitor)}"
        chosen = [w for w in manifests.workloads() if selects(monitor["spec"]["selector"], labels_of(w))]
        findings.expect(chosen, "references", where, "selects nothing")
        for workload in chosen:
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                there = endpoint["port"] in ports_of(workload)
                findings.expect(there, "ports", where, f"{name_of(workload)} has no port {endpoint['port']}")
    for scaler in manifests.of("HorizontalPodAutoscaler", "ScaledObject"):
        where, target = f"{place} {name_of(scaler)}", scaler["spec"]["scaleTargetRef"]
        workload = manifests.find(target.get("kind", "Deployment"), target["name"])
        if findings.expect(workload, "references", where, f"there is no {target['name']}"):
            findings.expect("replicas" not in workload["spec"], "scaling", where, "its target fixes its own size")
