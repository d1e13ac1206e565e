"""What is written by a schema is valid by it; the whole check, with 2,000 schemas, is tools/grammar/check_schemas.py."""
import json
import re

import pytest

pytest.importorskip("jsonschema")
import schemas  # noqa: E402


def test_answers_by_random_schemas_are_valid(probe):
    n_finished = 0
    for number in range(200):
        schema = schemas.schema(number)
        reply = probe.ask(kind="schema", text=json.dumps(schema), seeds=[number, number + 1], max_tokens=600)
        assert "error" not in reply, (number, schema, reply)
        for output in reply["outputs"]:
            if output["finished"]:
                n_finished += 1
                schemas.check(schema, output["text"])
    assert n_finished > 300


ACCEPTED = [
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["a"]},
     ['{"a":1}', '{"a": 1, "b": true}', '{\n  "a": -20,\n  "b": false\n}'],
     ['{}', '{"b":true}', '{"b":true,"a":1}', '{"a":1,}', '{"a":01}', '{"a":1.0}', '{"a":1,"c":2}', '{"a":1}}', '{  "a":1}']),
    ({"type": "object", "properties": {"ab": {}, "abc": {}}, "additionalProperties": {"type": "null"}},
     ['{}', '{"a":null}', '{"abcd":null,"x":null}', '{"ab":[1],"abc":{"k":"v"},"b":null}'],
     ['{"a":1}', '{"x":null,"ab":1}', '{"":null}']),
    ({"type": "array", "prefixItems": [{"const": 1}, {"const": "b"}], "items": {"type": "null"}, "minItems": 1, "maxItems": 4},
     ['[1]', '[1, "b"]', '[1,"b",null]', '[1,"b", null, null]'], ['[]', '[1,2]', '[1,"b",null,null,null]', '["b"]', '[1,]']),
    ({"type": "integer", "minimum": 7, "exclusiveMaximum": 123}, ['7', '99', '122'], ['6', '123', '07', '-7', '7.5']),
    ({"type": "integer", "minimum": -12, "maximum": 3}, ['-12', '-1', '0', '3'], ['-13', '4', '-0']),
    ({"type": "number", "minimum": 0.25, "maximum": 1}, ['0.25', '0.999', '1', '0.5'], ['0.24', '1.1', '1.000001', '2', '0.2', '.5']),
    ({"type": "number", "exclusiveMinimum": 2, "maximum": 10}, ['2.5', '10', '9.999', '3'], ['2', '2.0', '10.5', '11']),
    ({"type": "number"}, ['0', '-1.5', '1e5', '2.5E-10', '123456789'], ['01', '1.', '+1', '.1', '1e', 'NaN', '1e500']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"äö€"', '"\\n\\""', '"𝄞𝄞"'], ['"a"', '"abcd"', '"a\nb"', '"\\x"']),
    ({"type": "string"}, ['""', '"\\u00e9"', '"\\ud834\\udd1e"', '"é"'], ['"\\ud834"', '"\\udd1e"', '"\\u0000"', '"\t"', '"a']),
    ({"type": "string", "pattern": "^\\d+-[a-c]?$"}, ['"12-"', '"0-b"'], ['"-"', '"1-d"', '"x1-"', '"1-b "']),
    ({"type": "string", "pattern": "b+"}, ['"b"', '"xxbby"', '"\\"b"'], ['""', '"xx"']),
    ({"type": "string", "pattern": "^[^a]$|^\\\\\\\"$"}, ['"b"', '"\\\\\\""', '"é"'], ['"a"', '"bb"']),
    ({"type": "string", "format": "date"}, ['"2024-02-28"', '"1999-12-31"'], ['"2024-02-30"', '"2024-13-01"', '"0000-01-01"', '"24-01-01"']),
    ({"enum": [1, "a", None, {"b": [2.5]}]}, ['1', '"a"', 'null', '{"b":[2.5]}'], ['2', '"b"', '{}']),
    ({"enum": [0.1, 1e-7, 3.141592653589793, 1.0]}, ['0.1', '1e-7', '3.141592653589793', '1.0'], ['0.10000000000000001', '0.2']),
    ({"const": {"a": [0.3, -2.5]}}, ['{"a":[0.3,-2.5]}'], ['{"a":[0.29999999999999999,-2.5]}']),
    ({"type": "string", "enum": ["a", 5, "b"]}, ['"a"', '"b"'], ['5']),
    ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}], "$defs": {"tree": {"type": "object", "properties": {
        "l": {"anyOf": [{"$ref": "#/$defs/tree"}, {"const": 0}]}}, "required": ["l"]}}},
     ['null', '{"l":0}', '{"l": {"l": {"l":0}}}'], ['{}', '{"l":null}', '0']),
    ({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"a": {"minimum": 3}, "b": {"const": 1}}}]},
     ['{"a":3}', '{"a":30,"b":1}'], ['{"a":2}', '{"b":1}', '{}']),
    ({"allOf": [{"type": "object", "properties": {"a": {}}, "additionalProperties": False}, {"type": "object", "properties": {"b": {}}}]},
     ['{}', '{"a":1}'], ['{"b":1}']),
    ({"allOf": [{"uniqueItems": False, "minProperties": 0}, {"type": "object", "properties": {"a": {"const": 1}}}]}, ['{}', '{"a":1}'], ['[]']),
    ({"allOf": [{"enum": [1, [2.0], {"a": 3}]}, {"enum": [{"a": 3.0}, 1.0, [2], 5]}]}, ['1', '[2.0]', '{"a":3}'], ['5']),
    ({"allOf": [{"anyOf": [{"$ref": "#/$defs/a"}, {"const": 2}]}, {"$ref": "#/$defs/a"}, {"type": "integer"}], "$defs": {"a": {"minimum": 1}}},
     ['1', '2', '30'], ['0', '1.5']),
    ({"type": ["string", "null"], "maxLength": 1}, ['null', '"x"', '""'], ['"xy"', '1']),
    (True, ['null', '[{"a":[]}]', '-0.5e+3', '"x"'], ['nul', '[1 2]']),
]


@pytest.mark.parametrize("schema,accepted,refused", ACCEPTED, ids=lambda x: json.dumps(x)[:40])
def test_texts_fit_or_do_not(probe, schema, accepted, refused):
    reply = probe.ask(kind="schema", text=json.dumps(schema), texts=accepted + refused)
    assert reply.get("accepts") is not None, reply
    assert reply["accepts"][:len(accepted)] == ["all"] * len(accepted), list(zip(accepted, reply["accepts"]))
    assert "all" not in reply["accepts"][len(accepted):], list(zip(refused, reply["accepts"][len(accepted):]))


UNENFORCED = {"not": {}, "if": {}, "then": {}, "else": {}, "dependentSchemas": {}, "dependentRequired": {}, "dependencies": {},
              "patternProperties": {}, "propertyNames": {}, "minProperties": 1, "maxProperties": 3, "contains": {}, "minContains": 1,
              "maxContains": 2, "uniqueItems": True, "multipleOf": 2, "unevaluatedProperties": False, "unevaluatedItems": False,
              "additionalItems": False, "$dynamicRef": "#a", "$recursiveRef": "#", "$id": "http://example.com/a"}


@pytest.mark.parametrize("keyword", UNENFORCED)
def test_a_keyword_that_is_not_enforced_is_refused_wherever_it_is(probe, keyword):
    schema = {keyword: UNENFORCED[keyword]}
    for outer in ({"properties": {"a": schema}}, {"allOf": [schema]}, {"allOf": [schema, {}]}, {"allOf": [{"allOf": [{}, schema]}, {}]},
                  {"type": "object", "anyOf": [{"type": "object"}, schema]}, {"type": "object", "$ref": "#/$defs/x", "$defs": {"x": schema}},
                  {"allOf": [{"properties": {"a": {}}}, {"properties": {"a": {"allOf": [{"anyOf": [{}, schema]}]}}}]},
                  {"allOf": [{"items": {"allOf": [{}, schema]}}, {"items": {"type": "null"}}]}):
        reply = probe.ask(kind="schema", text=json.dumps(outer))
        assert f'the keyword "{keyword}" is not supported' in reply.get("error", ""), (outer, reply)


WRONG = [
    ('{"type":', "not valid JSON"),
    ('5', "must be an object, true or false"),
    ('{"type": "strin"}', "type must be"),
    ('{"properties": {"a": {"multipleOf": 2}}}', '$.properties.a: the keyword "multipleOf" is not supported'),
    ('{"not": {}}', '"not"'),
    ('{"uniqueItems": true}', '"uniqueItems"'),
    ('{"patternProperties": {}}', '"patternProperties"'),
    ('{"allOf": [{"if": {}}, {}]}', '"if"'),
    ('{"$ref": "other.json"}', "must be a string that begins with #"),
    ('{"$ref": "#/$defs/x"}', "leads nowhere"),
    ('{"$ref": "#"}', "no finite text"),
    ('{"anyOf": [{"$ref": "#"}, {"type": "null"}]}', "refers to itself"),
    ('{"type": "string", "pattern": "(?=a)"}', "(?:...)"),
    ('{"type": "string", "pattern": "(a"}', "no closing )"),
    ('{"type": "string", "pattern": "a)"}', "no opening ("),
    ('{"type": "string", "pattern": "[b-a]"}', "ends before it begins"),
    ('{"type": "string", "pattern": "a**"}', "nothing to be repeated"),
    ('{"type": "string", "pattern": "\\\\bx"}', "\\b is not supported"),
    ('{"type": "string", "pattern": "a{3,2}"}', "not well-formed"),
    ('{"type": "string", "pattern": "^a+$", "maxLength": 3}', "say the length in the pattern"),
    ('{"type": "string", "format": "phone"}', "format phone"),
    ('{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "could both be valid"),
    ('{"minItems": -1, "items": {}}', "minItems must be"),
    ('{"items": [{}]}', "prefixItems"),
    ('{"enum": 5}', "enum must be a list"),
    ('{"anyOf": []}', "at least one schema"),
    ('{"required": "a"}', "required a list"),
    ('{"type": "object", "required": ["a"], "additionalProperties": false}', "no finite text"),
    ('{"type": "string", "pattern": "^.{30000}.{30000}"}', "too large"),
    ("[" * 300 + "]" * 300, "nests deeper"),
    ('{"allOf":[{},' * 40 + "{}" + "]}" * 40, "nest deeper"),
    ('{"allOf": [{"$ref": "#/$defs/a"}, {}], "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a", "type": "null"}}}',
     "refer to themselves"),
    ('{"type": "object", "anyOf": [{"$ref": "#"}, {"type": "null"}]}', "refer to themselves"),
    ('{"allOf": [{"required": "a"}, {}]}', "required a list"),
    ('{"items":' * 210 + "{}" + "}" * 210, "nest deeper"),
]


@pytest.mark.parametrize("text,words", WRONG, ids=lambda x: str(x)[:40])
def test_what_is_wrong_with_a_schema_is_told(probe, text, words):
    reply = probe.ask(kind="schema", text=text)
    assert words in reply.get("error", ""), reply
    assert reply["param"] == "response_format"


# ---- patterns by themselves: no JSON around them ----

@pytest.mark.parametrize("pattern,accepted,refused", [
    ("a|bc", ["a", "bc"], ["b", "abc", "xa", "bcx"]), ("^[0-9]{2}$", ["07"], ["7", "077"]), ('"\\\\\\n[^"]"', ['"\\\né"'], ['"\\n\""', '"\\\n""']),
    (".*", ["", 'x "\\y\t'], ["\n"]), ("(?:ä|\\u20ac)+\\.", ["ä€."], ["ä€", "."]),
])
def test_a_pattern_is_all_of_the_text(probe, pattern, accepted, refused):
    reply = probe.ask(kind="pattern", text=pattern, texts=accepted + refused, seeds=list(range(5)), max_tokens=100)
    assert reply["accepts"][:len(accepted)] == ["all"] * len(accepted), reply
    assert "all" not in reply["accepts"][len(accepted):], reply
    for output in reply["outputs"]:
        assert not output["finished"] or re.fullmatch(pattern, output["text"]), output


@pytest.mark.parametrize("pattern,words", [("(a", "no closing )"), ("a$b", "only supported at the ends"), ("\\1", "not supported")])
def test_what_is_wrong_with_a_pattern_is_told(probe, pattern, words):
    reply = probe.ask(kind="pattern", text=pattern)
    assert words in reply["error"] and reply["param"] == "grammar", reply


def test_any_object(probe):
    texts = ['{}', '{ }', '{"a": {"b": [1, 2.5, "x", null, true]}}', '[]', '1', '{"a"}', '{"a":1 }']
    assert probe.ask(kind="object", text="", texts=texts)["accepts"] == ["all", "all", "all", "no", "no", "no", "all"]
    reply = probe.ask(kind="object", text="", seeds=list(range(30)), max_tokens=400)
    done = [json.loads(output["text"]) for output in reply["outputs"] if output["finished"]]
    assert len(done) > 5 and all(isinstance(value, dict) for value in done)


def test_blanks_have_an_end(probe):
    texts = ['{"a":1' + blanks + '}' for blanks in (" ", "\n", "\n" + " " * 40, "  ", "\n\n", "\n" + " " * 41)]
    reply = probe.ask(kind="schema", text=json.dumps({"properties": {"a": {"const": 1}}}), texts=texts)
    assert reply["accepts"] == ["all"] * 3 + ["no"] * 3
