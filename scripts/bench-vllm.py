#!/usr/bin/env python3
"""vLLM on the CPU as the peer of `baton bench engine`: does the same work and says how fast.

    bench-vllm.py convert MODEL BF16 OUT           writes MODEL (GGUF file or folder) as a Hugging Face folder in bf16
    bench-vllm.py serve MODEL --threads N          takes commands on standard input until it ends

Commands and answers are those of bench-llama-cpp.py, one JSON object per line. Streams hold different prompts;
their K and V stay in vLLM's prefix cache from one measurement to the next, so that only the first has to compute
them. Measured prompts are never in it. A decode figure is streams over the median step.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import time

STREAMS = 32
LONGEST = 2048
LEAST_SECONDS = 0.1

# Standard output belongs to the answers: whatever libraries print goes to standard error.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(**what):
    print(json.dumps(what), file=ANSWERS, flush=True)


def fail(why):
    answer(error=why)
    sys.exit(1)


class Server:
    def __init__(self, model, threads):
        # One process, whose threads are as many as asked for.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        try:
            import vllm
        except (ImportError, OSError, RuntimeError) as error:
            fail(f"vLLM cannot be loaded: {error}")
        self.vllm = vllm
        llm = vllm.LLM(
            model=model,
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=LONGEST + 256,
            max_num_seqs=STREAMS,
            max_num_batched_tokens=LONGEST,
            enable_prefix_caching=True,
            disable_log_stats=True,
        )
        self.vocabulary = llm.llm_engine.model_config.get_vocab_size()
        self.engine = llm.llm_engine
        self.requests = 0
        self.random = random.Random(1)

    def add(self, ids, tokens):
        """A request of `tokens` greedy tokens; returns its name."""
        self.requests += 1
        name = str(self.requests)
        params = self.vllm.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        self.engine.add_request(name, {"prompt_token_ids": ids}, params)
        return name

    def prefill(self, tokens):
        times = []
        begin = time.perf_counter()
        while not times or time.perf_counter() - begin < LEAST_SECONDS:
            ids = [self.random.randrange(1000, self.vocabulary) for _ in range(tokens)]
            start = time.perf_counter()
            self.add(ids, 1)
            while self.engine.has_unfinished_requests():
                self.engine.step()
            times.append(time.perf_counter() - start)
        return tokens / statistics.median(times)

    def decode(self, streams, context, steps):
        names = []
        for stream in range(streams):
            prompt = random.Random(stream)
            ids = [prompt.randrange(1000, self.vocabulary) for _ in range(context)]
            names.append(self.add(ids, steps + 1 + streams))
        # Prompts first: until every stream has its first token.
        begun = set()
        while len(begun) < streams:
            begun |= {output.request_id for output in self.engine.step() if output.outputs[0].token_ids}
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            self.engine.step()
            times.append(time.perf_counter() - start)
        self.engine.abort_request(names)
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return streams / statistics.median(times)


def serve(model, threads):
    server = Server(model, threads)
    answer(ready=f"vLLM ({server.vllm.__version__}, CPU)")
    for line in sys.stdin:
        command = json.loads(line)
        if "prefill" in command:
            answer(tok_s=server.prefill(**command["prefill"]))
        elif "decode" in command:
            answer(tok_s=server.decode(**command["decode"]))
        else:
            fail(f"no command: {line.strip()}")


def convert(model, out):
    try:
        import torch
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        fail(f"the model cannot be converted: {error}")
    source = {"pretrained_model_name_or_path": model}
    if not os.path.isdir(model):
        folder, name = os.path.split(os.path.abspath(model))
        source = {"pretrained_model_name_or_path": folder, "gguf_file": name}
    part = f"{out}.{os.getpid()}.part"
    weights = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    # What it was read from is no property of what is written.
    config = weights.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(weights).__name__]
    config.save_pretrained(part)
    state = weights.state_dict()
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    state = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in state.items()}
    save_file(state, os.path.join(part, "model.safetensors"), metadata={"format": "pt"})
    shutil.rmtree(out, ignore_errors=True)
    os.replace(part, out)
    answer(converted=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("convert")
    one.add_argument("model")
    one.add_argument("format", choices=["BF16"])
    one.add_argument("out")
    one = commands.add_parser("serve")
    one.add_argument("model")
    one.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    if args.command == "convert":
        convert(args.model, args.out)
    else:
        serve(args.model, args.threads)


if __name__ == "__main__":
    main()
