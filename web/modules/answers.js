/* Questions and answers: sends, streams, stores, edits, deletes. */
import { element } from "./element.js";
import { showList } from "./list.js";
import { findModels } from "./models.js";
import { openSettings } from "./settings.js";
import { choose, itemOf, show, toEnd } from "./screen.js";
import { addChat, app, forget, isAnswering, keep, loadChats, loadMessages, optionsOf, runs, say, unkept } from "./state.js";
import { append, changed, newMessage, page, removeMessages, restore, tell, titleOf, update, updateChat, updateUnchanged } from "./store.js";
import { answer, errorText } from "./stream.js";
import { arrange, pick, subtreeOf, variantsOf } from "./tree.js";
import { offerUndo } from "./undo.js";
import { fillAnswer, fillQuestion } from "./view.js";
import { word } from "./words.js";

const SAVE_MS = 250; /* interval for saving an answer while it is streamed */
const DRAW_MS = 50; /* interval for drawing it; longer if drawing takes long */
const RATE_MS = 10; /* pieces that came within less time tell no rate: they were read at once */
const REPLY_MS = 400; /* time limit for the page that streams an answer to reply to {who} */
const LOOK_MS = 5000;

const seen = new Map(); /* message id -> when the page that streams it last replied */
const looking = new Set(); /* conversations whose streaming pages are being looked for */

/* ---- answers of other pages ---- */

export function noteSeen(message) {
    seen.set(message.id, performance.now());
}

const lockOf = message => "tutti.answer." + message.id;

/* Whether the page that streams this answer is gone: it no longer holds the lock; without locks (they need https or localhost), it
 * does not reply. */
async function isAbandoned(message) {
    if (navigator.locks)
        return navigator.locks.request(lockOf(message), { ifAvailable: true }, lock => lock !== null);
    const asked = performance.now();
    tell({ who: message.id });
    await new Promise(resolve => setTimeout(resolve, REPLY_MS));
    return !(seen.get(message.id) >= asked);
}

/* Marks answers as interrupted if the page that streamed them was closed or reloaded. */
export async function lookForWriters(chat) {
    const theirs = chat.messages.filter(message => message.busy && message.busy.page !== page);
    if (!theirs.length || looking.has(chat))
        return;
    looking.add(chat);
    for (const message of theirs)
        if (await isAbandoned(message))
            await keep(endInterrupted(message));
    await loadMessages(chat);
    looking.delete(chat);
    if (chat !== app.current)
        return;
    show();
    if (chat.messages.some(message => message.busy))
        setTimeout(() => chat === app.current && lookForWriters(chat), LOOK_MS);
}

function endInterrupted(message) {
    const ended = { ...message, interrupted: true };
    delete ended.busy;
    changed(ended);
    return updateUnchanged(ended, message.rev);
}

/* ---- streaming ---- */

/* Saves an answer while it is streamed. save() resolves when the reply is saved in its state at the call, or a later one. */
function saver(run) {
    let saving = null, isDue = false, last = 0;
    const saveAll = async () => {
        while (isDue) {
            isDue = false;
            changed(run.reply);
            try {
                if (!await update(run.reply))
                    run.controller.abort(); /* deleted by another page */
            } catch {
                run.isFull = true;
            }
        }
        saving = null;
    };
    const save = () => {
        isDue = true;
        return saving ??= saveAll();
    };
    const saveSometimes = now => {
        if (now - last < SAVE_MS)
            return;
        last = now;
        save();
    };
    return { save, saveSometimes };
}

/* Holds the answer's lock until work is done. */
function withLock(reply, work) {
    return navigator.locks ? navigator.locks.request(lockOf(reply), work) : work();
}

/* Ends an answer that failed. Without text it is deleted if an earlier variant can be shown instead, which then has the error. */
async function endFailed(chat, reply, error) {
    const earlier = variantsOf(chat, reply).filter(other => other !== reply && other.text).at(-1);
    const isEmpty = !reply.text && !reply.reasoning, shown = earlier ?? reply;
    if (error.name === "AbortError")
        reply.stopped = true;
    else
        shown.error = errorText(error);
    reply.interrupted = !isEmpty && error.name !== "AbortError";
    if (!earlier || !isEmpty && error.name === "AbortError")
        return;
    changed(earlier);
    pick(chat, earlier);
    await keep(update(earlier));
    if (isEmpty) {
        chat.messages = chat.messages.filter(other => other !== reply);
        arrange(chat);
        await keep(removeMessages(chat, [reply]));
    } else {
        await keep(updateChat(chat));
    }
}

/* The first model answers if none was chosen. */
function withModel(options) {
    return { ...options, model: options.model ?? app.models[0]?.id };
}

/* Streams the reply. store() first stores what must exist before. */
async function run(chat, reply, store) {
    const controller = new AbortController(), own = { chat, controller, reply };
    const { save, saveSometimes } = saver(own), start = performance.now();
    let first = 0, firstText = 0, pieces = 0, drawn = 0, drawing = 0, timer = 0;
    runs.set(chat.id, own);
    unkept.add(chat);
    addChat(chat);
    app.sticks = true;
    if (await keep(store())) {
        unkept.delete(chat);
        await loadMessages(chat);
    }
    await loadChats();
    if (chat === app.current)
        show();
    else
        showList();
    say(word("answering"));
    const draw = () => {
        const item = chat === app.current ? itemOf(reply) : null, now = performance.now();
        timer = 0;
        if (!item || !reply.busy)
            return;
        fillAnswer(item, reply);
        if (app.sticks)
            toEnd();
        drawn = performance.now();
        drawing = drawn - now;
    };
    const drawSoon = () => { /* a long answer is drawn less often */
        timer ||= setTimeout(draw, Math.max(0, drawn + Math.max(DRAW_MS, 4 * drawing) - performance.now()));
    };
    const measure = (tokens, now) => {
        const ms = now - first, rate = ms >= RATE_MS ? (tokens - 1) * 1000 / ms : tokens * 1000 / (now - start);
        reply.stats = { ...reply.stats, tokens, first: (first - start) / 1000, rate: tokens > 1 ? rate : 0 };
    };
    addEventListener("pagehide", save);
    try {
        const history = chat.path.slice(0, chat.path.indexOf(reply));
        const { reason, usage } = await answer(withModel(optionsOf(chat)), history, controller.signal, (text, reasoning) => {
            const now = performance.now();
            first ||= now;
            if (reasoning)
                reply.reasoning = (reply.reasoning ?? "") + reasoning;
            if (text && reply.reasoning && !firstText)
                reply.thought = (now - first) / 1000;
            firstText ||= text ? now : 0;
            reply.text += text;
            measure(++pieces, now);
            drawSoon();
            saveSometimes(now);
        });
        reply.cut = reason === "length";
        if (usage) {
            measure(usage.completion_tokens, performance.now());
            reply.stats.total = usage.total_tokens;
        }
    } catch (error) {
        await endFailed(chat, reply, error);
        if (error.status === 401)
            openSettings(errorText(error));
    }
    removeEventListener("pagehide", save);
    delete reply.busy;
    runs.delete(chat.id);
    changed(reply);
    if (chat.messages.includes(reply))
        await save();
    if (own.isFull || unkept.has(chat)) {
        reply.error ??= word("full");
        changed(reply);
    }
    say(chat.path.at(-1)?.error ?? word("answered"));
    if (chat === app.current)
        show();
    else
        showList();
    const { model } = withModel(optionsOf(chat));
    if (app.models.some(({ id, isLoaded }) => id === model && !isLoaded))
        findModels().then(show); /* loaded for this answer, it may tell another length of its context */
}

/* Adds messages below parent, the last of which is an answer to be streamed. */
function start(chat, added, store) {
    const reply = added.at(-1);
    reply.busy = { page }; /* before the lock is granted: until then something else may show the messages */
    chat.messages = chat.messages.concat(added);
    pick(chat, reply);
    withLock(reply, () => run(chat, reply, store));
}

/* edited: the question that this one is a variant of. */
export function ask(text, files = [], edited = null) {
    const chat = app.current, last = chat.path.at(-1);
    text = text.trim();
    if (!text && !files.length || isAnswering(chat))
        return false;
    const variantOf = edited ?? (last?.role === "user" ? last : null); /* a question whose answer was deleted */
    const parent = variantOf ? chat.messages.find(other => other.id === variantOf.parent) : last;
    if (!chat.named && !parent)
        chat.title = titleOf(text || files[0].name);
    chat.options ??= optionsOf(chat);
    const question = newMessage(chat, parent, "user", { text, ...(files.length ? { files } : {}) });
    const added = [question, newMessage(chat, question, "assistant")];
    start(chat, added, () => append(chat, added));
    return true;
}

/* Another variant of an answer. One without text is replaced. */
export async function askAgain(chat, reply) {
    const isEmpty = !reply.text && !reply.reasoning, added = [newMessage(chat, { id: reply.parent }, "assistant")];
    if (reply.error) {
        delete reply.error;
        changed(reply);
    }
    if (isEmpty)
        chat.messages = chat.messages.filter(other => other !== reply);
    start(chat, added, async () => {
        await append(chat, added);
        await (isEmpty ? removeMessages(chat, [reply]) : update(reply));
    });
}

export async function showVariant(chat, variant) {
    app.sticks = false;
    pick(chat, variant);
    show();
    await keep(updateChat(chat));
}

/* ---- deleting ---- */

/* Deletes a message and what follows it. */
export async function deleteFrom(chat, message) {
    const removed = subtreeOf(chat, message);
    chat.messages = chat.messages.filter(other => !removed.includes(other));
    arrange(chat);
    if (!chat.messages.length)
        forget(chat);
    show();
    offerUndo(word("deletedMessages")(removed.length), () => bringBack(chat, removed, message));
    await keep(removeMessages(chat, removed));
}

/* Undoes a deletion, in the storage and in the list. shown: the message to show again, if it has variants. */
export async function bringBack(chat, removed, shown = null) {
    addChat(chat);
    chat.messages = chat.messages.concat(removed.filter(message => !chat.messages.includes(message)));
    arrange(chat);
    if (shown)
        pick(chat, shown);
    if (!await keep(restore([{ chat, messages: removed }])))
        unkept.add(chat);
    await loadChats();
    await choose(chat);
}

/* ---- editing ---- */

/* Enter sends; not while an input method is still composing characters. */
export function isSend(event) {
    return event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
}

export function grow(area) {
    area.style.height = "auto";
    area.style.height = Math.min(area.scrollHeight, innerHeight * 0.4) + "px";
}

export function editMessage(chat, message) {
    const item = itemOf(message), body = item.querySelector(".body");
    const area = element("textarea", { value: message.text });
    const save = element("button", { type: "button", className: "primary", textContent: word("save") });
    const cancel = element("button", { type: "button", className: "plain", textContent: word("cancel") });
    const end = () => {
        item.classList.remove("editing");
        fillQuestion(body, message);
        item.querySelector(".edit").focus();
    };
    const send = () => {
        if (!ask(area.value, message.files, message))
            return;
        end();
        document.getElementById("question").focus();
    };
    area.setAttribute("aria-label", word("edit"));
    area.addEventListener("input", () => grow(area));
    area.addEventListener("keydown", event => {
        if (event.key === "Escape") {
            event.stopPropagation();
            end();
        } else if (isSend(event)) {
            event.preventDefault();
            send();
        }
    });
    save.addEventListener("click", send);
    cancel.addEventListener("click", end);
    item.classList.add("editing");
    body.replaceChildren(area, element("div", { className: "edit-foot" }, cancel, save));
    grow(area);
    area.focus();
}
