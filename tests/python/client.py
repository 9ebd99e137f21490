#!/usr/bin/env python3
"""A complete client of baton.v1: generates its stubs from the .proto files and streams one answer.

    python tests/python/client.py --connect 127.0.0.1:7070 --chat "What is the capital of France? Answer in one sentence."

Needs grpcio and grpcio-tools (and, with --check, grpcio-health-checking and grpcio-reflection).
"""

import argparse
import importlib
import pathlib
import sys
import tempfile

import grpc
from grpc_tools import protoc

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto" / "proto"


def stubs():
    """Compiles the .proto files and imports what came out."""
    out = tempfile.mkdtemp(prefix="baton-stubs-")
    files = [str(path) for path in sorted(PROTO.glob("baton/v1/*.proto"))]
    code = protoc.main(["protoc", f"-I{PROTO}", f"--python_out={out}", f"--grpc_python_out={out}", *files])
    if code != 0:
        raise SystemExit(f"protoc failed with {code}")
    sys.path.insert(0, out)
    names = ["common_pb2", "inference_pb2", "inference_pb2_grpc", "admin_pb2", "admin_pb2_grpc"]
    return [importlib.import_module(f"baton.v1.{name}") for name in names]


def check(channel):
    """Health by name, and reflection."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
        ProtoReflectionDescriptorDatabase,
    )

    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", "live", "ready"):
        status = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status
        if status != health_pb2.HealthCheckResponse.SERVING:
            raise SystemExit(f"health of {name!r} is {status}")
    services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    missing = {"baton.v1.InferenceService", "baton.v1.AdminService", "grpc.health.v1.Health"} - services
    if missing:
        raise SystemExit(f"reflection does not list {missing}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connect", default="127.0.0.1:7070")
    parser.add_argument("--chat", default="What is the capital of France? Answer in one sentence.")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--check", action="store_true", help="also check health, reflection, tokenizer and workers")
    args = parser.parse_args()
    common, inference, inference_grpc, admin, admin_grpc = stubs()

    with grpc.insecure_channel(args.connect) as channel:
        api = inference_grpc.InferenceServiceStub(channel)
        if args.check:
            check(channel)
            models = api.ListModels(inference.ListModelsRequest(), timeout=10).models
            ids = api.Tokenize(inference.TokenizeRequest(prompt="Hello 日本"), timeout=10).token_ids
            text = api.Detokenize(inference.DetokenizeRequest(token_ids=ids), timeout=10).text
            workers = admin_grpc.AdminServiceStub(channel).ListWorkers(admin.ListWorkersRequest(), timeout=10).workers
            if len(models) != 1 or text != "Hello 日本" or not workers:
                raise SystemExit(f"models {models}, text {text!r}, workers {workers}")
        request = inference.GenerateRequest(
            chat=inference.ChatInput(messages=[inference.ChatMessage(role="user", content=args.chat)]),
            sampling=common.SamplingOptions(temperature=0.0, max_tokens=args.max_tokens),
        )
        done = None
        try:
            for response in api.Generate(request, timeout=120):
                event = response.WhichOneof("event")
                if event == "token":
                    print(response.token.text, end="", flush=True)
                elif event == "done":
                    done = response.done
        except grpc.RpcError as error:
            raise SystemExit(f"{error.code().name}: {error.details()}") from error
        if done is None:
            raise SystemExit("the stream ended without its final event")
        print()
        print(
            f"{done.usage.prompt_tokens} prompt and {done.usage.completion_tokens} completion tokens, "
            f"TTFT {done.receipt.ttft_us / 1000:.1f} ms",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
