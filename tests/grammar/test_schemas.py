"""What is written by a schema is valid by it; the whole check, with 2,000 schemas, is tools/grammar/check_schemas.py."""
import collections
import json
import os
import re
import sys

import pytest

jsonschema = pytest.importorskip("jsonschema")
import combined_schemas  # noqa: E402
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
    ({"type": "object", "additionalProperties": {"type": "integer"}}, ['{"größe":1}', '{"姓名":1,"a b":2}', '{"😀":3}'], ['{"a":"b"}']),
    ({"type": "array", "prefixItems": [{"const": 1}, {"const": "b"}], "items": {"type": "null"}, "minItems": 1, "maxItems": 4},
     ['[1]', '[1, "b"]', '[1,"b",null]', '[1,"b", null, null]'], ['[]', '[1,2]', '[1,"b",null,null,null]', '["b"]', '[1,]']),
    ({"type": "integer", "minimum": 7, "exclusiveMaximum": 123}, ['7', '99', '122'], ['6', '123', '07', '-7', '7.5']),
    ({"type": "integer", "minimum": -12, "maximum": 3}, ['-12', '-1', '0', '3'], ['-13', '4', '-0']),
    # integers that a double cannot hold
    ({"type": "integer", "minimum": 2**53 + 1}, ['9007199254740994'], ['9007199254740992']),
    ({"type": "integer", "exclusiveMinimum": 2**53}, ['9007199254740993'], ['9007199254740992']),
    ({"type": "integer", "exclusiveMaximum": 2**53 + 1}, ['9007199254740991'], ['9007199254740993']),
    ({"type": "integer", "not": {"enum": [2**53 + 1, 4]}}, ['5'], ['9007199254740993', '4']),
    ({"enum": [2**53 + 1, 5], "maximum": 2**53}, ['5'], ['9007199254740993']),
    # and others that 64 bits cannot hold
    ({"type": "integer", "maximum": 2**64 - 1, "minimum": 0}, ['0', '9999999999999999'], ['-1']),
    ({"enum": [2**64, 2**63 - 1]}, ['1.8446744073709552e19', '9223372036854775807'], ['9223372036854775808']),
    ({"type": "number", "minimum": 0.25, "maximum": 1}, ['0.25', '0.999', '1', '0.5'], ['0.24', '1.1', '1.000001', '2', '0.2', '.5']),
    ({"type": "number", "exclusiveMinimum": 2, "maximum": 10}, ['2.5', '10', '9.999', '3'], ['2', '2.0', '10.5', '11']),
    ({"type": "number"}, ['0', '-1.5', '1e5', '2.5E-10', '123456789'], ['01', '1.', '+1', '.1', '1e', 'NaN', '1e500']),
    # The format of a number, in one schema and in merged ones
    *[({**schema, "$defs": {"Byte": {"type": "integer", "format": "uint8"}}}, ['4', '254'], ['256', '300', '-2', '3']) for schema in (
        {"type": "integer", "format": "uint8", "multipleOf": 2}, {"$ref": "#/$defs/Byte", "multipleOf": 2}, {"allOf": [{"$ref": "#/$defs/Byte"}, {"multipleOf": 2}]},
        {"type": "integer", "format": "uint8", "not": {"const": 3}}, {"allOf": [{"type": "integer", "format": "int16"}, {"$ref": "#/$defs/Byte", "not": {"const": 3}}]})],
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"äö€"', '"\\n\\""', '"𝄞𝄞"'], ['"a"', '"abcd"', '"a\nb"', '"\\x"']),
    ({"type": "string"}, ['""', '"\\u00e9"', '"\\ud834\\udd1e"', '"é"'], ['"\\ud834"', '"\\udd1e"', '"\\u0000"', '"\t"', '"a']),
    ({"type": "string", "pattern": "^\\d+-[a-c]?$"}, ['"12-"', '"0-b"'], ['"-"', '"1-d"', '"x1-"', '"1-b "']),
    ({"type": "string", "pattern": "b+"}, ['"b"', '"xxbby"', '"\\"b"'], ['""', '"xx"']),
    ({"type": "string", "pattern": "^[^a]$|^\\\\\\\"$"}, ['"b"', '"\\\\\\""', '"é"'], ['"a"', '"bb"']),
    ({"type": "string", "format": "date"}, ['"2024-02-28"', '"1999-12-31"', '"2024-02-29"', '"2000-02-29"'],
     ['"2024-02-30"', '"2024-13-01"', '"0000-01-01"', '"24-01-01"', '"2023-02-29"', '"1900-02-29"', '"0000-02-29"']),
    ({"type": "string", "format": "duration"}, ['"PT1H30M"', '"P1DT12H30M5S"', '"P1Y2M3D"', '"P3W"', '"PT5M"'], ['"P"', '"PT"', '"P1DT"', '"P1W2D"', '"PT1M2H"']),
    ({"type": "string", "format": "uri"}, ['"https://www.example.com/watch?v=a_B-1&t=5s#top"', '"http://localhost:8080/"', '"https://en.wikipedia.org/wiki/Foo_(bar)"',
                                           '"https://Example.com/a%20b/"', '"https://example.com"'], ['"https://example.com/%2"', '"https://"', '"/a"', '"https://a b.com"']),
    ({"type": "string", "format": "ipv6"}, ['"::1"', '"2001:db8::8a2e:370:7334"', '"::"', '"fe80::"', '"1:2:3:4:5:6:7:8"', '"FE80::1"'], ['"1:2:3"', '"1::2::3"', '"12345::"', '":1"']),
    ({"type": "string", "format": "url"}, ['"https://example.com/?q=1"'], ['"example"']),
    ({"type": "string", "format": "uuid"}, ['"123E4567-e89b-12d3-a456-426614174000"'], ['"123e4567e89b12d3a456426614174000"']),
    ({"type": "string", "format": "json-pointer"}, ['""', '"/a~1b/~0"'], ['"/~2"', '"/~"', '"a"']),
    # "ref" is a name that the second alternative allows too
    ({"oneOf": [{"type": "object", "required": ["ref"], "properties": {"ref": {"type": "string"}}, "additionalProperties": False},
                {"type": "object", "patternProperties": {"^[a-z]+$": {"type": "string"}}, "additionalProperties": False, "minProperties": 1}]},
     ['{"foo":"x"}'], ['{"ref":"x"}', '{}']),
    # What tells the alternatives apart is required outside of them
    ({"type": "object", "properties": {"msg": {"type": "string"}, "x": {"type": "string"}}, "required": ["msg"], "oneOf": [
        {"properties": {"msg": {"enum": [kind]}, "x": {"maxLength": n}, **{f"{kind}{k}": {"type": "integer"} for k in range(6)}}} for n, kind in enumerate("abcd")]},
     ['{"msg":"a","x":"","a3":1}', '{"msg":"d","x":"abc"}'], ['{"msg":"a","x":"1"}', '{"msg":"e"}', '{"x":""}']),
    # {} is valid for both
    ({"type": "object", "oneOf": [{"properties": {"key": {"type": "string"}}, "additionalProperties": False},
                                  {"properties": {"keys": {"type": "array", "items": {"type": "string"}}}, "additionalProperties": False}]},
     ['{"key":"a"}', '{"keys":["a"]}'], ['{}', '{"key":"a","keys":[]}']),
    # A recursive filter: its alternatives begin alike, and each level must not multiply them
    ({"$ref": "#/$defs/any", "$defs": {
        "leaf": {"type": "object", "properties": {"kind": {"enum": ["bool", "in"]}, "field": {"type": "string"}, "value": {}, "range": {"type": "array"}},
                 "oneOf": [{"required": ["field", "value", "kind"]}, {"required": ["field", "range", "kind"]}], "additionalProperties": False},
        "exist": {"type": "object", "properties": {"kind": {"enum": ["bool", "in"]}, "field": {"type": "string"}}, "required": ["field", "kind"], "additionalProperties": False},
        "bool": {"type": "object", "properties": {"kind": {"enum": ["bool", "in"]}, "must": {"type": "array", "items": {"$ref": "#/$defs/any"}},
                                                  "should": {"type": "array", "items": {"$ref": "#/$defs/any"}}}, "additionalProperties": False},
        "any": {"oneOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/exist"}, {"$ref": "#/$defs/bool"}]}}},
     ['{"must":[' * 20 + '{"kind":"in","field":"a"}' + "]}" * 20], ['{"must":[{"field":"a","kind":"in"}]}']),
    ({"enum": [1, "a", None, {"b": [2.5]}]}, ['1', '"a"', 'null', '{"b":[2.5]}'], ['2', '"b"', '{}']),
    ({"enum": [f"v{i:04}" for i in range(0, 6000, 2)] + ["v", "v00", "v0000", "w"]}, ['"v"', '"v00"', '"v0000"', '"v0002"', '"v5998"', '"w"'],
     ['""', '"v0"', '"v000"', '"v0001"', '"v6000"', '"v00000"', '"w0"']),
    ({"enum": ["", "ab", "a", "ab", "aé", "aè", "ac" * 40]}, ['""', '"a"', '"ab"', '"aé"', '"aè"', f'"{"ac" * 40}"'], ['"ac"', '"aê"', f'"{"ac" * 39}"']),
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
    # ---- strings ----
    ({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4}, ['"ab"', '"abcd"'], ['"a"', '"abcde"', '"aB"']),
    ({"type": "string", "pattern": "b", "maxLength": 3}, ['"b"', '"abc"'], ['"abcd"', '"ac"']),
    ({"type": "string", "format": "date", "pattern": "^20"}, ['"2024-02-28"'], ['"1999-12-31"', '"20"']),
    ({"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "z$"}, {"minLength": 3}]}, ['"abz"', '"azz"'], ['"az"', '"abc"', '"bz"']),
    ({"type": "string", "pattern": "^(?!\\.)(?!.*\\.\\.)[a-z.]+$"}, ['"a.b"', '"ab."'], ['".a"', '"a..b"']),
    ({"type": "string", "pattern": "^P(?=\\d)(\\d+Y)?(\\d+M)?$"}, ['"P1Y"', '"P2M"', '"P1Y2M"'], ['"P"', '"P1"']),
    ({"type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}, ['"1"', '"-.5"', '"00.1"'], ['""', '"-"', '"."']),
    ({"type": "string", "not": {"enum": ["a", "b"]}}, ['"c"', '"ab"', '""', '"\\n"'], ['"a"', '"b"', '"\\u0061"']),
    ({"type": "string", "not": {"pattern": "\\d"}}, ['"a"', '""'], ['"1"', '"a1b"']),
    ({"enum": ["a1", "b", "c22"], "pattern": "\\d$"}, ['"a1"', '"c22"'], ['"b"']),
    # ---- numbers ----
    ({"type": "integer", "multipleOf": 7}, ['0', '7', '-14', '700'], ['1', '8', '-0', '07', '7.0']),
    ({"type": "integer", "multipleOf": 50, "minimum": 60, "maximum": 1000}, ['100', '150', '1000'], ['50', '60', '1050', '125']),
    ({"type": "number", "multipleOf": 0.01, "minimum": 0, "exclusiveMaximum": 1}, ['0', '0.05', '0.5', '0.99', '0.10'], ['1', '0.001', '1.00', '-0.01']),
    ({"type": "number", "multipleOf": 2.5}, ['2.5', '5', '-7.5', '5.0'], ['1', '2.6', '2.55']),
    ({"enum": [9007199254740992, 9007199254740990], "multipleOf": 30}, ['9007199254740990'], ['9007199254740992']),
    ({"type": "integer", "multipleOf": 1.5}, ['3', '-6'], ['1', '1.5', '2']),
    ({"allOf": [{"type": "integer", "multipleOf": 4}, {"multipleOf": 6}]}, ['12', '0'], ['4', '6', '18']),
    ({"type": "integer", "format": "int32"}, ['2147483647', '-2147483648'], ['2147483648']),
    ({"type": "integer", "minimum": 1, "maximum": 5, "not": {"const": 3}}, ['1', '2', '4', '5'], ['3', '6']),
    # ---- objects ----
    ({"type": "object", "patternProperties": {"^s_": {"type": "string"}, "_n$": {"maxLength": 1}}, "additionalProperties": {"type": "null"}},
     ['{}', '{"s_a":"bc"}', '{"s_n":"b"}', '{"x":null,"a_n":""}'], ['{"s_a":1}', '{"s_n":"bc"}', '{"x":1}', '{"s_a":null}']),
    ({"properties": {"s_a": {"minLength": 2}}, "patternProperties": {"^s_": {"type": "string"}}}, ['{"s_a":"bc","s_b":""}'], ['{"s_a":"b"}', '{"x":1}']),
    ({"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"enum": ["a", "b"]}, "minProperties": 1},
     ['{"a":1}', '{"a":1,"b":2}', '{"b":2}'], ['{}', '{"c":1}', '{"a":"x"}']),
    ({"type": "object", "additionalProperties": True, "propertyNames": {"pattern": "^[a-z]{2}$"}}, ['{"ab":1}'], ['{"a":1}', '{"abc":1}']),
    ({"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "minProperties": 1, "maxProperties": 2},
     ['{"a":1}', '{"a":1,"c":3}', '{"b":2,"c":3}'], ['{}', '{"a":1,"b":2,"c":3}']),
    ({"type": "object", "additionalProperties": {"const": 1}, "minProperties": 2, "maxProperties": 3}, ['{"ab":1,"c":1}', '{"ab":1,"c":1,"d":1}'],
     ['{"a":1}', '{"a":1,"a":1}', '{"ab":1,"c":1,"d":1,"e":1}']),
    ({"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "dependentRequired": {"a": ["b", "c"]}},
     ['{}', '{"b":2}', '{"a":1,"b":2,"c":3}'], ['{"a":1}', '{"a":1,"b":2}']),
    ({"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}, "required": ["b"]}}},
     ['{"b":1}', '{"a":1,"b":5}'], ['{"a":1}', '{"a":1,"b":4}']),
    ({"properties": {"kind": {"enum": ["card", "cash"]}, "number": {"type": "string"}}, "required": ["kind"],
      "if": {"properties": {"kind": {"const": "card"}}}, "then": {"required": ["number"]}, "else": {"properties": {"number": False}}},
     ['{"kind":"card","number":"1"}', '{"kind":"cash"}'], ['{"kind":"card"}', '{"kind":"cash","number":"1"}', '{}']),
    ({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
     ['{"a":1}', '{"b":2}'], ['{}', '{"a":1,"b":2}']),
    ({"properties": {"a": {"const": 1}, "b": {"const": 2}}, "not": {"required": ["a", "b"]}}, ['{}', '{"a":1}', '{"b":2}'], ['{"a":1,"b":2}']),
    ({"enum": [{"a": 1}, {"a": "x"}, {"b": 1}], "properties": {"a": {"type": "integer"}}, "required": ["a"]}, ['{"a":1}'], ['{"a":"x"}', '{"b":1}']),
    ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "discriminator": {"propertyName": "k"}, "$defs": {
        "a": {"type": "object", "properties": {"k": {"const": "a"}, "x": {"const": 1}}},
        "b": {"type": "object", "properties": {"k": {"const": "b"}, "y": {"const": 2}}}}},
     ['{"k":"a"}', '{"k":"b","y":2}'], ['{}', '{"x":1}', '{"k":"a","y":2}']),
    # ---- arrays ----
    ({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "maxItems": 3}, ['[5]', '[1,9]', '[9,9,9]'], ['[]', '[1,2]', '[1,2,3,9]']),
    ({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "minContains": 1, "maxContains": 2},
     ['[5]', '[1,5,2,7]'], ['[1]', '[5,5,5]']),
    ({"type": "array", "contains": {"const": 1}, "minContains": 0, "allOf": [{"contains": {"const": 1}, "maxContains": 1}]},
     ['[1]', '[0,1]'], ['[]', '[0]', '[1,1]']),
    ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2}, ['["b","a"]', '["c","b","a"]'], ['["a"]', '["a","a"]']),
    ({"type": "array", "items": {"enum": list("abcdefghij")}, "uniqueItems": True, "maxItems": 3}, ['[]', '["a","d","j"]'], ['["a","a"]', '["a","b","c","d"]']),
    ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}, ['[true,false]', '[]'], ['[true,true]']),
    ({"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 2}, ['["ab","cd"]'], ['["ab","ab"]', '["ab"]']),
    ({"type": "array", "items": {"type": "integer", "minimum": 0}, "uniqueItems": True}, ['[1,2,30]', '[7]'], ['[1,1]', '[-1]']),
    ({"type": "array", "items": {"type": "number"}, "uniqueItems": True}, ['[1,2.5]'], ['[1,1]', '[1,1.0]', '[2.5,2.50]']),
    ({"items": [{"const": 1}, {"const": "b"}], "additionalItems": False}, ['[1]', '[1,"b"]'], ['[2]', '[1,"b",3]']),
    ({"not": {"type": ["object", "array", "string", "number"]}}, ['null', 'true'], ['1', '"a"', '{}']),
    ({"type": ["integer", "null"], "not": {"type": "null"}}, ['1'], ['null']),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "$comment": "x", "type": "string", "default": "a", "examples": ["b"], "readOnly": True,
      "contentMediaType": "text/plain", "deprecated": True, "discriminator": {"propertyName": "k"}, "x-more": [1]}, ['"a"'], ['1']),
    (True, ['null', '[{"a":[]}]', '-0.5e+3', '"x"'], ['nul', '[1 2]']),
]


@pytest.mark.parametrize("schema,accepted,refused", ACCEPTED, ids=lambda x: json.dumps(x)[:40])
def test_texts_fit_or_do_not(probe, schema, accepted, refused):
    reply = probe.ask(kind="schema", text=json.dumps(schema), texts=accepted + refused)
    assert reply.get("accepts") is not None, reply
    assert reply["accepts"][:len(accepted)] == ["all"] * len(accepted), list(zip(accepted, reply["accepts"]))
    assert "all" not in reply["accepts"][len(accepted):], list(zip(refused, reply["accepts"][len(accepted):]))


UNENFORCED = {"unevaluatedProperties": False, "unevaluatedItems": False, "$dynamicRef": "#a", "$recursiveRef": "#", "$id": "http://example.com/a"}


@pytest.mark.parametrize("keyword", UNENFORCED)
def test_a_keyword_that_is_not_enforced_is_refused_wherever_it_is(probe, keyword):
    schema = {keyword: UNENFORCED[keyword]}
    for outer in ({"properties": {"a": schema}}, {"allOf": [schema]}, {"allOf": [schema, {}]}, {"allOf": [{"allOf": [{}, schema]}, {}]},
                  {"type": "object", "anyOf": [{"type": "object"}, schema]}, {"type": "object", "$ref": "#/$defs/x", "$defs": {"x": schema}},
                  {"allOf": [{"properties": {"a": {}}}, {"properties": {"a": {"allOf": [{"anyOf": [{}, schema]}]}}}]},
                  {"allOf": [{"items": {"allOf": [{}, schema]}}, {"items": {"type": "null"}}]}, {"not": schema}, {"if": {}, "then": schema},
                  {"type": "object", "patternProperties": {"a": schema}}, {"type": "object", "dependentSchemas": {"a": schema}},
                  {"contains": schema}, {"enum": [{"a": 1}], "properties": {"a": schema}}, {"type": "array", "uniqueItems": True, "items": schema}):
        reply = probe.ask(kind="schema", text=json.dumps(outer))
        assert f'the keyword "{keyword}" is not supported' in reply.get("error", ""), (outer, reply)


WRONG = [
    ('{"type":', "not valid JSON"),
    ('5', "must be an object, true or false"),
    ('{"type": "strin"}', "type must be"),
    ('{"properties": {"a": {"unevaluatedItems": false}}}', '$.properties.a: the keyword "unevaluatedItems" is not supported'),
    ('{"properties": {"a": {"multipleOf": 0}}}', '$.properties.a: multipleOf must be a number above 0'),
    ('{"not": {}}', "no finite text"),
    ('{"not": [{"pattern": 5}]}', "must be an object, true or false"),
    ('{"not": {"multipleOf": 3}}', "cannot be enforced"),
    ('{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "no finite text: by the JSON schema, at $, no value is valid, or none that can be described"),
    ('{"properties": {"a": {"$ref": "#/$defs/b"}}, "required": ["a"], "$defs": {"b": {"pattern": "^[]a]$"}}}', "by the JSON schema, at #/$defs/b, no value"),
    ('{"patternProperties": {"(": {}}}', "no closing )"),
    ('{"patternProperties": []}', "patternProperties must be"),
    ('{"type": "array", "uniqueItems": true, "minItems": 2, "items": {"type": "object"}}', "listed values, strings or numbers"),
    ('{"type": "array", "uniqueItems": true, "contains": {}}', "uniqueItems together with contains"),
    ('{"type": "string", "pattern": ["a"]}', "pattern must be a string"),
    ('{"dependentRequired": 5}', "dependentRequired must be an object"),
    ('{"allOf": [{"patternProperties": {"a": {}}}, {"additionalProperties": {}}]}', "cannot be merged with additionalProperties"),
    ('{"allOf": [{"multipleOf": 0.3}, {"multipleOf": 0.7}]}', "two different values of multipleOf"),
    ('{"$ref": "other.json"}', "must be a string that begins with #"),
    ('{"$ref": "#/$defs/x"}', "leads nowhere"),
    ('{"$ref": "#"}', "no finite text"),
    ('{"anyOf": [{"$ref": "#"}, {"type": "null"}]}', "refers to itself"),
    ('{"type": "string", "pattern": "(?<=a)b"}', "(?:...)"),
    ('{"type": "string", "pattern": "(?:(?!a).)*"}', "cannot be repeated"),
    ('{"type": "string", "pattern": "a?^b"}', "where no character can come before"),
    ('{"type": "string", "pattern": "(a"}', "no closing )"),
    ('{"type": "string", "pattern": "a)"}', "no opening ("),
    ('{"type": "string", "pattern": "[b-a]"}', "ends before it begins"),
    ('{"type": "string", "pattern": "a**"}', "nothing to be repeated"),
    ('{"type": "string", "pattern": "\\\\bx"}', "\\b is not supported"),
    ('{"type": "string", "pattern": "a{3,2}"}', "not well-formed"),
    ('{"type": "string", "format": "phone"}', 'format "phone"'),
    ('{"minItems": -1, "items": {}}', "minItems must be"),
    ('{"enum": 5}', "enum must be a list"),
    ('{"type": "array", "minItems": 100000}', "minItems must be at most 65536"),
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


@pytest.mark.parametrize("pattern,words", [("(a", "no closing )"), ("a$b", "no finite text"), ("\\1", "not supported")])
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


# ---- the public JSON-Schema-Test-Suite ----

def test_the_public_suite_allows_no_invalid_instance(probe):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.insert(0, os.path.join(root, "tools", "oracle"))
    import json_schema_suite

    class SchemaProbe:
        def ask(self, schema, texts):
            return probe.ask(kind="schema", text=json.dumps(schema), texts=texts)

    with open(os.path.join(root, "tests", "fixtures", "grammar", "json_schema_suite.json"), encoding="utf-8") as file:
        groups = json.load(file)["groups"]
    counts, reasons, wrong = collections.Counter(), collections.Counter(), []
    json_schema_suite.check_groups(SchemaProbe(), groups, counts, reasons,
                                   lambda kind, group, what: wrong.append((group["schema"], what)) if kind == "WRONG" else None)
    assert not wrong
    assert counts["schemas accepted"] == 207 and counts["instances valid accepted"] == 323, (counts, reasons)


def test_answers_by_combined_schemas_are_valid(probe):
    n_accepted = n_finished = 0
    for number, schema in enumerate(combined_schemas.schemas(1000)):
        reply = probe.ask(kind="schema", text=json.dumps(schema), seeds=[number, number + 1], max_tokens=100)
        n_accepted += "error" not in reply
        for output in reply.get("outputs", []):
            if output["finished"]:
                n_finished += 1
                assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(output["text"])), (schema, output["text"])
    assert n_accepted > 500 and n_finished > 500, (n_accepted, n_finished)
