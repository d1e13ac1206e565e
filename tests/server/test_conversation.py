"""A conversation's next turn reads what is new, and nothing that was read or written before."""
import re

PAGE = 16  # tokens; what does not fill a page is read again


def test_five_turns_read_only_their_new_tokens(start):
    server = start()
    questions = ["Who are you?", "What is the capital of France?", "What is the capital of Italy?", "Who made you?",
                 "What is two plus three?"]
    messages, known, read, cached_sum, prompt_sum = [], 0, [], 0, 0
    for question in questions:
        messages.append({"role": "user", "content": question})
        answer = server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 40}).json()
        usage = answer["usage"]
        cached, prompt = usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]
        # The last token of an answer ends it and was never computed, nor is the page that it stands in complete.
        assert known - PAGE - 2 <= cached <= known, (question, known, usage)
        read.append(prompt - cached)
        known = prompt + usage["completion_tokens"]
        cached_sum, prompt_sum = cached_sum + cached, prompt_sum + prompt
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    assert max(read[1:]) <= 40 + PAGE and prompt_sum > 4 * read[-1]
    figures = server.metrics()
    assert figures["tutti_prompt_tokens_total"] == prompt_sum
    assert figures["tutti_prefix_cache_hit_tokens_total"] == cached_sum
    line, = [text for text in server.wait_for_log(answer["id"]).splitlines() if answer["id"] in text]
    assert int(re.search(r"cached=(\d+)", line).group(1)) == cached


def test_streams_tell_it_too(start):
    server = start()
    prompt = "Tell me a story about a fox named Mia. " * 4
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4, "stream": True,
            "stream_options": {"include_usage": True}}
    found = []
    for _ in range(2):
        text = server.post("/v1/chat/completions", body).text
        found.append(int(re.search(r'"cached_tokens":(\d+)', text).group(1)))
    assert found[0] == 0 and found[1] >= 2 * PAGE
