/* The client of the server: OpenAI's API, with streaming. */
import { settings } from "./store.js";
import { textOf } from "./view.js";

/* kind: "http" (the server answered with an error) or "lost" (the connection failed). */
export class CallError extends Error {
    constructor(kind, status, message) {
        super(message);
        this.kind = kind;
        this.status = status;
    }
}

function headers() {
    const all = { "Content-Type": "application/json" };
    if (settings.key)
        all.Authorization = "Bearer " + settings.key;
    return all;
}

async function call(path, options) {
    let reply;
    try {
        reply = await fetch(path, { headers: headers(), ...options });
    } catch (error) {
        throw error.name === "AbortError" ? error : new CallError("lost", 0, error.message);
    }
    if (reply.ok)
        return reply;
    let message = reply.statusText;
    try {
        message = (await reply.json()).error.message;
    } catch {
        /* not JSON, such as a proxy's page: use the status line */
    }
    throw new CallError("http", reply.status, message);
}

/* The name of the served model. */
export async function modelName() {
    const reply = await call("/v1/models");
    return (await reply.json()).data[0].id;
}

function bodyOf(messages) {
    const body = { messages: [], stream: true, stream_options: { include_usage: true } };
    if (settings.system)
        body.messages.push({ role: "system", content: settings.system });
    for (const message of messages)
        body.messages.push({ role: message.role, content: textOf(message) });
    for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"])
        if (Number.isFinite(settings[name]))
            body[name] = settings[name];
    return JSON.stringify(body);
}

/* Yields the data of each server-sent event. */
async function* events(reply) {
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
        let piece;
        try {
            piece = await reader.read();
        } catch (error) {
            throw error.name === "AbortError" ? error : new CallError("lost", 0, error.message);
        }
        if (piece.done)
            return;
        rest += piece.value;
        const parts = rest.split("\n\n");
        rest = parts.pop();
        for (const part of parts)
            if (part.startsWith("data: "))
                yield part.slice(6);
    }
}

/* Requests an answer to messages. onText(text) for every piece; resolves to {reason, usage}. */
export async function answer(messages, signal, onText) {
    const reply = await call("/v1/chat/completions", { method: "POST", body: bodyOf(messages), signal });
    let reason = null, usage = null;
    for await (const data of events(reply)) {
        if (data === "[DONE]")
            return { reason, usage };
        const chunk = JSON.parse(data);
        if (chunk.error)
            throw new CallError("http", 500, chunk.error.message);
        usage = chunk.usage ?? usage;
        const choice = chunk.choices[0];
        if (choice?.delta.content)
            onText(choice.delta.content);
        reason = choice?.finish_reason ?? reason;
    }
    throw new CallError("lost", 0, "the stream ended early");
}
