"""What Pydantic emits for 200 models is accepted, and what the grammars write is valid for jsonschema and for Pydantic."""
import json

import pytest

pytest.importorskip("jsonschema")
pytest.importorskip("pydantic")
import jsonschema  # noqa: E402
import pydantic  # noqa: E402
import pydantic_models  # noqa: E402

# Pydantic does not put into the schema what the string of a Decimal or of a Json must be.
NOT_IN_SCHEMA = {"decimal_parsing", "json_invalid"}


def check(model, text):
    try:
        model.model_validate_json(text)
    except pydantic.ValidationError as error:
        # A union lists what every member says of the value.
        kinds = {entry["type"] for entry in error.errors()}
        assert kinds & NOT_IN_SCHEMA, (text, error)


def test_what_pydantic_emits_is_accepted_and_enforced(probe):
    n_finished, refused = 0, []
    for seed in range(200):
        model = pydantic_models.model(seed)
        schema = model.model_json_schema()
        reply = probe.ask(kind="schema", text=json.dumps(schema), seeds=[seed, seed + 1000], max_tokens=400)
        if "error" in reply:
            refused.append((seed, reply["error"]))
            continue
        for output in reply["outputs"]:
            if output["finished"]:
                n_finished += 1
                value = json.loads(output["text"])
                jsonschema.Draft202012Validator(schema).validate(value)
                check(model, output["text"])
    assert not refused, refused
    assert n_finished > 200
