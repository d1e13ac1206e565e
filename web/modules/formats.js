/* Conversations as JSON and as Markdown, written and read. What is read is untrusted: each field is checked, and an error names
 * the one that is wrong. */
import { newChat, randomId } from "./store.js";
import { NUMBERS } from "./stream.js";

const FORMAT = "tutti-conversations", VERSION = 1;
const MAX_CHATS = 5000, MAX_MESSAGES = 20000, MAX_TITLE = 200, MAX_FILES = 16;
const FLAGS = ["cut", "stopped", "interrupted"], STATS = ["tokens", "first", "rate", "total"], OPTION_TEXTS = ["model", "system", "effort"];

/* ---- checks ---- */

function kindOf(value) {
    return value === null ? "null" : Array.isArray(value) ? "a list" : typeof value === "object" ? "an object" : `a ${typeof value}`;
}

function asText(value, where) {
    if (typeof value !== "string")
        throw new Error(`${where} is ${kindOf(value)}, expected a string`);
    return value;
}

function asList(value, where, max) {
    if (!Array.isArray(value))
        throw new Error(`${where} is ${kindOf(value)}, expected a list`);
    if (value.length > max)
        throw new Error(`${where} has ${value.length} entries, at most ${max} are read`);
    return value;
}

function asObject(value, where) {
    if (kindOf(value) !== "an object")
        throw new Error(`${where} is ${kindOf(value)}, expected an object`);
    return value;
}

const isAbsent = value => value === undefined || value === null;

function asNumber(value, where) {
    if (!Number.isFinite(value))
        throw new Error(`${where} is ${kindOf(value)}, expected a number`);
    return value;
}

/* The fields of these names that are there, each read by as(). */
function someOf(value, names, as, where) {
    return Object.fromEntries(names.filter(name => !isAbsent(value[name])).map(name => [name, as(value[name], `${where}.${name}`)]));
}

/* ---- JSON ---- */

/* all: [{chat, messages}] */
export function toJson(all) {
    const conversations = all.map(({ chat: { title, named, changed, picks, options }, messages }) => ({
        title, named, changed, picks, options,
        messages: messages.map(({ chat: _chat, at: _at, rev: _rev, busy: _busy, ...kept }) => kept) }));
    return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

function readMessage(value, where) {
    asObject(value, where);
    const { role } = value;
    if (role !== "user" && role !== "assistant")
        throw new Error(`${where}.role is ${JSON.stringify(role)?.slice(0, 40)}, expected "user" or "assistant"`);
    const message = { role, text: asText(value.text, `${where}.text`), ...someOf(value, ["reasoning", "error"], asText, where),
                      ...someOf(value, ["thought"], asNumber, where) };
    for (const name of FLAGS)
        if (value[name] === true)
            message[name] = true;
    if (!isAbsent(value.stats))
        message.stats = someOf(asObject(value.stats, `${where}.stats`), STATS, asNumber, `${where}.stats`);
    if (!isAbsent(value.files))
        message.files = asList(value.files, `${where}.files`, MAX_FILES).map((file, index) => {
            const own = `${where}.files[${index}]`, { name, text } = asObject(file, own);
            return { name: asText(name, `${own}.name`).slice(0, MAX_TITLE), text: asText(text, `${own}.text`) };
        });
    return message;
}

/* A conversation with new ids, so that importing twice makes two. */
function readChat(value, where) {
    asObject(value, where);
    const chat = { ...newChat(), title: asText(value.title ?? "", `${where}.title`).slice(0, MAX_TITLE), named: value.named === true,
                   changed: isAbsent(value.changed) ? Date.now() : asNumber(value.changed, `${where}.changed`) };
    const ids = new Map(), messages = asList(value.messages, `${where}.messages`, MAX_MESSAGES).map((old, at) => {
        const own = `${where}.messages[${at}]`, message = readMessage(old, own), id = randomId();
        if (!isAbsent(old.parent) && !ids.has(asText(old.parent, `${own}.parent`)))
            throw new Error(`${own}.parent is not the id of an earlier message`);
        ids.set(asText(old.id, `${own}.id`), id);
        return { ...message, id, chat: chat.id, at, parent: ids.get(old.parent) ?? null, rev: Math.random() };
    });
    if (!messages.length)
        throw new Error(`${where}.messages is empty`);
    if (!isAbsent(value.picks))
        for (const [parent, child] of Object.entries(asObject(value.picks, `${where}.picks`)))
            if (ids.has(child) && (parent === "" || ids.has(parent)))
                chat.picks[parent && ids.get(parent)] = ids.get(child);
    if (!isAbsent(value.options)) {
        const own = `${where}.options`;
        asObject(value.options, own);
        chat.options = { ...someOf(value.options, OPTION_TEXTS, asText, own), ...someOf(value.options, NUMBERS, asNumber, own) };
    }
    return { chat, messages };
}

/* A list of messages as one conversation: {role, text, …}, the system prompt first if there is one. */
function fromList(title, list, options = {}) {
    const system = list[0]?.role === "system" ? list[0].text : null, turns = system === null ? list : list.slice(1);
    const firstLine = turns[0]?.text.trim().split("\n")[0].slice(0, 48) ?? "";
    const messages = turns.map((message, at) => ({ ...message, id: String(at), parent: at ? String(at - 1) : null }));
    return readChat({ title: title || firstLine, named: Boolean(title), options: { ...options, system }, messages }, "the conversation");
}

/* The text of a message of OpenAI's API. */
function contentText(content, where) {
    if (!Array.isArray(content))
        return asText(content, where);
    return content.map((part, index) => asText(part?.text, `${where}[${index}].text`)).join("\n");
}

/* The body of a request to /v1/chat/completions, as tutti chat saves conversations. Its model may be another server's. */
function fromRequest(value) {
    const list = asList(value.messages, "messages", MAX_MESSAGES).map((message, index) => {
        const { role, content, reasoning_content: reasoning } = asObject(message, `messages[${index}]`);
        return { role, text: contentText(content, `messages[${index}].content`), reasoning };
    });
    const numbers = Object.fromEntries(NUMBERS.map(name => [name, value[name]]));
    return fromList("", list, { ...numbers, effort: value.reasoning_effort });
}

function fromJson(text) {
    let value;
    try {
        value = JSON.parse(text);
    } catch (error) {
        throw new Error(`the JSON is broken: ${error.message}`);
    }
    asObject(value, "the file");
    if (Array.isArray(value.messages))
        return [fromRequest(value)];
    if (value.format !== FORMAT)
        throw new Error(`"format" is not "${FORMAT}", and there are no "messages"`);
    if (value.version !== VERSION)
        throw new Error(`"version" is ${JSON.stringify(value.version)?.slice(0, 40)}, expected ${VERSION}`);
    return asList(value.conversations, "conversations", MAX_CHATS).map((chat, index) => readChat(chat, `conversations[${index}]`));
}

/* ---- Markdown ---- */

const MARK = /^<!-- tutti: (system|user|assistant|reasoning|file)(?: (.{0,400}))? -->$/;
const HEADS = { system: "## System prompt", user: "## User", assistant: "## Assistant", reasoning: "### Reasoning" };

/* A line of a text that looks like a mark gets a backslash. */
const escapeMarks = text => text.replace(/^<!-- (\\*)tutti:/gm, "<!-- \\$1tutti:");
const unescapeMarks = text => text.replace(/^<!-- \\(\\*)tutti:/gm, "<!-- $1tutti:");

function section(kind, text, name) {
    return name === undefined ? `<!-- tutti: ${kind} -->\n${HEADS[kind]}\n\n${escapeMarks(text)}\n`
                              : `<!-- tutti: file ${JSON.stringify(name)} -->\n${escapeMarks(text)}\n`;
}

/* The messages that are shown, as a document. */
export function toMarkdown(chat, path) {
    const parts = [`# ${chat.title.replace(/\s+/g, " ")}\n`];
    if (chat.options?.system)
        parts.push(section("system", chat.options.system));
    for (const { role, text, reasoning, files } of path) {
        parts.push(section(role, text));
        for (const file of files ?? [])
            parts.push(section("file", file.text, file.name));
        if (reasoning)
            parts.push(section("reasoning", reasoning));
    }
    return parts.join("\n");
}

function fileName(json) {
    try {
        return asText(JSON.parse(json), "it");
    } catch {
        throw new Error(`the name of a file is ${json ?? "absent"}, expected a JSON string`);
    }
}

function fromMarkdown(text) {
    const sections = [], lines = text.replace(/\r\n?/g, "\n").split("\n");
    const title = /^# (.*)$/.exec(lines[0])?.[1].slice(0, MAX_TITLE) ?? "";
    for (const line of lines) {
        const mark = MARK.exec(line);
        if (mark)
            sections.push({ kind: mark[1], name: mark[2], lines: [] });
        else
            sections.at(-1)?.lines.push(line);
    }
    if (!sections.length)
        throw new Error("there are no marks of messages (<!-- tutti: user -->): it is not an export of this page");
    const list = [];
    for (const { kind, name, lines: own } of sections) {
        const body = unescapeMarks((own[0] === HEADS[kind] ? own.slice(2) : own).join("\n")).replace(/\n{1,2}$/, "");
        if ((kind === "file" || kind === "reasoning") && !list.length)
            throw new Error(`there is no message before the mark of ${kind === "file" ? "a file" : "reasoning"}`);
        if (kind === "file")
            (list.at(-1).files ??= []).push({ name: fileName(name), text: body });
        else if (kind === "reasoning")
            list.at(-1).reasoning = body;
        else
            list.push({ role: kind, text: body });
    }
    return [fromList(title, list)];
}

/* Conversations of a file: [{chat, messages}]. Throws an error that says what is wrong with it. */
export function fromFile(text) {
    return /^\s*[{[]/.test(text) ? fromJson(text) : fromMarkdown(text);
}
