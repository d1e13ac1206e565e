"""Grammars and schemas that are made to cost as much as they can: recursion, explosion, quadratic steps. For each: a name, the field of a
request that carries it, its text, and how it must end: "fits", or words of its refusal."""
import json

# Steps and bytes of memory that compiling may take (src/grammar/grammar.h), with what one look at the budget may miss.
MAX_STEPS = 16_000_000 + 3_000_000
MAX_BYTES = 96 * 2**20


def refs(kind, width, depth, leaf):
    """A tree of references, width to the power of depth, in a few kilobytes."""
    defs = {f"d{i}": {kind: [{"$ref": f"#/$defs/d{i + 1}"}] * width, "type": "object"} for i in range(depth)}
    return {"allOf": [{"$ref": "#/$defs/d0"}, {}], "$defs": {**defs, f"d{depth}": leaf}}


def rules(n, body, last='"x"'):
    return "root ::= r0\n" + "".join(f"r{i} ::= {body.format(next=i + 1)}\n" for i in range(n)) + f"r{n} ::= {last}"


A = {"type": "object", "properties": {"a": {"type": "integer"}}}
GBNF = [
    ("repeats of a repeat", 'root ::= "a"' + "*" * 500_000, "fits"),
    ("all kinds of repeats of a repeat", 'root ::= "a"' + "*+?" * 170_000, "fits"),
    ("counted repeats of a repeat", 'root ::= "a"' + "{1,2}" * 100_000, "too large"),
    ("open repeats of a repeat", 'root ::= "a"' + "{2,}" * 200_000, "too large"),
    ("parentheses", "root ::= " + "(" * 500_000 + '"a"' + ")" * 500_000, "nest deeper than 64"),
    ("unclosed parentheses", "root ::= " + "(" * 1_000_000, "nest deeper than 64"),
    ("a chain of rules", rules(30_000, '"a" r{next}'), "fits"),
    ("a chain of calls", rules(30_000, 'r{next} "a"'), "at most 256 rules within each other"),
    ("a chain of alternatives", rules(30_000, '"a" | r{next}'), "too many ways"),
    ("a chain that ends in itself", rules(30_000, "r{next}", "r0"), "no finite text"),
    ("a doubling of rules", rules(200, "r{next} r{next}"), "fits"),
    ("a doubling of alternatives", rules(200, '"a" r{next} | "b" r{next}'), "fits"),
    ("rules on one line each, used late", "".join(f"r{i} ::= \"a\"\n" for i in range(30_000)) + "root ::= " + " | ".join(f"r{i}" for i in range(30_000)),
     "too many ways"),
    ("a rule that is missing at the end", "root ::= \"a\"\n" * 1 + "\n" * 500_000 + "x ::= y", 'line 500002, column 7: there is no rule "y"'),
    ("long alternatives that begin alike", "root ::= " + " | ".join('"' + "a" * 100 + f'{i}"' for i in range(5_000)), "fits"),
    ("alternatives that begin alike, part by part", "root ::= " + " | ".join('"a" ' * 60 + f'"{i}"' for i in range(250)), "fits"),
    ("one name of half a megabyte, often", f"root ::= {'r' * 300_000} {'r' * 300_000}\n{'r' * 300_000} ::= \"a\"", "fits"),
    ("many classes", "root ::= " + "[a-z0-9_^]" * 90_000, "fits"),
]
SCHEMAS = [
    ("allOf of references, ten wide and 14 deep", refs("allOf", 10, 14, A), "fits"),
    ("allOf of references, ten wide and 40 deep", refs("allOf", 10, 40, A), "nest deeper than 32"),
    ("anyOf of references", refs("anyOf", 10, 14, A), "more than 256 alternatives"),
    ("anyOf of references to nothing", refs("anyOf", 10, 14, False), "the grammar is too"),
    ("oneOf of references", refs("oneOf", 10, 14, A), "too complex"),
    ("oneOf within oneOf that must be told apart", {"oneOf": [refs("oneOf", 2, 8, {"const": 1}), refs("oneOf", 2, 8, {"const": 2})]}, "leads nowhere"),
    ("a cycle of references", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "no finite text"),
    ("a cycle of references in allOf", {"allOf": [{"$ref": "#"}, {"type": "object"}]}, "refer to themselves"),
    ("many parts of allOf", {"allOf": [{"properties": {"p": {"minimum": i}}} for i in range(20_000)]}, "fits"),
    ("many parts with additionalProperties", {"allOf": [{"properties": {f"p{i}": {"minimum": i}}, "additionalProperties": {"maximum": i}}
                                                        for i in range(8_000)]}, "too large"),
    ("many anyOf of one", {"allOf": [{"anyOf": [{"minimum": i}]} for i in range(25_000)]}, "fits"),
    ("many anyOf of two", {"allOf": [{"anyOf": [{"minimum": i}, {"type": "null"}]} for i in range(20_000)]}, "too complex"),
    ("a large enum", {"enum": list(range(100_000))}, "fits"),
    ("two large enums", {"allOf": [{"enum": list(range(50_000))}, {"enum": list(range(1, 50_001))}]}, "fits"),
    ("two large enums of one value", {"allOf": [{"enum": [1] * 100_000}, {"enum": [1.0] * 100_000}]}, "fits"),
    ("oneOf of 256 with long lists of what is required", {"oneOf": [{"properties": {"a": {"type": "string"}}, "required": [f"x{i}_{k}" for k in range(300)]}
                                                                   for i in range(256)]}, "more than 256 alternatives"),
    ("many properties", {"properties": {f"p{i}": {} for i in range(30_000)}, "additionalProperties": True}, "too complex"),
    ("many references", {"properties": {f"p{i}": {"$ref": "#/$defs/a"} for i in range(20_000)}, "$defs": {"a": A}}, "too many ways"),
    ("many schemas that are referred to", {"allOf": [{"properties": {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(10_000)}}],
                                           "$defs": {f"d{i}": {"type": "null"} for i in range(10_000)}}, "more than 2048 references"),
    ("patternProperties of 64 KiB", {"patternProperties": {"a" * 65_536: {}}}, "too complex"),
    ("seven patternProperties", {"patternProperties": {f"{i}.*{i}": {} for i in range(7)}}, "more than 6 patterns"),
    ("six patternProperties that overlap", {"patternProperties": {f"[a-m]{{{i}}}.*x": {} for i in range(6)}, "additionalProperties": {}}, "fits"),
    ("a pattern of many states", {"type": "string", "pattern": "^(a|b)*a(a|b){40}$", "maxLength": 400}, "more than 32768 states"),
    ("lookaheads", {"type": "string", "pattern": "^" + "".join(f"(?=.*a.{{{i}}}b)" for i in range(30)) + ".*$"}, "more than 32768 states"),
    ("lookaheads within each other", {"type": "string", "pattern": "(?!a" * 30 + ")" * 30}, "fits"),
    ("not within not", json.loads('{"not":' * 60 + "{}" + "}" * 60), "nest deeper than 32"),
    ("not of many properties", {"type": "object", "allOf": [{"not": {"required": [f"a{i}", f"b{i}"]}} for i in range(12)]}, "more than 256 alternatives"),
    ("many conditions", {"allOf": [{"if": {"properties": {f"p{i}": {"const": 1}}}, "then": {"required": [f"q{i}"]}} for i in range(40)]},
     "more than 256 alternatives"),
    ("minProperties of a million", {"type": "object", "minProperties": 1_000_000}, "must be at most 65536"),
    ("minProperties of 65,000 of 60", {"properties": {f"p{i}": {} for i in range(60)}, "minProperties": 65_000}, "more than 65536 states"),
    ("contains far away", {"contains": {"const": 1}, "minContains": 4000, "minItems": 4000}, "more than 16384 states"),
    ("a multiple of a large prime", {"type": "integer", "multipleOf": 1_000_003}, "more than the digits of 4096"),
    ("multiples of 4093", {"type": "array", "prefixItems": [{"type": "integer", "multipleOf": 4093, "minimum": i} for i in range(20)]}, "too large"),
    ("a long uniqueItems", {"uniqueItems": True, "items": {"enum": list(range(5_000))}, "maxItems": 2_500}, "more than 16384 states"),
    ("stars within stars", {"type": "string", "pattern": "^(((a*)*)*)*$"}, "fits"),
    ("a thousand times a thousand", {"type": "string", "pattern": "^(a{1000}){1000}$"}, "too large"),
    ("counts on counts", {"type": "string", "pattern": "^a{1000}{1000}$"}, "nothing to be repeated"),
    ("optional letters", {"type": "string", "pattern": "^" + "a?" * 30_000 + "$"}, "too many ways"),
    ("groups in a pattern", {"type": "string", "pattern": "(" * 60_000 + "a" + ")" * 60_000}, "nest deeper than 32"),
    ("alternatives in a pattern", {"type": "string", "pattern": "|".join(["ab"] * 20_000)}, "fits"),
    ("classes in a pattern", {"type": "string", "pattern": "[a-z\\d_-]*" * 6_000}, "too many ways"),
    ("long strings", {"type": "array", "items": {"type": "string", "maxLength": 32_768}, "prefixItems": [{"minLength": 32_768, "type": "string"}] * 3},
     "too large"),
    ("a long array of long arrays", {"minItems": 60_000, "items": {"minItems": 60_000, "items": {"minItems": 60_000, "items": {"type": "null"}}}},
     "fits"),
]
# Texts that are no value which the body of a request could hold.
TEXTS = [("lists in JSON", "[" * 500_000, "nests deeper"), ("objects in JSON", '{"a":' * 200_000, "nests deeper"),
         ("small objects in JSON", '{"x":[' + "{}," * 340_000 + "{}]}", "more than 96 MiB of memory"), ("an unclosed string", '{"a":"' + "x" * 1_000_000, "not valid JSON")]
ATTACKS = ([(name, "grammar", text, ending) for name, text, ending in GBNF]
           + [(name, "schema", json.dumps(schema), ending) for name, schema, ending in SCHEMAS]
           + [(name, "schema", text, ending) for name, text, ending in TEXTS])
TEXT_ATTACKS = ATTACKS[-len(TEXTS):]
