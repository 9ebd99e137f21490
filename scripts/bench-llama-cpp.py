#!/usr/bin/env python3
"""Times llama.cpp on a GGUF file, for comparison: prefill and decode tokens per second.

    python3 -m venv peers && CMAKE_ARGS=-DGGML_NATIVE=ON peers/bin/pip install llama-cpp-python
    peers/bin/python scripts/bench-llama-cpp.py MODEL --threads 2

Prints lines as the engine's own `throughput` example does, so that alternating runs can be compared.
"""

import argparse
import ctypes
import statistics
import time

import llama_cpp as llama


def fill(batch, tokens):
    """`tokens`: (id, position, sequence, wants logits)."""
    batch.n_tokens = len(tokens)
    for index, (token, position, sequence, logits) in enumerate(tokens):
        batch.token[index] = token
        batch.pos[index] = position
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = sequence
        batch.logits[index] = logits


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, nargs="*", default=[512])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    model = llama.llama_model_load_from_file(args.model.encode(), params)
    most = max(args.streams, default=1)
    options = llama.llama_context_default_params()
    options.n_ctx = most * (args.context + args.steps + 32) + max(args.prefill, default=0) + 64
    options.n_batch = options.n_ubatch = max([512, most, *args.prefill])
    options.n_seq_max = most
    options.kv_unified = True
    options.n_threads = options.n_threads_batch = args.threads
    context = llama.llama_init_from_model(model, options)
    memory = llama.llama_get_memory(context)
    batch = llama.llama_batch_init(options.n_batch, 0, 1)

    def decode(tokens):
        fill(batch, tokens)
        if llama.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        llama.llama_synchronize(context)

    def token(position):
        return 1000 + position * 37 % 30000

    for length in args.prefill:
        rates = []
        for _ in range(args.rounds + 1):
            llama.llama_memory_clear(memory, True)
            begin = time.perf_counter()
            decode([(token(p), p, 0, p == length - 1) for p in range(length)])
            rates.append(length / (time.perf_counter() - begin))
        print(f"prefill {length}: {statistics.median(rates[1:]):.0f} tok/s", flush=True)

    for streams in args.streams:
        llama.llama_memory_clear(memory, True)
        for sequence in range(streams):
            decode([(token(p), p, sequence, False) for p in range(args.context)])
        gaps = []
        for step in range(args.steps):
            position = args.context + step
            begin = time.perf_counter()
            decode([(token(step), position, sequence, True) for sequence in range(streams)])
            gaps.append(time.perf_counter() - begin)
        print(f"decode {streams} streams @{args.context}: {streams / statistics.median(gaps):.0f} tok/s", flush=True)


if __name__ == "__main__":
    main()
