"""What the binary has: commands, flags and their variables, names of its health service, metrics.

All of it is asked of the binary itself. Must not know what manifests say.
"""

import json
import os
import re
import subprocess
import threading
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

ROLES = ("router", "prefill", "decode")
# Seconds for a service to get ready.
START = 60


class Binary:
    """One build of Baton."""

    def __init__(self, path):
        self.path = str(path)
        self.flags = {}
        self._content = None

    def run(self, arguments):
        """Runs it to its end, without any BATON_ variable."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
        command = [self.path, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, env=clean, check=False)

    def variables(self, command):
        """Flags of a command by variable."""
        if command not in self.flags:
            text = self.run([command, "--help"]).stdout
            found, flag = {}, None
            for line in text.splitlines():
                if start := re.match(r"\s+(?:-\w, )?(--[a-z-]+)", line):
                    flag = start.group(1)
                for variable in re.findall(r"\[env:\s+(\w+)=", line):
                    found[variable] = flag
            # Long descriptions put `[env:` and the name on lines of their own.
            for flag_text, variable in re.findall(r"(--[a-z-]+)[^\[]*(?:\[[^\]]*\][^\[]*)*?\[env:\s*(\w+)=", text):
                found.setdefault(variable, flag_text)
            self.flags[command] = found
        return self.flags[command]

    def mentions(self, word):
        """Whether the binary holds this string."""
        if self._content is None:
            with open(self.path, "rb") as file:
                self._content = file.read()
        return word.encode() in self._content

    def refusal(self, arguments):
        """Why the command line would be refused, or None. `--help` ends it once all before has been parsed."""
        done = self.run([*arguments, "--help"])
        if done.returncode == 0:
            return None
        return (done.stderr or done.stdout).strip().splitlines()[0]


class Service:
    """A whole service, run to see what its processes answer. Use in `with`."""

    def __init__(self, binary, model):
        arguments = [binary.path, "up", "--model", str(model), "--listen", "127.0.0.1:0"]
        arguments += ["--http-listen", "off", "--prefill-threads", "1", "--decode-threads", "1", "--pages", "64"]
        self.binary = binary
        self.command = arguments
        self.process = None

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.PIPE, text=True
        )
        # A pipe cannot be read with a bound, but it ends with its process.
        bound = threading.Timer(START, self.process.kill)
        bound.start()
        line = next((line for line in self.process.stdout if line.startswith("ready ")), None)
        bound.cancel()
        if line:
            self.ready = dict(part.split("=", 1) for part in line.split()[1:] if "=" in part)
            return self
        self.__exit__()
        raise RuntimeError(f"{self.command} does not get ready")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def addresses(self):
        """gRPC addresses by role."""
        done = self.binary.run(["status", "--connect", self.ready["grpc"], "--format", "json"])
        workers = {worker["role"]: worker["address"] for worker in json.loads(done.stdout)["workers"]}
        return {"router": self.ready["grpc"], **workers}

    def health(self, names):
        """Which of these names the health service of every role knows."""
        return {name for name in names if all(knows(address, name) for address in self.addresses().values())}

    def metrics(self):
        """Names of metrics by role (`router`, `prefill`, `decode`), with the suffixes of histograms."""
        addresses = self.ready.get("metrics", "").split(",")
        found = {}
        for role, address in zip(ROLES, addresses):
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                found[role] = series(answer.read().decode())
        return found


def knows(address, name):
    """Whether the health service at an address has this name."""
    with grpc.insecure_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=name)
            health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return False
            raise
    return True


def series(text):
    """Names that queries can use, by what a scrape declares; and labels by name."""
    names = {}
    for line in text.splitlines():
        if declared := re.match(r"# TYPE (\S+) (\w+)", line):
            name, kind = declared.groups()
            suffixes = {"histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",))
            for suffix in suffixes:
                names.setdefault(name + suffix, set())
        elif sample := re.match(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? ", line):
            name, labels = sample.groups()
            names.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return names
