"""What load generators need, and whether what they measured is whole.

    python tests/python/load_clients.py tokenizer MODEL.gguf FOLDER
    python tests/python/load_clients.py vllm-serve [flags of `vllm bench serve`]
    python tests/python/load_clients.py aiperf|vllm FOLDER REQUESTS TOKENS
"""

import json
import pathlib
import sys


def tokenizer(model: str, folder: str) -> None:
    """Writes a GGUF file's tokenizer as a folder that `transformers` reads."""
    from transformers import AutoTokenizer

    path = pathlib.Path(model)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)


def vllm_serve(arguments: list[str]) -> None:
    """What `vllm bench serve` runs: that command itself looks for a package of one name, and CPUs' has another."""
    from vllm.benchmarks.serve import add_cli_args, main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args(arguments))


def report(folder: str, pattern: str) -> dict:
    (path,) = pathlib.Path(folder).rglob(pattern)
    return json.loads(path.read_text())


def aiperf(folder: str, requests: int, tokens: int) -> None:
    told = report(folder, "profile_export_aiperf.json")
    errors = (told.get("error_request_count") or {}).get("avg", 0)
    assert told["request_count"]["avg"] == requests, told["request_count"]
    assert errors == 0, told.get("error_summary")
    length = told["output_sequence_length"]
    # It counts tokens of the text that it has read: near, but not the same.
    assert tokens / 2 <= length["avg"] <= tokens * 2, length
    first, gap = told["time_to_first_token"]["p50"], told["inter_token_latency"]["p50"]
    print(f"  passed: {requests} requests, TTFT p50 {first:.1f} ms, ITL p50 {gap:.1f} ms")


def vllm(folder: str, requests: int, tokens: int) -> None:
    told = report(folder, "*.json")
    assert told["completed"] == requests and not told.get("failed"), told
    assert told["total_output_tokens"] == requests * tokens, told["total_output_tokens"]
    print(f"  passed: {requests} requests, TTFT p50 {told['median_ttft_ms']:.1f} ms, ITL p50 {told['median_itl_ms']:.1f} ms")


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    if kind == "tokenizer":
        tokenizer(*arguments)
    elif kind == "vllm-serve":
        vllm_serve(arguments)
    else:
        where, count, length = arguments
        {"aiperf": aiperf, "vllm": vllm}[kind](where, int(count), int(length))
