/* Conversations, in the browser's IndexedDB: one record for each conversation and one for each message. Every change is one
 * transaction on the records that it concerns, so several open pages do not overwrite each other's changes; a BroadcastChannel
 * announces the changes. Settings are in localStorage.
 *
 * A conversation: {id, title, named, changed}. A message: {id, chat, at, role, rev}, in the order of at; rev is another
 * number after each change. A question has {text}. An answer has {versions: [{text, stats, cut, stopped, interrupted}], shown,
 * error, busy}: shown is the index of the version that is shown and sent; busy is {page, version} while a page is writing it, where
 * version is the index of what it streams, or null before the first token. */
const DATABASE = "tutti", CHANNEL = "tutti", SETTINGS = "tutti.settings", OLD_CHATS = "tutti.chats";

function randomId() {
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
        const request = indexedDB.open(DATABASE, 1);
        request.onupgradeneeded = () => {
            request.result.createObjectStore("chats", { keyPath: "id" });
            request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("place", ["chat", "at"], { unique: true });
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

/* ---- writing ---- */

export function newChat() {
    return { id: randomId(), title: "", named: false, changed: Date.now() };
}

export function newMessage(chat, role, fields) {
    return { id: randomId(), chat: chat.id, at: 0, role, rev: Math.random(), ...fields };
}

export function changed(message) {
    message.rev = Math.random();
}

/* The first line of the first question is the title until the user sets another one. */
export function titleOf(text) {
    const line = text.trim().split("\n")[0];
    return line.length > 48 ? Array.from(line).slice(0, 46).join("") + "…" : line;
}

/* Puts messages at the end, after those that other pages have added meanwhile, and sets their at. from: those from this place on are
 * deleted first. The conversation is created if it does not exist. */
export async function append(chat, messages, from = Infinity) {
    chat.changed = Date.now();
    await transact("readwrite", async (chats, records) => {
        if (from < Infinity)
            for (const key of await got(records.index("place").getAllKeys(allOf(chat.id, from))))
                records.delete(key);
        const last = await got(records.index("place").openKeyCursor(allOf(chat.id), "prev"));
        let at = last ? last.key[1] + 1 : 0;
        for (const message of messages) {
            message.at = at++;
            records.put(message);
        }
        const there = await got(chats.get(chat.id));
        if (there?.named)
            Object.assign(chat, { title: there.title, named: true });
        if (at > 0)
            chats.put(stored(chat));
        else
            chats.delete(chat.id); /* nothing is left of it */
    });
    tell({ chat: chat.id });
}

function stored(chat) {
    return { id: chat.id, title: chat.title, named: chat.named, changed: chat.changed };
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

/* Deletes the messages from this place on. */
export async function cut(chat, from) {
    await append(chat, [], from);
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

function oldMessage(chat, old, at) {
    const message = { id: chat.id + "/" + at, chat: chat.id, at, role: old.role, rev: Math.random() };
    if (old.role === "user")
        return { ...message, text: String(old.text) };
    const { text, stats, cut, stopped, busy } = old;
    const versions = text || stopped ? [{ text: String(text), stats, cut, stopped, interrupted: busy }] : [];
    return { ...message, versions, shown: versions.length - 1, error: old.error };
}

/* Imports conversations that older versions stored as one list in localStorage. */
export async function takeOver() {
    let old = null;
    try {
        old = JSON.parse(localStorage.getItem(OLD_CHATS));
    } catch {
        return; /* forbidden, or not a list: nothing to import */
    }
    if (!Array.isArray(old))
        return;
    await transact("readwrite", async (chats, messages) => {
        for (const chat of old.filter(c => c && typeof c.id === "string" && Array.isArray(c.messages) && c.messages.length)) {
            chats.put({ id: chat.id, title: String(chat.title ?? ""), named: Boolean(chat.named), changed: Number(chat.changed) || 0 });
            chat.messages.forEach((message, at) => messages.put(oldMessage(chat, message, at)));
        }
    });
    localStorage.removeItem(OLD_CHATS);
}
