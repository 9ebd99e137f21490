"""OpenAI's own Python client against a running service: every call that applications make of it.

    python tests/python/openai_client.py http://127.0.0.1:8000/v1

Prints one line for each that passed; the first that does not ends it.
"""

import sys

import openai

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=32)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def chat_streamed(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=32)
    text, usages, roles = "", [], []
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_completion_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if not chunk.choices:
            usages.append(chunk.usage)
            continue
        delta = chunk.choices[0].delta
        text += delta.content or ""
        if delta.role:
            roles.append((delta.role, bool(delta.content)))
    assert text == whole.choices[0].message.content, text
    assert usages == [whole.usage] or usages[0].completion_tokens == whole.usage.completion_tokens
    assert roles == [("assistant", True)], roles


def logprobs(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 4
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert bytes(token.bytes).decode() == token.token
        assert token.top_logprobs[0].logprob == token.logprob
    answer = client.completions.create(
        model=model, prompt="The capital of France is", temperature=0, max_tokens=3, logprobs=2, echo=True
    )
    told = answer.choices[0].logprobs
    assert told.token_logprobs[0] is None and all(value <= 0 for value in told.token_logprobs[1:])
    assert answer.choices[0].text.startswith("The capital of France is")


def completions(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=["One, two,", "A, B,"], n=2, seed=7, max_tokens=6, temperature=0.8
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    again = client.completions.create(
        model=model, prompt=["One, two,", "A, B,"], n=2, seed=7, max_tokens=6, temperature=0.8, stream=True
    )
    texts = ["", "", "", ""]
    for chunk in again:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in answer.choices], texts


def models(client: openai.OpenAI, model: str) -> None:
    assert client.models.retrieve(model).id == model


def errors(client: openai.OpenAI, model: str) -> None:
    def refused(kind: type[openai.APIStatusError], param: str, **arguments: object) -> None:
        try:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, **arguments})
        except kind as error:
            assert error.param == param, error
            return
        raise AssertionError(f"not refused: {arguments}")

    refused(openai.NotFoundError, "model", model="another")
    refused(openai.BadRequestError, "temperature", temperature=99)
    refused(openai.BadRequestError, "tools", tools=[{"type": "function", "function": {"name": "f"}}])
    refused(openai.BadRequestError, "wrong", extra_body={"wrong": 1})


def main() -> None:
    client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=120)
    model = client.models.list().data[0].id
    for check in (chat, chat_streamed, logprobs, completions, models, errors):
        check(client, model)
        print(f"ok {check.__name__}")


if __name__ == "__main__":
    main()
