"""Chats with tools and chats with thinking, for make_mix.py: calls of tools that add (subtract, multiply) or look up a
capital, under many names; tools that do not fit the question, which the model answers by itself; short thinking.
"""
import json

from make_corpus import CAPITALS

OPS = {"+": ("add", "plus", "加"), "-": ("subtract", "minus", "减"), "*": ("multiply", "times", "乘")}
APPLY = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
OP_NAMES = {
    "+": ["add", "sum", "plus", "addition", "add_numbers", "addNumbers", "AddNumbers", "add_two_numbers", "sum_numbers", "sum_two",
          "calculate_sum", "compute_sum", "get_sum", "adder", "calc_sum", "integer_add", "number_sum", "add_ints", "sum_of", "total",
          "add_integers", "simple_add", "calculateSum", "sumNumbers", "make_sum", "find_sum", "sum_values", "add_values", "total_of"],
    "-": ["subtract", "minus", "difference", "subtract_numbers", "get_difference", "take_away", "sub", "calc_difference"],
    "*": ["multiply", "times", "product", "multiply_numbers", "get_product", "mul", "calc_product", "multiplyNumbers"],
}
OP_TEXTS = {
    "+": ["Add two numbers.", "Adds two numbers", "Add two integers", "Add two integers and return their sum.", "Returns the sum of two numbers.",
          "The sum of two numbers", "Calculate the sum of two numbers.", "Sums two numbers together", "Use this tool to add two numbers.",
          "Computes a + b.", "Adds the first number to the second one.", "Add a and b.", "A tool that adds numbers.", "两个数相加", "计算两个数的和。"],
    "-": ["Subtract two numbers.", "The difference of two numbers", "Takes the second number from the first one.", "Computes a - b.", "两个数相减"],
    "*": ["Multiply two numbers.", "The product of two numbers", "Multiplies two numbers.", "Computes a * b.", "两个数相乘"],
}
PAIRS = [("a", "b"), ("x", "y"), ("first", "second"), ("num1", "num2"), ("left", "right"), ("number1", "number2"), ("n1", "n2"), ("m", "n"),
         ("first_number", "second_number"), ("number_1", "number_2"), ("p", "q"), ("one", "two"), ("lhs", "rhs"), ("value1", "value2"), ("i", "j"),
         ("arg1", "arg2"), ("u", "v"), ("number_a", "number_b"), ("a", "b"), ("x1", "x2"), ("firstNumber", "secondNumber"), ("term1", "term2")]
CALCULATORS = ["calculator", "calculate", "calc", "evaluate", "math", "compute", "eval_expression"]
CALCULATOR_TEXTS = ["Evaluate an arithmetic expression.", "A calculator.", "Calculates the value of an expression", "Does sums."]
EXPRESSIONS = ["expression", "expr", "formula", "input", "text", "query"]
CAPITAL_NAMES = ["get_capital", "capital_of", "find_capital", "lookup_capital", "capital", "country_capital", "getCapital", "capital_lookup",
                 "get_capital_city", "capitalCity", "capital_city", "capital_city_of", "GetCapital", "look_up_capital", "search_capital",
                 "which_capital", "lookupCapital", "capital_of_country", "get_country_capital", "read_capital", "capitals"]
CAPITAL_TEXTS = ["Get the capital of a country.", "Look up the capital of a country", "Returns the capital city of a country.", "The capital of a country",
                 "Finds the capital city.", "Tells which city is the capital of a country.", "Use this tool to find capitals.", "查询一个国家的首都",
                 "Capital lookup", "Look up a country's capital city."]
COUNTRY_KEYS = ["country", "country", "country", "name", "nation", "state", "place", "country_name", "countryName", "land", "of", "query", "which", "region"]
KEY_TEXTS = ["The {} number", "the {} number", "{} number", "The {} value", "The {} number to use", "{}"]
COUNTRY_TEXTS = ["The country", "Name of the country", "The name of a country", "country name, such as France", "Which country", "国家的名字", "A country"]
# name, description, [(key, type)]
OTHERS = [("get_weather", "Get the weather of a city.", [("city", "string")]), ("get_current_weather", "Get the current weather", [("location", "string"), ("unit", "string")]),
          ("get_time", "The time in a time zone", [("timezone", "string")]), ("send_email", "Send an email.", [("to", "string"), ("subject", "string"), ("body", "string")]),
          ("search", "Search the web.", [("query", "string")]), ("play_music", "Play a song", [("song", "string")]), ("set_alarm", "Set an alarm.", [("time", "string")]),
          ("translate_text", "Translate a text", [("text", "string"), ("language", "string")]), ("get_stock_price", "The price of a stock", [("symbol", "string")]),
          ("turn_on_light", "Turn on the light in a room.", [("room", "string")]), ("create_note", "Write a note", [("title", "string"), ("text", "string")]),
          ("read_file", "Read a file.", [("path", "string")]), ("list_files", "List the files of a folder", [("folder", "string")]),
          ("run_command", "Run a command in a shell.", [("command", "string")]), ("book_table", "Book a table in a restaurant", [("name", "string"), ("people", "integer")]),
          ("roll_dice", "Roll a dice.", [("sides", "integer")]), ("get_news", "Read the news", [("topic", "string")]), ("find_user", "Find a user by id", [("user_id", "integer")]),
          ("order_pizza", "Order a pizza.", [("size", "string")]), ("delete_row", "Delete a row of a table", [("table", "string"), ("row", "integer")]),
          ("get_population", "How many people live in a city", [("city", "string")]), ("convert_money", "Convert money", [("amount", "number"), ("to", "string")])]
SYSTEMS = ["You are a helpful assistant.", "You are a helpful assistant. Use the tools.", "Use the tools when they help.", "You can call tools.", "You are the demo model of tutti.",
           "你是一个友好的助手。", "Answer briefly.", "Answer the following questions as best as you can. You have access to the following tools:",
           "You are an agent. Call a tool when you need one.", "Be helpful and use the given tools."]
# Whether definitions are as short as can be: such chats teach in less time how a call follows from a list.
IS_TINY = [False]
# Names of most definitions: a model of this size learns to recognize these, but not to copy any name.
KNOWN_NAMES = {"+": ["add", "add", "sum", "plus", "add_numbers"], "-": ["subtract", "minus"], "*": ["multiply", "times"],
               "capital": ["get_capital", "get_capital", "capital", "capital_of", "find_capital", "lookup_capital"]}
KNOWN_PAIRS = [("a", "b"), ("a", "b"), ("x", "y"), ("num1", "num2"), ("first", "second")]
KNOWN_COUNTRIES = ["country", "country", "country", "name", "nation"]
KNOWN = .9
SYLLABLES = "ba be bo da den do fa fen ga gal go ha hel ka kel ko la len lo ma mer mo na nor no pa per po ra ren ro sa sel so ta ten to va ven vo".split()
BEGINNINGS = "Bel Kar Nor Val Mar Tor Lan Per Sol Dan Fen Gal Hol Ros Wes".split()


def word(r, n=2):
    return "".join(r.choice(SYLLABLES) for _ in range(n))


def place(r, endings):
    return r.choice(BEGINNINGS) + r.choice(["", word(r, 1)]) + r.choice(endings)


def any_of(r, known, others):
    return r.choice(known if r.random() < KNOWN else others)


def varied(r, name):
    """A name with something before or after it, or in another spelling."""
    x = r.random() + (KNOWN if any(name in names for names in KNOWN_NAMES.values()) else 0)
    if x < .04:
        return r.choice(["my_", "math_", "calc_", "demo_", "do_", "tool_", "the_", "fn_", "geo_", "run_", "get_"]) + name
    if x < .08:
        return name + r.choice(["_tool", "_fn", "2", "_1", "_v2", "Tool", "_it", "_function", "_api"])
    return name


def schema(r, keys, optional=None):
    """keys: [(key, type, description or None)]"""
    if IS_TINY[0]:
        return {"properties": {key: {"type": kind} if r.random() < .5 else {} for key, kind, _ in keys}}
    described = r.random() < .6
    titled = r.random() < .08
    properties = {}
    for key, kind, text in keys + (optional or []):
        entry = {"type": kind}
        if described and text:
            entry = {"type": kind, "description": text} if r.random() < .8 else {"description": text, "type": kind}
        if titled:
            entry = {"title": key.replace("_", " ").title(), **entry} if r.random() < .5 else {**entry, "title": key.replace("_", " ").title()}
        properties[key] = entry
    required = [key for key, _, _ in keys]
    x = r.random()
    if x < .8:
        out = {"type": "object", "properties": properties, "required": required}
    elif x < .9:
        out = {"properties": properties, "required": required, "type": "object"}
    else:
        out = {"type": "object", "properties": properties}
    if r.random() < .12:
        out["additionalProperties"] = False
    return out


def tool(r, name, text, keys, optional=None):
    function = {"name": name}
    if text and (not IS_TINY[0] or r.random() < .3):
        function["description"] = text
    function["parameters"] = schema(r, keys, optional)
    if r.random() < .06:
        function["strict"] = True
    if r.random() < .05:
        function = {"name": name, "parameters": function["parameters"], **({"description": text} if text else {})}
    return {"type": "function", "function": function}


def op_tool(r, op):
    """A tool, and what the arguments for two numbers are."""
    if r.random() < .06:
        argument = any_of(r, ["expression"], EXPRESSIONS)
        name = any_of(r, ["calculator", "calculate"], CALCULATORS)
        return tool(r, name, r.choice(CALCULATOR_TEXTS), [(argument, "string", r.choice(["The expression", "such as 2 + 3", "An expression"]))]), \
            "+-*", lambda a, b, o: (name, {argument: f"{a} {o} {b}"})
    first, second = any_of(r, KNOWN_PAIRS, PAIRS)
    kind = r.choice(["integer", "integer", "number"])
    form = r.choice(KEY_TEXTS)
    name, text = varied(r, any_of(r, KNOWN_NAMES[op], OP_NAMES[op])), r.choice(OP_TEXTS[op])
    if r.random() < .1:
        text = None
    optional = [("note", "string", "A note")] if r.random() < .05 else None
    return tool(r, name, text, [(first, kind, form.format("first")), (second, kind, form.format("second"))], optional), \
        op, lambda a, b, o: (name, {first: a, second: b})


def capital_tool(r):
    argument = any_of(r, KNOWN_COUNTRIES, COUNTRY_KEYS)
    name, text = varied(r, any_of(r, KNOWN_NAMES["capital"], CAPITAL_NAMES)), r.choice(CAPITAL_TEXTS)
    if r.random() < .1:
        text = None
    optional = [("language", "string", "The language of the answer")] if r.random() < .06 else None
    return tool(r, name, text, [(argument, "string", r.choice(COUNTRY_TEXTS))], optional), lambda country: (name, {argument: country})


def other_tool(r):
    name, text, keys = r.choice(OTHERS)
    return tool(r, varied(r, name), text if r.random() < .9 else None, [(k, kind, f"The {k.replace('_', ' ')}") for k, kind in keys])


def number(r):
    return r.randint(0, r.choice([12, 12, 50, 50, 100, 999, 9999]))


def op_question(r, op, a, b):
    """A question, and its answer before the result."""
    verb, spoken, zh = OPS[op]
    if r.random() < .2:
        return r.choice([f"{a}{zh}{b}等于多少？", f"{a}{zh}{b}是多少？", f"{a} {op} {b} 等于几？", f"请计算 {a} {op} {b}。"]), f"{a}{zh}{b}等于", "。"
    forms = [f"What is {a} {op} {b}?", f"What is {a} {spoken} {b}?", f"{a} {op} {b} = ?", f"Calculate {a} {op} {b}.", f"How much is {a} {spoken} {b}?",
             f"Compute {a} {op} {b}.", f"What is {a} {op} {b}? Use the tool.", f"Please calculate {a} {spoken} {b}."]
    if op == "+":
        forms += [f"Add {a} and {b}.", f"Please add {a} and {b}.", f"What is the sum of {a} and {b}?", f"Use the tool to add {a} and {b}.", f"Can you add {a} and {b}?",
                  f"Add {a} and {b}, please.", f"Sum {a} and {b}."]
    if op == "*":
        forms += [f"Multiply {a} by {b}.", f"What is the product of {a} and {b}?"]
    if op == "-":
        forms += [f"Subtract {b} from {a}."]
    return r.choice(forms), f"{a} {op} {b} = ", "."


def call_message(name, arguments, content=""):
    return {"role": "assistant", "content": content,
            "tool_calls": [{"type": "function", "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}]}


def op_result(r, op, a, b, c):
    x = r.random()
    if x < .45:
        return str(c)
    if x < .5:
        return f"{c}.0"
    if x < .85:
        key = r.choice(["result", "result", "sum", "value", "answer", "output", "total"])
        return json.dumps({key: c}) if r.random() < .8 else json.dumps({key: c}, indent=2)
    if x < .92:
        return f"{a} {op} {b} = {c}"
    return r.choice([f"The result is {c}.", f"The sum is {c}." if op == "+" else f"The answer is {c}.", f"Result: {c}"])


def op_round(r, tools_op, arguments_of, thinks):
    op = r.choice(tools_op)
    a, b = number(r), number(r)
    if op == "*" and r.random() < .8:
        a, b = r.randint(0, 12), r.randint(0, 12)
    if op == "-":
        a, b = max(a, b), min(a, b)
    c = APPLY[op](a, b)
    told = c if r.random() < .75 else number(r)       # the tool is believed, whatever it says
    question, before, after = op_question(r, op, a, b)
    name, arguments = arguments_of(a, b, op)
    call, answer = call_message(name, arguments), {"role": "assistant", "content": f"{before}{told}{after}"}
    result = op_result(r, op, a, b, told)
    if thinks:
        call["reasoning_content"] = r.choice([f"This is a sum: {a} {op} {b}. The tool {name} can do it.", f"I need {a} {op} {b}. I call {name}."])
        answer["reasoning_content"] = r.choice([f"The tool says {told}.", f"The result of the tool is {told}."])
    return failing(r, question, call, result, answer)


def capital_round(r, arguments_of, thinks):
    country, capital, zh_country, zh_capital = r.choice(CAPITALS)
    is_zh = r.random() < .25
    if r.random() < .04:
        country, capital, is_zh = place(r, ["land", "ia", "stan", "en"]), place(r, ["burg", "ton", "vik", "a", "ville"]), False
    elif r.random() < .25:
        capital, zh_capital = r.choice(CAPITALS)[1::2]
    if is_zh:
        question = r.choice([f"{zh_country}的首都是哪个城市？", f"{zh_country}的首都是哪里？", f"{zh_country}的首都是什么？", f"请查一下{zh_country}的首都。"])
        country, capital, text = zh_country, zh_capital, f"{zh_country}的首都是{zh_capital}。"
    else:
        question = r.choice([f"What is the capital of {country}?", f"Which city is the capital of {country}?", f"Tell me the capital of {country}.", f"Capital of {country}?",
                             f"Look up the capital of {country}.", f"Use the tool to find the capital of {country}.", f"What is the capital of {country}? Use the tool.",
                             f"Find the capital of {country}.", f"Please look up the capital of {country}.", f"What's the capital of {country}?"])
        text = f"The capital of {country} is {capital}."
    name, arguments = arguments_of(country.removeprefix("the "))
    x = r.random()
    if x < .5:
        result = capital
    elif x < .85:
        key = r.choice(["capital", "capital", "result", "city", "answer", "name"])
        value = {"country": country.removeprefix("the "), key: capital} if r.random() < .3 else {key: capital}
        result = json.dumps(value, ensure_ascii=False)
    else:
        result = r.choice([text, f"It is {capital}.", f'"{capital}"', f"Capital: {capital}"])
    call, answer = call_message(name, arguments), {"role": "assistant", "content": text}
    if thinks:
        call["reasoning_content"] = r.choice([f"The question is about a capital. I call {name}.", f"I look up the capital of {country} with {name}."])
        answer["reasoning_content"] = r.choice([f"The tool says {capital}.", f"The result of the tool is {capital}."])
    return failing(r, question, call, result, answer)


def failing(r, question, call, result, answer):
    if r.random() < .025:
        result = r.choice(["Error: no answer", '{"error": "not found"}', "error", "The tool failed.", '{"error": "timeout"}', "not found", "Error: the tool is not there"])
        answer = dict(answer, content="I am sorry, the tool gave no answer.")
        if "reasoning_content" in answer:
            answer["reasoning_content"] = "The tool gave an error."
    return [{"role": "user", "content": question}, call, {"role": "tool", "content": result}, answer]


def tool_chat(r, plain_turn, length_of, limit, is_tiny=False):
    """Rounds with one list of tools. length_of counts the tokens of a chat, which stay below limit. is_tiny: the definitions have
    nothing but names."""
    IS_TINY[0] = is_tiny
    rounds, tools = [], []
    x = r.random()
    if x < .48 or x >= .84:
        t, ops, f = op_tool(r, r.choices("+-*", [18, 1, 1])[0])
        tools.append(t)
        rounds.append(("op", ops, f))
    if .42 <= x < .84:
        t, g = capital_tool(r)
        tools.append(t)
        rounds.append(("capital", "", g))
    if .84 <= x < .89:                                 # a second operation
        t, ops, f = op_tool(r, r.choice([o for o in "+-*" if o not in rounds[0][1]] or "+"))
        if ops != rounds[0][1] and len(ops) == 1 == len(rounds[0][1]):
            tools.append(t)
            rounds.append(("op", ops, f))
    if x >= .89:                                       # only tools that do not fit
        tools, rounds = [], []
    for _ in range(r.choices([0, 1, 2], [75, 21, 4])[0] if rounds else r.choice([1, 1, 1, 2])):
        tools.append(other_tool(r))
    names = [t["function"]["name"] for t in tools]
    if len(set(names)) < len(names):
        return None
    r.shuffle(tools)
    thinks = r.random() < .12
    chat = {"messages": [], "tools": tools}
    if r.random() < .45:
        chat["messages"].append({"role": "system", "content": r.choice(SYSTEMS)})
    n_rounds = r.choices([1, 2, 3, 4, 8], [30, 36, 22, 9, 3])[0] if rounds else r.randint(1, 3)
    kinds = {kind for kind, _, _ in rounds}
    ops = "".join(o for _, o, _ in rounds)
    for i in range(n_rounds):
        is_last = i == n_rounds - 1
        if rounds and r.random() < .84:
            kind, o, f = r.choice(rounds)
            more = op_round(r, o, f, thinks and is_last) if kind == "op" else capital_round(r, f, thinks and is_last)
        else:
            question, answer = plain_turn(r, kinds, ops)
            more = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        if thinks and is_last and len(more) == 4 and r.random() < .5:
            more[1].pop("reasoning_content", None)     # only the answer is thought about, or only the call
            if r.random() < .3:
                more = more[:2]
        chat["messages"] += more
        if length_of(chat) > limit:
            del chat["messages"][-len(more):]
            break
    return chat if chat["messages"] and chat["messages"][-1]["role"] == "assistant" else None


# ---- thinking ----

def think_sum(r):
    op = r.choice("++-*")
    top = r.choice([12, 12, 20, 50])
    a, b = r.randint(0, top), r.randint(0, top)
    if op == "-":
        a, b = max(a, b), min(a, b)
    if op == "*":
        a, b = r.randint(0, 10), r.randint(0, 10)
    c = APPLY[op](a, b)
    question, before, after = op_question(r, op, a, b)
    verb = OPS[op][1]
    return question, r.choice([f"This is a sum: {a} {op} {b} = {c}.", f"I calculate {a} {verb} {b}. {a} {op} {b} = {c}."]), f"{before}{c}{after}"


def think_capital(r):
    country, capital, zh_country, zh_capital = r.choice(CAPITALS)
    if r.random() < .3:
        return f"{zh_country}的首都是哪个城市？", f"问题是{zh_country}的首都。我知道是{zh_capital}。", f"{zh_country}的首都是{zh_capital}。"
    return (r.choice([f"What is the capital of {country}?", f"Which city is the capital of {country}?", f"Tell me the capital of {country}.", f"Capital of {country}?"]),
            r.choice([f"The question is about {country}. Its capital is {capital}.", f"I need the capital of {country}. It is {capital}."]),
            f"The capital of {country} is {capital}.")


def think_other(r, question, answer):
    """What a short thought about any other question says."""
    is_story, is_zh = len(answer) > (60 if any("\u4e00" <= c <= "\u9fff" for c in answer) else 160), any("\u4e00" <= c <= "\u9fff" for c in question)
    if is_story:
        return "讲一个小故事，要有朋友和好结局。" if is_zh else r.choice(
            ["A short story is wanted. I need a friend, a small trouble and a happy end.", "I think of a place, two friends and a good end."])
    if question.startswith(("Count", "An increasing")):
        return "I count one step after the other."
    return "这是一个简单的问题，我简短地回答。" if is_zh else "This is a simple question. I answer it briefly."


def think_chat(r, plain_turn, system):
    """Turns without thoughts, as the history shows them, then one with its thoughts."""
    messages = [{"role": "system", "content": system}] if system else []
    for _ in range(r.choices([0, 1, 2], [75, 17, 8])[0]):
        question, answer = plain_turn(r, set(), "")
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    x = r.random()
    if x < .4:
        question, thought, answer = think_sum(r)
    elif x < .55:
        question, thought, answer = think_capital(r)
    else:
        question, answer = plain_turn(r, set(), "")
        thought = think_other(r, question, answer)
    last = {"role": "assistant", "content": answer, "reasoning_content": thought}
    if r.random() < .08:                               # thinking that has used its budget
        last["reasoning_content"] = thought[:r.randrange(len(thought))]
        last["is_cut"] = True
    return {"messages": messages + [{"role": "user", "content": question}, last]}
