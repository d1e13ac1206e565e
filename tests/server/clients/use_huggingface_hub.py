import json
import sys

from huggingface_hub import InferenceClient

URL, QUESTION = sys.argv[1:]
chat = InferenceClient(base_url=URL + "/v1", api_key="none")
asked = {"messages": [{"role": "user", "content": QUESTION}], "model": "demo", "temperature": 0, "max_tokens": 100}
answers = [chat.chat_completion(**asked).choices[0].message.content,
           "".join(chunk.choices[0].delta.content or "" for chunk in chat.chat_completion(stream=True, **asked))]
text = InferenceClient(model=URL)  # Text Generation Inference
whole = text.text_generation("Mia is a", max_new_tokens=8, return_full_text=False, details=True)
streamed = "".join(text.text_generation("Mia is a", max_new_tokens=8, stream=True))
assert whole.generated_text == streamed and whole.details.generated_tokens == 8, (whole, streamed)
print(json.dumps(answers))
