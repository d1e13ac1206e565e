/* The client of the server: OpenAI's API, with streaming. */
import { settings } from "./store.js";
import { seconds, word } from "./words.js";

export const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const TOO_FULL = [429, 503];

/* kind: "http" (the server answered with an error), "lost" (the connection failed) or "cut" (the stream ended early). code is the
 * server's; wait: the seconds of Retry-After, or 0. */
export class CallError extends Error {
    constructor(kind, message, { status = 0, code = null, wait = 0 } = {}) {
        super(message);
        Object.assign(this, { kind, status, code, wait });
    }
}

/* What happened, and what to do about it. The server's own sentence says which limit or field it was about. */
export function errorText(error) {
    const told = /[.!?。]$/.test(error.message) ? error.message : error.message + ".";
    if (error.kind === "lost")
        return word("lost");
    if (error.kind === "cut")
        return word("cutOff");
    if (error.status === 401)
        return word(settings.key ? "wrongKey" : "wantsKey");
    if (TOO_FULL.includes(error.status))
        return [word(error.status === 429 ? "refused" : "notReady"), told, error.wait && seconds("retryIn", error.wait)]
            .filter(Boolean).join(" ");
    if (error.code === "context_length_exceeded")
        return `${word("tooLong")} ${told}`;
    return error.status ? `${word("failed")} ${told}` : told;
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
        throw error.name === "AbortError" ? error : new CallError("lost", error.message);
    }
    if (reply.ok)
        return reply;
    let told = {};
    try {
        told = (await reply.json()).error;
    } catch {
        /* not JSON, such as a proxy's page: use the status line */
    }
    throw new CallError("http", String(told?.message ?? `${reply.status} ${reply.statusText}`),
                        { status: reply.status, code: told?.code, wait: Number(reply.headers.get("Retry-After")) || 0 });
}

/* The served models and adapters that can chat, or all if none can: [{id, context, device, isLoaded}], context in tokens or null;
 * device as in /v1/models, or null. */
export async function readModels() {
    const reply = await call("/v1/models"), { data } = await reply.json();
    const chatting = data.filter(({ capabilities }) => capabilities?.includes("chat") ?? true);
    return (chatting.length ? chatting : data).map(({ id, max_model_len: context, device, status }) =>
        ({ id, context: context ?? null, device: device ?? null, isLoaded: (status ?? "loaded") === "loaded" }));
}

/* A question as the model gets it: its files first, each in a fence that is longer than any in it. */
export function contentOf(message) {
    const files = (message.files ?? []).map(({ name, text }) => {
        const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map(fence => fence.length));
        const fence = "`".repeat(longest + 1);
        return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}\n\n`;
    });
    return files.join("") + message.text;
}

function bodyOf(options, messages) {
    const body = { messages: [], stream: true, stream_options: { include_usage: true } };
    if (options.model)
        body.model = options.model;
    if (options.system)
        body.messages.push({ role: "system", content: options.system });
    for (const message of messages) {
        const { role, reasoning } = message;
        body.messages.push({ role, content: contentOf(message), ...(reasoning ? { reasoning_content: reasoning } : {}) });
    }
    for (const name of NUMBERS)
        if (Number.isFinite(options[name]))
            body[name] = options[name];
    if (options.effort)
        body.reasoning_effort = options.effort;
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
            throw error.name === "AbortError" ? error : new CallError("lost", error.message);
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

/* Requests an answer to messages. onText(text, reasoning) for every piece; resolves to {reason, usage}. */
export async function answer(options, messages, signal, onText) {
    const reply = await call("/v1/chat/completions", { method: "POST", body: bodyOf(options, messages), signal });
    let reason = null, usage = null;
    for await (const data of events(reply)) {
        if (data === "[DONE]")
            return { reason, usage };
        const chunk = JSON.parse(data);
        if (chunk.error)
            throw new CallError("http", chunk.error.message, { status: 500, code: chunk.error.code });
        usage = chunk.usage ?? usage;
        const choice = chunk.choices[0], delta = choice?.delta ?? {};
        if (delta.content || delta.reasoning_content)
            onText(delta.content ?? "", delta.reasoning_content ?? "");
        reason = choice?.finish_reason ?? reason;
    }
    throw new CallError("cut", "the stream ended early");
}
