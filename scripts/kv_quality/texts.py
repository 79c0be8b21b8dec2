"""Texts and questions that the models are measured on: all of it is in Python's own installation, or here."""

from __future__ import annotations

import inspect
from importlib import import_module

__all__ = ["CITIES", "COLOURS", "QUESTIONS", "TOOL", "passages", "prose", "sources"]

MODULES = (
    "argparse", "ast", "asyncio.base_events", "bdb", "calendar", "cmd", "codecs", "collections",
    "configparser", "contextlib", "copy", "csv", "dataclasses", "datetime", "difflib", "dis", "doctest",
    "enum", "filecmp", "fnmatch", "ftplib",
)  # fmt: skip
COLOURS = ("red", "green", "blue", "white", "black", "brown", "yellow", "grey", "orange", "purple")
QUESTIONS = (
    "What is the capital of France?",
    "Name three fruits.",
    "Write a short poem about the sea.",
    "Explain what a compiler does.",
    "How do plants make food?",
    "Tell me a story about a fox and a farmer.",
    "What is the difference between a list and a tuple in Python?",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Write a function in Python that returns the largest of three numbers.",
    "Who wrote Romeo and Juliet, and what is it about?",
    "List the planets of the solar system.",
)
CITIES = (
    "Paris", "London", "Rome", "Oslo", "Cairo", "Lima", "Tokyo", "Madrid", "Athens", "Dublin", "Delhi",
    "Vienna",
)  # fmt: skip
TOOL = (
    "Call the function get_weather(city, unit) to answer. Reply with JSON only.\n\n"
    "What is the weather in Berlin in celsius?\n"
    '{"name": "get_weather", "arguments": {"city": "Berlin", "unit": "celsius"}}\n\n'
    "What is the weather in Denver in fahrenheit?\n"
    '{"name": "get_weather", "arguments": {"city": "Denver", "unit": "fahrenheit"}}\n\n'
    "What is the weather in {city} in {unit}?"
)


def prose() -> str:
    """Return the language reference that Python holds."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def sources() -> str:
    """Return the source of some of Python's modules."""
    return "\n\n".join(inspect.getsource(import_module(name)) for name in MODULES)


def passages(count: int, characters: int) -> list[str]:
    """Return *count* pieces of code, to be repeated with a change: what a drafter by look-up is good at."""
    text = sources()
    step = len(text) // count
    found = []
    for number in range(count):
        begin = text.find("\n    def ", number * step + step // 2)
        found.append(text[begin : begin + characters])
    return found
