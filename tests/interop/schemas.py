"""What we write for programs fits the schemas in docs/."""
from __future__ import annotations

import json
from pathlib import Path

import jsonschema
from referencing import Registry

DOCS = Path(__file__).resolve().parents[2] / "docs"


def closed(schema):
    """The same schema, in which an object has no fields but those that are listed: none may go undocumented."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    more = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return {**more, **{key: closed(part) for key, part in schema.items()}}


def fits(value, name: str) -> None:
    """Raises, and names the place, if the value is not as docs/<name>.schema.json says."""
    there = {path.name: json.loads(path.read_text()) for path in DOCS.glob("*.schema.json")}
    for file, schema in there.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == file  # they name each other by it
    known = Registry().with_contents([(file, closed(schema)) for file, schema in there.items()])
    jsonschema.Draft202012Validator(closed(there[f"{name}.schema.json"]), registry=known).validate(value)
