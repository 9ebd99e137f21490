#!/usr/bin/env python3
"""llama.cpp as the peer of `baton bench engine`: does the same work and says how fast.

    bench-llama-cpp.py convert MODEL FORMAT OUT    writes MODEL as FORMAT (Q4_0 or BF16)
    bench-llama-cpp.py serve MODEL --threads N     takes commands on standard input until it ends

One JSON object per line. `serve` first says {"ready": NAME AND VERSION}. Commands and answers:

    {"prefill": {"tokens": 512}}                                   {"tok_s": 515.2}
    {"decode": {"streams": 4, "context": 256, "steps": 16}}        {"tok_s": 209.0}

A failure is {"error": WHY}, after which the program ends. Prompts run in pieces of 512 tokens, the fastest size of
those tried; each stream has its own cells of the KV cache, filled by a real prompt; flash attention is on
where llama.cpp finds it faster. A decode figure is streams over the median step.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
import time

PIECE = 512
STREAMS = 32
LEAST_SECONDS = 0.1


def answer(**what):
    print(json.dumps(what), flush=True)


def fail(why):
    answer(error=why)
    sys.exit(1)


try:
    import llama_cpp as llama
except (ImportError, OSError, RuntimeError) as error:
    fail(f"llama-cpp-python cannot be loaded: {error}")


class Context:
    """A KV cache of `sequences` sequences of at most `length` tokens."""

    def __init__(self, model, threads, sequences, length):
        cells = -(-length // 256) * 256
        options = llama.llama_context_default_params()
        options.n_ctx = sequences * cells
        options.n_batch = options.n_ubatch = PIECE
        options.n_seq_max = sequences
        options.kv_unified = False
        options.n_threads = options.n_threads_batch = threads
        self.context = llama.llama_init_from_model(model, options)
        if not self.context:
            fail(f"no memory for {sequences} sequences of {length} tokens")
        self.memory = llama.llama_get_memory(self.context)
        self.batch = llama.llama_batch_init(PIECE, 0, 1)

    def run(self, tokens):
        """One batch of (id, position, sequence, wants logits)."""
        self.batch.n_tokens = len(tokens)
        for index, (token, position, sequence, logits) in enumerate(tokens):
            self.batch.token[index] = token
            self.batch.pos[index] = position
            self.batch.n_seq_id[index] = 1
            self.batch.seq_id[index][0] = sequence
            self.batch.logits[index] = logits
        code = llama.llama_decode(self.context, self.batch)
        if code != 0:
            fail(f"llama_decode of {len(tokens)} tokens: {code}")
        llama.llama_synchronize(self.context)

    def prompt(self, ids):
        for first in range(0, len(ids), PIECE):
            last = min(first + PIECE, len(ids))
            self.run([(ids[at], at, 0, at == len(ids) - 1) for at in range(first, last)])

    def clear(self):
        llama.llama_memory_clear(self.memory, True)


class Server:
    def __init__(self, model, threads):
        self.model = llama.llama_model_load_from_file(model.encode(), llama.llama_model_default_params())
        if not self.model:
            fail(f"llama.cpp cannot load {model}")
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.threads = threads
        self.prompts = None  # a context of its own, as long as the longest prompt so far
        self.length = 0
        self.filled = {}  # streams' contexts by tokens they hold

    def ids(self, count):
        return [(1000 + at * 7919) % self.vocabulary for at in range(count)]

    def prefill(self, tokens):
        if self.length < tokens:
            if self.prompts:
                llama.llama_free(self.prompts.context)
            self.prompts, self.length = Context(self.model, self.threads, 1, tokens), tokens
            self.prompts.prompt(self.ids(min(tokens, PIECE)))  # unmeasured: memory is touched first
        times = []
        begin = time.perf_counter()
        while not times or time.perf_counter() - begin < LEAST_SECONDS:
            self.prompts.clear()
            start = time.perf_counter()
            self.prompts.prompt(self.ids(tokens))
            times.append(time.perf_counter() - start)
        return tokens / statistics.median(times)

    def decode(self, streams, context, steps):
        held = self.filled.get(context)
        if held is None:
            held = self.filled[context] = Context(self.model, self.threads, STREAMS, context + steps)
            held.prompt(self.ids(context))
            for stream in range(1, STREAMS):
                llama.llama_memory_seq_cp(held.memory, 0, stream, -1, -1)
            # Unmeasured: the next batch does the copying.
            held.run([(0, context, 0, True)])
            llama.llama_memory_seq_rm(held.memory, 0, context, -1)
        token, times = self.ids(1)[0], []
        for step in range(steps):
            rows = [(token, context + step, stream, True) for stream in range(streams)]
            start = time.perf_counter()
            held.run(rows)
            times.append(time.perf_counter() - start)
        for stream in range(streams):
            if not llama.llama_memory_seq_rm(held.memory, stream, context, -1):
                fail("llama.cpp cannot drop the measured tokens")
        return streams / statistics.median(times)


def serve(model, threads):
    server = Server(model, threads)
    answer(ready=f"llama.cpp (llama-cpp-python {llama.__version__})")
    for line in sys.stdin:
        command = json.loads(line)
        if "prefill" in command:
            answer(tok_s=server.prefill(**command["prefill"]))
        elif "decode" in command:
            answer(tok_s=server.decode(**command["decode"]))
        else:
            fail(f"no command: {line.strip()}")


def convert(model, kind, out):
    kinds = {"Q4_0": llama.LLAMA_FTYPE_MOSTLY_Q4_0, "BF16": llama.LLAMA_FTYPE_MOSTLY_BF16}
    options = llama.llama_model_quantize_default_params()
    options.ftype = kinds[kind]
    options.allow_requantize = True
    part = f"{out}.{os.getpid()}.part"
    code = llama.llama_model_quantize(model.encode(), part.encode(), ctypes.byref(options))
    if code != 0:
        fail(f"llama.cpp cannot convert {model} to {kind}: {code}")
    os.replace(part, out)
    answer(converted=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("convert")
    one.add_argument("model")
    one.add_argument("format", choices=["Q4_0", "BF16"])
    one.add_argument("out")
    one = commands.add_parser("serve")
    one.add_argument("model")
    one.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()

    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    if args.command == "convert":
        convert(args.model, args.format, args.out)
    else:
        serve(args.model, args.threads)


if __name__ == "__main__":
    main()
