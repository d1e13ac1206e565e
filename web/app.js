/* The chat page: conversations, the input field, streaming answers. */
import { append, changed, cut, followSettings, newChat, newMessage, onTold, page, readChats, readMessages, removeChat,
         saveSettings, settings, takeOver, tell, titleOf, update, updateChat, updateUnchanged } from "./store.js";
import { answer, modelName } from "./stream.js";
import { element, fillAnswer, iconButton, messageView } from "./view.js";
import { fillWords, word } from "./words.js";

const FIRST_VIEWS = 30, MORE_VIEWS = 20; /* messages rendered at once; then per idle callback */
const KEPT_VIEWS = 4; /* conversations whose elements are cached for when they are selected again */
const SAVE_MS = 250; /* interval for saving an answer while it is streamed */
const REPLY_MS = 400; /* time limit for the page that streams an answer to reply to {who} */
const LOOK_MS = 5000;

const $ = id => document.getElementById(id);
const runs = new Map(); /* conversation id -> {chat, controller, reply}: answers that this page is streaming */
/* conversation id -> {items, first}, used last at the end. items: message id -> {item, key}; first: index of the first message that is
 * drawn; the ones before it follow. */
const views = new Map();
const seen = new Map(); /* message id -> when the page that streams it last replied */
const objects = new Map(); /* conversation id -> its only object in this page */
const unkept = new Set(); /* conversations whose last messages are not stored (yet) */
const looking = new Set(); /* conversations whose streaming pages are being looked for */
let chats = []; /* in list order; with messages if they were loaded: {…, messages} */
let current = emptyChat();
let sticks = true; /* the view scrolls with the end of the conversation */

function emptyChat() {
    const chat = { ...newChat(), messages: [] };
    objects.set(chat.id, chat);
    return chat;
}

/* ---- storage, and other pages ---- */

/* False: it could not be stored, and the page shows a warning. */
async function keep(writing) {
    try {
        await writing;
        return true;
    } catch {
        $("status").textContent = word("full");
        return false;
    }
}

/* If the storage is forbidden, the data stays in memory. */
async function loadChats() {
    let all;
    try {
        all = await readChats();
    } catch {
        return;
    }
    const wasKept = chats.includes(current) && !unkept.has(current);
    for (const chat of all)
        objects.set(chat.id, Object.assign(objects.get(chat.id) ?? {}, chat));
    chats = all.map(chat => objects.get(chat.id));
    chats.unshift(...[...unkept].filter(chat => !chats.includes(chat)));
    for (const run of runs.values())
        if (!chats.includes(run.chat))
            run.controller.abort(); /* deleted by another page */
    if (wasKept && !chats.includes(current)) {
        current = emptyChat();
        show();
    }
}

async function loadMessages(chat) {
    chat.messages ??= [];
    if (unkept.has(chat))
        return;
    let all;
    try {
        all = await readMessages(chat);
    } catch {
        return;
    }
    const known = new Map(chat.messages.map(message => [message.id, message]));
    const own = runs.get(chat.id)?.reply;
    chat.messages = all.map(message => {
        const old = known.get(message.id);
        return message.id === own?.id ? own : old?.rev === message.rev ? old : message;
    });
}

function isAnswering(chat) {
    return runs.has(chat.id) || chat.messages.some(message => message.busy);
}

/* Marks answers as interrupted if the page that streamed them was closed or reloaded: it does not reply. */
async function lookForWriters(chat) {
    const asked = performance.now(), theirs = chat.messages.filter(message => message.busy && message.busy.page !== page);
    if (!theirs.length || looking.has(chat))
        return;
    looking.add(chat);
    for (const message of theirs)
        tell({ who: message.id });
    await new Promise(resolve => setTimeout(resolve, REPLY_MS));
    for (const message of theirs)
        if (!(seen.get(message.id) >= asked))
            await keep(endInterrupted(message));
    await loadMessages(chat);
    looking.delete(chat);
    if (chat !== current)
        return;
    show();
    if (chat.messages.some(message => message.busy))
        setTimeout(() => chat === current && lookForWriters(chat), LOOK_MS);
}

function endInterrupted(message) {
    const ended = structuredClone(message), { version } = ended.busy;
    delete ended.busy;
    if (version !== null)
        ended.versions[version].interrupted = true;
    else if (!ended.versions.length)
        ended.shown = ended.versions.push({ text: "", interrupted: true }) - 1;
    changed(ended);
    return updateUnchanged(ended, message.rev);
}

onTold(async note => {
    if (note.message) {
        const chat = objects.get(note.message.chat);
        const at = chat?.messages?.findIndex(message => message.id === note.message.id) ?? -1;
        seen.set(note.message.id, performance.now());
        if (at < 0 || runs.get(chat.id)?.reply.id === note.message.id)
            return;
        chat.messages[at] = note.message;
        if (chat === current)
            show();
    } else if (note.chat) {
        await loadChats();
        if (note.chat === current.id)
            await loadMessages(current);
        show();
        lookForWriters(current);
    } else if (note.stop) {
        runs.get(note.stop)?.controller.abort();
    } else if (note.who) {
        for (const run of runs.values())
            if (run.reply.id === note.who)
                tell({ message: run.reply });
    }
});

/* ---- rendering ---- */

function showList() {
    $("chat-list").replaceChildren(...chats.map(chat => {
        const open = element("button", { type: "button", className: "open", textContent: chat.title || word("untitled") });
        open.addEventListener("click", () => choose(chat));
        if (chat === current)
            open.setAttribute("aria-current", "true");
        const remove = iconButton("remove", word("removeChat"), () => {
            if (!remove.classList.contains("sure")) {
                remove.classList.add("sure");
                remove.title = word("removeSure");
                remove.setAttribute("aria-label", word("removeSure"));
                setTimeout(showList, 3000);
                return;
            }
            deleteChat(chat);
        });
        const rename = iconButton("edit", word("rename"), () => renameChat(chat, item));
        const item = element("li", { className: runs.has(chat.id) ? "running" : "" }, open, rename, remove);
        return item;
    }));
}

async function deleteChat(chat) {
    runs.get(chat.id)?.controller.abort();
    forget(chat);
    show();
    await keep(removeChat(chat));
}

function forget(chat) {
    chats = chats.filter(other => other !== chat);
    unkept.delete(chat);
    objects.delete(chat.id);
    views.delete(chat.id);
    if (chat === current)
        current = emptyChat();
}

function renameChat(chat, item) {
    const input = element("input", { value: chat.title, maxLength: 100 });
    input.setAttribute("aria-label", word("rename"));
    let done = false;
    const finish = keeps => {
        if (done)
            return;
        done = true;
        if (keeps && input.value.trim()) {
            chat.title = input.value.trim();
            chat.named = true;
            keep(updateChat(chat));
        }
        show();
    };
    input.addEventListener("keydown", event => {
        if (event.key === "Enter" || event.key === "Escape") {
            event.stopPropagation();
            finish(event.key === "Enter");
        }
    });
    input.addEventListener("blur", () => finish(true));
    item.replaceChildren(input);
    input.select();
}

/* The element of a message of the current conversation: the existing one, unless the message has changed. */
function viewOf(message, index) {
    const { items } = views.get(current.id), known = items.get(message.id);
    const isLast = index === current.messages.length - 1, key = `${message.rev} ${isLast}`;
    if (known?.key === key)
        return known.item;
    const chat = current, acts = {};
    const ifIdle = act => (...values) => {
        if (!isAnswering(chat))
            act(...values);
    };
    acts.remove = ifIdle(() => deleteFrom(chat, message));
    if (message.role === "user")
        acts.edit = ifIdle(() => editMessage(message));
    else
        acts.show = ifIdle(version => showVersion(chat, message, version));
    if (message.role === "assistant" && isLast)
        acts.again = ifIdle(() => askAgain(chat, message));
    const item = messageView(message, acts);
    known?.item.replaceWith(item);
    items.set(message.id, { item, key });
    return item;
}

/* Puts the elements of all messages from the first rendered one on in order; elements already in place are not touched. */
function placeMessages() {
    const list = $("messages"), { messages } = current;
    let at = list.firstChild;
    for (let index = views.get(current.id).first; index < messages.length; index++) {
        const item = viewOf(messages[index], index);
        if (at && at.parentNode !== list)
            at = item; /* which has replaced it */
        if (item !== at)
            list.insertBefore(item, at);
        else
            at = at.nextSibling;
    }
    while (at) {
        const next = at.nextSibling;
        at.remove();
        at = next;
    }
}

function whenIdle(act) {
    if (globalThis.requestIdleCallback)
        requestIdleCallback(act, { timeout: 100 }); /* at the latest, on a busy machine */
    else
        setTimeout(act, 20);
}

/* Renders messages before the first one, and keeps the scroll position. */
function drawMore(chat) {
    const own = views.get(chat.id), box = $("scroll"), fromEnd = box.scrollHeight - box.scrollTop;
    if (chat !== current || own.first === 0)
        return;
    own.first = Math.max(0, own.first - MORE_VIEWS);
    placeMessages();
    box.scrollTop = box.scrollHeight - fromEnd;
    whenIdle(() => drawMore(chat));
}

function showState() {
    const busy = isAnswering(current);
    $("send").hidden = busy;
    $("stop").hidden = !busy;
    $("messages").classList.toggle("answering", busy);
    $("title").textContent = current.title || word("untitled");
    document.title = current.title ? current.title + " · tutti" : "tutti";
}

function show() {
    const n = current.messages.length, recent = Math.max(0, n - FIRST_VIEWS), chat = current;
    const own = views.get(chat.id) ?? { items: new Map(), first: recent };
    own.first = Math.min(own.first, recent);
    views.delete(chat.id);
    views.set(chat.id, own); /* used last */
    for (const id of views.keys())
        if (views.size > KEPT_VIEWS)
            views.delete(id);
    if ($("messages").dataset.chat !== chat.id) {
        $("messages").dataset.chat = chat.id;
        $("messages").replaceChildren();
        whenIdle(() => drawMore(chat));
    }
    $("welcome").hidden = n > 0;
    placeMessages();
    showList();
    showState();
    if (sticks)
        toEnd();
}

function toEnd() {
    $("scroll").scrollTop = $("scroll").scrollHeight;
}

async function choose(chat) {
    current = chat;
    sticks = true;
    openSide(false);
    if (chats.includes(chat))
        await loadMessages(chat);
    if (chat !== current)
        return;
    show();
    if (matchMedia("(hover: hover)").matches)
        $("question").focus();
    lookForWriters(chat);
}

function openSide(open) {
    document.body.classList.toggle("side-open", open);
    $("shade").hidden = !open;
    if (open)
        $("close-side").focus();
}

/* ---- answers ---- */

function errorText(error) {
    if (error.kind === "lost")
        return word("lost");
    if (error.status === 429)
        return word("busy");
    if (error.status === 401)
        return settings.key ? word("wrongKey") : word("wantsKey");
    return error.message;
}

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

/* Streams a version of the reply, which is the last message of the conversation. store() first stores what must exist before.
 * The version shown before stays until the first token, and is shown again if the connection fails. */
async function run(chat, reply, store) {
    const before = reply.shown, controller = new AbortController(), own = { chat, controller, reply };
    const { save, saveSometimes } = saver(own), start = performance.now();
    let version = null, first = 0, pieces = 0, drawn = 0, drawing = 0;
    reply.busy = { page, version: null };
    delete reply.error;
    changed(reply);
    runs.set(chat.id, own);
    unkept.add(chat);
    if (!chats.includes(chat))
        chats.unshift(chat);
    sticks = true;
    if (await keep(store())) {
        unkept.delete(chat);
        await loadMessages(chat);
    }
    await loadChats();
    if (chat === current)
        show();
    else
        showList();
    $("status").textContent = word("answering");
    const draw = now => {
        const item = views.get(chat.id)?.items.get(reply.id)?.item;
        if (chat !== current || !item)
            return;
        fillAnswer(item, reply);
        if (sticks)
            toEnd();
        drawn = performance.now();
        drawing = drawn - now;
    };
    const measure = (tokens, now) => {
        version.stats = { tokens, first: (first - start) / 1000,
                          rate: tokens > 1 && now > first ? (tokens - 1) * 1000 / (now - first) : 0 };
    };
    addEventListener("pagehide", save);
    try {
        const at = chat.messages.indexOf(reply);
        const { reason, usage } = await answer(chat.messages.slice(0, at), controller.signal, text => {
            const now = performance.now();
            if (!version) {
                first = now;
                version = { text: "" };
                reply.shown = reply.busy.version = reply.versions.push(version) - 1;
            }
            version.text += text;
            measure(++pieces, now);
            if (now - drawn > Math.max(50, 4 * drawing)) /* a long answer is rendered less often */
                draw(now);
            saveSometimes(now);
        });
        if (version)
            version.cut = reason === "length";
        else
            reply.shown = reply.versions.push({ text: "", cut: reason === "length" }) - 1;
        if (usage && version)
            measure(usage.completion_tokens, performance.now());
    } catch (error) {
        if (error.name === "AbortError") {
            if (!version && before < 0)
                reply.shown = reply.versions.push(version = { text: "" }) - 1;
            if (version)
                version.stopped = true;
        } else {
            reply.error = errorText(error);
            if (version)
                version.interrupted = true;
            reply.shown = before >= 0 ? before : reply.shown;
        }
        if (error.status === 401)
            openSettings(errorText(error));
    }
    removeEventListener("pagehide", save);
    delete reply.busy;
    runs.delete(chat.id);
    changed(reply);
    await save();
    if (own.isFull || unkept.has(chat))
        reply.error ??= word("full");
    $("status").textContent = reply.error ?? word("answered");
    if (chat === current)
        show();
    else
        showList();
}

/* from: the position of the message from which on this question replaces all messages. */
function ask(text, from = Infinity) {
    const chat = current, { messages } = chat;
    text = text.trim();
    if (!text || isAnswering(chat))
        return false;
    if (from === Infinity && messages.at(-1)?.role === "user")
        from = messages.at(-1).at; /* a question whose answer was deleted */
    if (!chat.named && (!messages.length || from <= messages[0].at))
        chat.title = titleOf(text);
    const question = newMessage(chat, "user", { text });
    const reply = newMessage(chat, "assistant", { versions: [], shown: -1 });
    chat.messages = messages.filter(message => message.at < from).concat(question, reply);
    run(chat, reply, () => append(chat, [question, reply], from));
    return true;
}

function askAgain(chat, reply) {
    run(chat, reply, () => update(reply));
}

function showVersion(chat, message, version) {
    message.shown = version;
    changed(message);
    show();
    keep(update(message));
}

async function deleteFrom(chat, message) {
    chat.messages = chat.messages.filter(other => other.at < message.at);
    if (!chat.messages.length)
        forget(chat);
    show();
    await keep(cut(chat, message.at));
}

function editMessage(message) {
    const { item } = views.get(current.id).items.get(message.id), body = item.querySelector(".body");
    const area = element("textarea", { value: message.text });
    const save = element("button", { type: "button", className: "primary", textContent: word("save") });
    const cancel = element("button", { type: "button", className: "plain", textContent: word("cancel") });
    const end = () => {
        item.classList.remove("editing");
        body.textContent = message.text;
    };
    const send = () => {
        if (ask(area.value, message.at))
            end();
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

/* ---- input ---- */

/* Enter sends; not while an input method is still composing characters. */
function isSend(event) {
    return event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
}

function grow(area) {
    area.style.height = "auto";
    area.style.height = Math.min(area.scrollHeight, innerHeight * 0.4) + "px";
}

function submit() {
    if (ask($("question").value)) {
        $("question").value = "";
        grow($("question"));
    }
}

$("ask").addEventListener("submit", event => {
    event.preventDefault();
    submit();
});
$("question").addEventListener("input", () => grow($("question")));
$("question").addEventListener("keydown", event => {
    if (isSend(event)) {
        event.preventDefault();
        submit();
    }
});
function stop() {
    const own = runs.get(current.id);
    if (own)
        own.controller.abort();
    else if (isAnswering(current))
        tell({ stop: current.id });
}

$("stop").addEventListener("click", () => {
    stop();
    $("question").focus();
});
$("new-chat").addEventListener("click", () => choose(current.messages.length ? emptyChat() : current));
$("open-side").addEventListener("click", () => openSide(true));
$("close-side").addEventListener("click", () => openSide(false));
$("shade").addEventListener("click", () => openSide(false));
$("to-end").addEventListener("click", toEnd);
$("scroll").addEventListener("scroll", () => {
    const box = $("scroll");
    sticks = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    $("to-end").hidden = sticks;
}, { passive: true });
document.addEventListener("keydown", event => {
    const typing = /^(INPUT|TEXTAREA)$/.test(document.activeElement?.tagName);
    if (event.key === "Escape" && !$("settings").open) {
        if (document.body.classList.contains("side-open"))
            openSide(false);
        else
            stop();
    } else if (event.key === "/" && !typing && !$("settings").open) {
        event.preventDefault();
        $("question").focus();
    }
});

/* ---- settings ---- */

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

function fillSettings() {
    const form = $("settings-form");
    for (const name of [...NUMBERS, "system", "key"])
        form.elements[name].value = settings[name] ?? "";
}

function readSettings() {
    const form = $("settings-form");
    for (const name of NUMBERS) {
        const input = form.elements[name];
        settings[name] = input.value === "" || !input.validity.valid ? null : input.valueAsNumber;
    }
    settings.system = form.elements.system.value.trim();
    settings.key = form.elements.key.value.trim();
    saveSettings();
}

function openSettings(error) {
    fillSettings();
    $("settings-error").textContent = error ?? "";
    $("settings-error").hidden = !error;
    if (!$("settings").open)
        $("settings").showModal();
    if (error)
        $("settings-form").elements.key.focus();
}

$("open-settings").addEventListener("click", () => openSettings());
$("close-settings").addEventListener("click", () => $("settings").close());
$("settings-form").addEventListener("submit", () => {
    readSettings();
    findModel();
});
$("reset-settings").addEventListener("click", () => {
    for (const name of [...NUMBERS, "system"])
        delete settings[name];
    fillSettings();
});

function showTheme() {
    document.documentElement.dataset.theme = settings.theme;
    $("theme-name").textContent = word({ auto: "themeAuto", light: "themeLight", dark: "themeDark" }[settings.theme]);
}

$("theme").addEventListener("click", () => {
    settings.theme = { auto: "light", light: "dark", dark: "auto" }[settings.theme] ?? "auto";
    saveSettings();
    showTheme();
});

/* ---- start ---- */

async function findModel() {
    try {
        $("model").textContent = await modelName();
        $("model").hidden = false;
    } catch (error) {
        if (error.status === 401)
            openSettings(errorText(error));
    }
}

fillWords();
showTheme();
followSettings(showTheme);
for (const idea of word("ideas")) {
    const button = element("button", { type: "button", className: "idea", textContent: idea });
    button.addEventListener("click", () => ask(idea));
    $("ideas").append(button);
}
show();
findModel();
if (matchMedia("(hover: hover)").matches)
    $("question").focus();
await keep(takeOver());
await loadChats();
showList();
