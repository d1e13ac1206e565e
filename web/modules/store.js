/* Conversations, in the browser's IndexedDB: one record for each conversation and one for each message. Every change is one
 * transaction on the records that it concerns, so several open pages do not overwrite each other's changes; a BroadcastChannel
 * announces the changes. Settings are in localStorage.
 *
 * A conversation: {id, title, named, changed, picks, options}: picks as in tree.js; options are its model, system prompt and
 * sampling, absent where those of the settings apply. A message: {id, chat, at, parent, role, rev, text}, in the order of at;
 * parents precede their children, and rev is another number after each change. A question may have {files: [{name, text}]}. An
 * answer may have {reasoning, thought (seconds), stats, cut, stopped, interrupted, error}, and has {busy: {page}} while a page is
 * writing it. */
const DATABASE = "tutti", CHANNEL = "tutti", SETTINGS = "tutti.settings", OLD_CHATS = "tutti.chats";

export function randomId() {
    return Array.from(crypto.getRandomValues(new Uint32Array(4)), n => n.toString(36)).join("");
}

/* The id of this page among the open ones. */
export const page = randomId();

/* ---- settings ---- */

function readSettings() {
    try {
        return JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
    } catch {
        return {};
    }
}

export const settings = Object.assign({ theme: "auto" }, readSettings());

/* False: the storage is full or forbidden. */
export function saveSettings() {
    try {
        localStorage.setItem(SETTINGS, JSON.stringify(settings));
        return true;
    } catch {
        return false;
    }
}

/* Calls onChange() when another page has changed them. */
export function followSettings(onChange) {
    addEventListener("storage", event => {
        if (event.key !== SETTINGS)
            return;
        for (const name of Object.keys(settings))
            delete settings[name];
        Object.assign(settings, { theme: "auto" }, readSettings());
        onChange();
    });
}

/* ---- the database ---- */

let opened = null;

function open() {
    opened ??= new Promise((resolve, reject) => {
        const request = indexedDB.open(DATABASE, 2);
        request.onupgradeneeded = event => {
            const { result, transaction } = request;
            if (event.oldVersion < 1) {
                result.createObjectStore("chats", { keyPath: "id" });
                result.createObjectStore("messages", { keyPath: "id" });
            } else {
                transaction.objectStore("messages").deleteIndex("place");
                toTrees(transaction.objectStore("chats"), transaction.objectStore("messages"));
            }
            transaction.objectStore("messages").createIndex("place", ["chat", "at"]);
        };
        request.onsuccess = () => {
            request.result.onversionchange = () => request.result.close(); /* a newer page needs it */
            resolve(request.result);
        };
        request.onerror = () => reject(request.error);
    });
    return opened;
}

/* The result of a request. */
function got(request) {
    return new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
    });
}

/* Runs work(chats, messages) in one transaction, which may await its requests only. Resolves to what work returns once that
 * is stored; rejects if the storage is full or forbidden: then nothing is stored. */
async function transact(mode, work) {
    const transaction = (await open()).transaction(["chats", "messages"], mode);
    const kept = new Promise((resolve, reject) => {
        transaction.oncomplete = resolve;
        transaction.onabort = () => reject(transaction.error);
    });
    const [result] = await Promise.all([work(transaction.objectStore("chats"), transaction.objectStore("messages")), kept]);
    return result;
}

function allOf(chat, from = -Infinity) {
    return IDBKeyRange.bound([chat, from], [chat, Infinity]);
}

/* ---- other pages ---- */

const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel(CHANNEL) : null;

/* note: {chat} (its list of messages), {message} (one that is as it is there), {stop} (a conversation whose answer is to end) or
 * {who} (a message: its writer answers with {message}). */
export function tell(note) {
    channel?.postMessage(note);
}

export function onTold(listen) {
    if (channel)
        channel.onmessage = event => listen(event.data);
}

/* ---- reading ---- */

/* All conversations, the latest first. */
export async function readChats() {
    const chats = await transact("readonly", all => got(all.getAll()));
    return chats.sort((a, b) => b.changed - a.changed);
}

export function readMessages(chat) {
    return transact("readonly", (_, messages) => got(messages.index("place").getAll(allOf(chat.id))));
}

/* Calls look(message) for each message of all conversations until it returns false. */
export function eachMessage(look) {
    return transact("readonly", (_, messages) => new Promise((resolve, reject) => {
        const request = messages.openCursor();
        request.onerror = () => reject(request.error);
        request.onsuccess = () => {
            const cursor = request.result;
            if (cursor && look(cursor.value))
                cursor.continue();
            else
                resolve();
        };
    }));
}

/* ---- writing ---- */

export function newChat() {
    return { id: randomId(), title: "", named: false, changed: Date.now(), picks: {}, options: null };
}

export function newMessage(chat, parent, role, fields) {
    return { id: randomId(), chat: chat.id, at: 0, parent: parent?.id ?? null, role, rev: Math.random(), text: "", ...fields };
}

export function changed(message) {
    message.rev = Math.random();
}

/* The first line of the first question is the title until the user sets another one. */
export function titleOf(text) {
    const line = text.trim().split("\n")[0];
    return line.length > 48 ? Array.from(line).slice(0, 46).join("") + "…" : line;
}

/* Puts messages at the end, after those that other pages have added meanwhile, and sets their at. The conversation is created if
 * it does not exist. */
export async function append(chat, added) {
    chat.changed = Date.now();
    await transact("readwrite", async (chats, records) => {
        const last = await got(records.index("place").openKeyCursor(allOf(chat.id), "prev"));
        let at = last ? last.key[1] + 1 : 0;
        for (const message of added) {
            message.at = at++;
            records.put(message);
        }
        const there = await got(chats.get(chat.id));
        if (there?.named)
            Object.assign(chat, { title: there.title, named: true });
        chats.put(stored(chat));
    });
    tell({ chat: chat.id });
}

function stored(chat) {
    const { id, title, named, changed: when, picks, options } = chat;
    return { id, title, named, changed: when, picks: picks ?? {}, options: options ?? null };
}

/* Writes conversations and their messages as they are: deleted ones again, or imported ones. */
export async function restore(all) {
    await transact("readwrite", (chats, records) => {
        for (const { chat, messages } of all) {
            chats.put(stored(chat));
            for (const message of messages)
                records.put(message);
        }
    });
    for (const { chat } of all)
        tell({ chat: chat.id });
}

/* Writes a message that has changed. False: it was deleted meanwhile, and stays so. */
export async function update(message) {
    const isThere = await transact("readwrite", async (_, messages) => {
        const there = await got(messages.getKey(message.id)) !== undefined;
        if (there)
            messages.put(message);
        return there;
    });
    if (isThere)
        tell({ message });
    return isThere;
}

/* Writes a message if it has not changed since it was read. False: it has. */
export async function updateUnchanged(message, rev) {
    const isUnchanged = await transact("readwrite", async (_, messages) => {
        const same = (await got(messages.get(message.id)))?.rev === rev;
        if (same)
            messages.put(message);
        return same;
    });
    if (isUnchanged)
        tell({ message });
    return isUnchanged;
}

/* Writes title and time of a conversation, unless it was deleted meanwhile. */
export async function updateChat(chat) {
    await transact("readwrite", async chats => {
        if (await got(chats.getKey(chat.id)) !== undefined)
            chats.put(stored(chat));
    });
    tell({ chat: chat.id });
}

/* Deletes messages, and the conversation if nothing is left of it. */
export async function removeMessages(chat, removed) {
    await transact("readwrite", async (chats, records) => {
        for (const message of removed)
            records.delete(message.id);
        if (await got(records.index("place").count(allOf(chat.id))) === 0)
            chats.delete(chat.id);
        else
            chats.put(stored(chat));
    });
    tell({ chat: chat.id });
}

export async function removeChat(chat) {
    await transact("readwrite", async (chats, messages) => {
        chats.delete(chat.id);
        for (const key of await got(messages.index("place").getAllKeys(allOf(chat.id))))
            messages.delete(key);
    });
    tell({ chat: chat.id });
}

/* ---- data of older versions ---- */

/* Messages of a tree, from a list of messages where an answer had all of its versions: {versions, shown, error, busy}. */
function treeOf(chat, list) {
    const all = [], picks = {};
    let parent = null;
    for (const old of list) {
        const common = { chat, parent, role: old.role };
        const versions = old.role === "user" ? [{ text: old.text }] : old.versions?.length ? old.versions : [{ text: "" }];
        const made = versions.map((version, index) => ({
            ...common, ...version, id: index ? `${old.id}/${index}` : old.id, at: all.length + index, rev: Math.random(),
            text: String(version.text ?? ""),
            ...(old.busy && index === (old.busy.version ?? versions.length - 1) ? { interrupted: true } : {}) }));
        const shown = made[old.shown] ?? made.at(-1);
        if (old.error)
            shown.error = String(old.error);
        all.push(...made);
        picks[parent ?? ""] = shown.id;
        parent = shown.id;
    }
    return { all, picks };
}

/* Version 1 of the database had lists. Runs in the transaction that changes the version. */
async function toTrees(chats, messages) {
    const lists = new Map();
    for (const message of (await got(messages.getAll())).sort((a, b) => a.at - b.at))
        (lists.get(message.chat) ?? lists.set(message.chat, []).get(message.chat)).push(message);
    messages.clear();
    for (const chat of await got(chats.getAll())) {
        const { all, picks } = treeOf(chat.id, lists.get(chat.id) ?? []);
        chats.put(stored({ ...chat, picks }));
        for (const message of all)
            messages.put(message);
    }
}

function oldMessage(chat, old, at) {
    const message = { id: chat.id + "/" + at, role: old.role === "user" ? "user" : "assistant", text: String(old.text ?? "") };
    const { text, stats, cut, stopped, busy, error } = old;
    return message.role === "user" ? message : { ...message, versions: [{ text, stats, cut, stopped, interrupted: busy }], error };
}

/* Imports conversations that the oldest version stored as one list in localStorage. */
export async function takeOver() {
    let old = null;
    try {
        old = JSON.parse(localStorage.getItem(OLD_CHATS));
    } catch {
        return; /* forbidden, or not a list: nothing to import */
    }
    if (!Array.isArray(old))
        return;
    await restore(old.filter(c => c && typeof c.id === "string" && Array.isArray(c.messages) && c.messages.length).map(c => {
        const { all, picks } = treeOf(c.id, c.messages.map((message, at) => oldMessage(c, message, at)));
        return { chat: { id: c.id, title: String(c.title ?? ""), named: Boolean(c.named), changed: Number(c.changed) || 0, picks },
                 messages: all };
    }));
    localStorage.removeItem(OLD_CHATS);
}
