"""Strict schemas: Kubernetes' own from kubernetes-validate, those of custom resources from `schemas/`.

Custom resources have small schemas here that know only the fields that these manifests use, so that
any other field, known or not, must be added on purpose.
"""

import json
import pathlib

import jsonschema
import kubernetes_validate

from manifests import name_of

# The oldest Kubernetes that the manifests are for, and the newest that the tool knows.
VERSIONS = ("1.30", kubernetes_validate.latest_version())
FOLDER = pathlib.Path(__file__).parent / "schemas"


def check(findings, place, documents):
    """Every document against its schema."""
    if not findings.wants("schema"):
        return
    seen = set()
    for document in documents:
        where = f"{place} {name_of(document)}"
        key = (document.get("kind"), (document.get("metadata") or {}).get("name"))
        findings.expect(key not in seen, "schema", where, "stands there twice")
        seen.add(key)
        for version in VERSIONS:
            problem = against(document, version)
            findings.expect(problem is None, "schema", where, f"Kubernetes {version}: {problem}")


def against(document, version):
    """What a schema says against a document, or None."""
    try:
        if own := custom(document):
            jsonschema.Draft202012Validator(own).validate(document)
        else:
            kubernetes_validate.validate(document, version, strict=True)
    except jsonschema.ValidationError as error:
        path = ".".join(str(part) for part in error.absolute_path)
        return f"{path}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError as error:
        return error.message
    return None


def custom(document):
    """The schema of a custom resource, or None where it is none of ours."""
    group = document.get("apiVersion", "").replace("/", "_")
    path = FOLDER / f"{document.get('kind', '').lower()}-{group}.json"
    return json.loads(path.read_text()) if path.exists() else None
