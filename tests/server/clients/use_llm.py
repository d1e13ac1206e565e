import json
import os
import sys
import tempfile

URL, QUESTION = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "extra-openai-models.yaml"), "w", encoding="ascii") as file:
        file.write(f"- model_id: demo\n  model_name: demo\n  api_base: {URL}/v1\n  supports_schema: true\n")
    os.environ["LLM_USER_PATH"] = folder
    import llm  # reads the folder's name

    model = llm.get_model("demo")
    model.key = "none"
    schema = {"type": "object", "properties": {"city": {"const": "Paris"}}, "required": ["city"], "additionalProperties": False}
    for stream in (False, True):
        assert json.loads(model.prompt(QUESTION, schema=schema, stream=stream, temperature=0).text()) == {"city": "Paris"}
    print(json.dumps([model.prompt(QUESTION, stream=False, temperature=0).text(), "".join(model.prompt(QUESTION, temperature=0))]))
