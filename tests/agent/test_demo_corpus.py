"""The demo's corpus and questions are well formed and fit the models that read them."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import neuronscope.demo
from neuronscope.demo.runner import load_questions

DEMO = Path(neuronscope.demo.__file__).parent
DOCUMENTS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (DEMO / "corpus" / "documents.jsonl").read_text(encoding="utf-8").splitlines()
]


def test_every_document_has_the_same_four_filled_fields() -> None:
    for document in DOCUMENTS:
        assert set(document) == {"id", "topic", "title", "text"}
        assert all(isinstance(value, str) and value.strip() == value and value for value in document.values())


def test_ids_titles_and_texts_are_unique() -> None:
    for field in ("id", "title", "text"):
        repeated = [value for value, count in Counter(d[field] for d in DOCUMENTS).items() if count > 1]
        assert repeated == []


def test_texts_are_short_passages_of_several_sentences() -> None:
    for document in DOCUMENTS:
        words = len(document["text"].split())
        # MiniLM reads 256 word pieces; three passages must leave room in a small model's prompt.
        assert 25 <= words <= 90, document["id"]
        assert 2 <= document["text"].count(". ") + 1 <= 5, document["id"]


def test_every_topic_has_several_documents() -> None:
    assert 60 <= len(DOCUMENTS) <= 100
    assert min(Counter(document["topic"] for document in DOCUMENTS).values()) >= 4


def test_questions_are_unique_and_name_existing_documents() -> None:
    questions = load_questions()
    assert len(questions) == 12
    assert len({q.question for q in questions}) == len({q.document for q in questions}) == 12
    assert {question.document for question in questions} <= {document["id"] for document in DOCUMENTS}


def test_the_service_is_an_ordinary_program_that_does_not_import_us() -> None:
    tree = ast.parse((DEMO / "service.py").read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module])
    }
    assert not any(name and name.split(".")[0].startswith("neuronscope") for name in imported)
