/* What the page knows: the conversations, the one that is shown, and the answers that this page is streaming. */
import { newChat, readChats, readMessages, settings } from "./store.js";
import { NUMBERS } from "./stream.js";
import { arrange } from "./tree.js";
import { word } from "./words.js";

export const OPTIONS = ["model", "system", "effort", ...NUMBERS];

/* chats: in list order; with messages if they were loaded: {…, messages, path, children}. sticks: the view scrolls with the end of
 * the conversation. models: as readModels() returns them. */
export const app = { chats: [], current: null, sticks: true, models: [] };
export const runs = new Map(); /* conversation id -> {chat, controller, reply}: answers that this page is streaming */
export const unkept = new Set(); /* conversations whose last messages are not stored (yet) */
const objects = new Map(); /* conversation id -> its only object in this page */

export function emptyChat() {
    const chat = { ...newChat(), messages: [] };
    arrange(chat);
    objects.set(chat.id, chat);
    return chat;
}

app.current = emptyChat();

export function chatOf(id) {
    return objects.get(id);
}

/* Puts a conversation into the list again. */
export function addChat(chat) {
    objects.set(chat.id, chat);
    if (!app.chats.includes(chat))
        app.chats.unshift(chat);
}

export function say(text) {
    document.getElementById("status").textContent = text;
}

/* False: it could not be stored, and the page says so. */
export async function keep(writing) {
    try {
        await writing;
        return true;
    } catch {
        say(word("full"));
        return false;
    }
}

/* The model, system prompt and sampling of a conversation: its own, or those for new conversations. */
export function optionsOf(chat) {
    return chat.options ?? Object.fromEntries(OPTIONS.map(name => [name, settings[name] ?? null]));
}

export function isAnswering(chat) {
    return runs.has(chat.id) || chat.messages.some(message => message.busy);
}

/* Reads the list. False: the conversation that was shown is deleted. If the storage is forbidden, the data stays in memory. */
export async function loadChats() {
    let all;
    try {
        all = await readChats();
    } catch {
        return true;
    }
    const { current } = app, wasKept = app.chats.includes(current) && !unkept.has(current);
    for (const chat of all)
        objects.set(chat.id, Object.assign(objects.get(chat.id) ?? {}, chat));
    app.chats = all.map(chat => objects.get(chat.id));
    app.chats.unshift(...[...unkept].filter(chat => !app.chats.includes(chat)));
    for (const run of runs.values())
        if (!app.chats.includes(run.chat))
            run.controller.abort(); /* deleted by another page */
    if (!wasKept || app.chats.includes(current))
        return true;
    app.current = emptyChat();
    return false;
}

export async function loadMessages(chat) {
    chat.messages ??= [];
    let all = null;
    if (!unkept.has(chat)) {
        try {
            all = await readMessages(chat);
        } catch {
            all = null;
        }
    }
    if (all) {
        const known = new Map(chat.messages.map(message => [message.id, message])), own = runs.get(chat.id)?.reply;
        chat.messages = all.map(message => {
            const old = known.get(message.id);
            return message.id === own?.id ? own : old?.rev === message.rev ? old : message;
        });
    }
    arrange(chat);
}

/* Takes a conversation out of the list. */
export function forget(chat) {
    app.chats = app.chats.filter(other => other !== chat);
    unkept.delete(chat);
    objects.delete(chat.id);
    if (chat === app.current)
        app.current = emptyChat();
}
