/* Conversations and settings, kept in the browser alone.
 *
 * A conversation: {id, title, named, changed, messages}; a message: {role, text} and, for answers,
 * {stats, cut, stopped, error}. */
const CHATS = "tutti.chats", SETTINGS = "tutti.settings";

function load(key, otherwise) {
    try {
        return JSON.parse(localStorage.getItem(key)) ?? otherwise;
    } catch {
        return otherwise;
    }
}

const loaded = load(CHATS, []);
export const chats = Array.isArray(loaded) ? loaded.filter(chat => chat && Array.isArray(chat.messages)) : [];
export const settings = Object.assign({ theme: "auto" }, load(SETTINGS, {}));

/* False: the storage is full or forbidden. */
export function saveChats() {
    try {
        localStorage.setItem(CHATS, JSON.stringify(chats.filter(chat => chat.messages.length)));
        return true;
    } catch {
        return false;
    }
}

export function saveSettings() {
    try {
        localStorage.setItem(SETTINGS, JSON.stringify(settings));
        return true;
    } catch {
        return false;
    }
}

export function addChat() {
    const empty = chats.find(chat => !chat.messages.length);
    if (empty)
        return empty;
    const chat = { id: Date.now().toString(36) + Math.random().toString(36).slice(2, 8), title: "", changed: Date.now(),
                   messages: [] };
    chats.unshift(chat);
    return chat;
}

export function removeChat(chat) {
    chats.splice(chats.indexOf(chat), 1);
}

/* Notes a change: the conversation moves to the top and takes its first question as title. */
export function touch(chat) {
    chat.changed = Date.now();
    if (!chat.named && chat.messages.length) {
        const line = chat.messages[0].text.trim().split("\n")[0];
        chat.title = line.length > 48 ? Array.from(line).slice(0, 46).join("") + "…" : line;
    }
    chats.splice(chats.indexOf(chat), 1);
    chats.unshift(chat);
    return saveChats();
}
