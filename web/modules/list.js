/* The list of conversations: choosing, renaming, deleting, searching. */
import { bringBack } from "./answers.js";
import { element, iconButton, keepFocus } from "./element.js";
import { choose, show } from "./screen.js";
import { app, chatOf, forget, keep, loadMessages, runs, say } from "./state.js";
import { eachMessage, removeChat, updateChat } from "./store.js";
import { offerUndo } from "./undo.js";
import { word } from "./words.js";

const MAX_FOUND = 200, BEFORE = 30, AFTER = 90; /* results; characters of a result around the place */

const $ = id => document.getElementById(id);
let query = "", found = [], asked = 0;

function chatItem(chat) {
    const open = element("button", { type: "button", className: "open", textContent: chat.title || word("untitled") });
    open.dataset.kind = "open";
    open.addEventListener("click", () => choose(chat));
    if (chat === app.current)
        open.setAttribute("aria-current", "true");
    const rename = iconButton("edit", word("rename"), () => renameChat(chat, item));
    const remove = iconButton("remove", word("removeChat"), () => deleteChat(chat));
    const item = element("li", { className: runs.has(chat.id) ? "running" : "" }, open, rename, remove);
    item.dataset.id = chat.id;
    return item;
}

function foundItem({ chat, message, before, match, after }) {
    const open = element("button", { type: "button", className: "open found" },
                         element("span", { textContent: chat.title || word("untitled") }),
                         element("small", {}, before, element("mark", { textContent: match }), after));
    open.dataset.kind = "open";
    open.addEventListener("click", () => choose(chat, message?.id));
    const item = element("li", {}, open);
    item.dataset.id = message?.id ?? chat.id;
    return item;
}

export function showList() {
    const items = query ? found.filter(({ chat }) => chatOf(chat.id)).map(foundItem) : app.chats.map(chatItem);
    if (!$("chat-list").querySelector("input"))
        keepFocus($("chat-list"), () => $("chat-list").replaceChildren(...items));
}

async function deleteChat(chat) {
    await loadMessages(chat);
    const removed = chat.messages;
    runs.get(chat.id)?.controller.abort();
    forget(chat);
    show();
    offerUndo(word("deletedChat")(chat.title || word("untitled")), () => bringBack(chat, removed));
    await keep(removeChat(chat));
}

function renameChat(chat, item) {
    const input = element("input", { value: chat.title, maxLength: 100 });
    input.setAttribute("aria-label", word("rename"));
    let done = false;
    const finish = (keeps, returns) => {
        if (done)
            return;
        done = true;
        if (keeps && input.value.trim()) {
            chat.title = input.value.trim();
            chat.named = true;
            keep(updateChat(chat));
        }
        input.remove();
        show();
        if (returns)
            $("chat-list").querySelector(`[data-id="${chat.id}"] [data-kind="edit"]`)?.focus();
    };
    input.addEventListener("keydown", event => {
        if (event.key === "Enter" || event.key === "Escape") {
            event.stopPropagation();
            event.preventDefault(); /* the key is not pressed again on what gets the focus */
            finish(event.key === "Enter", true);
        }
    });
    input.addEventListener("blur", () => finish(true, false));
    item.replaceChildren(input);
    input.focus();
    input.select();
}

/* ---- search ---- */

/* Where text has the words, regardless of case; null: nowhere. */
function placeOf(text, words) {
    const at = text.toLowerCase().indexOf(words);
    if (at < 0)
        return null;
    const from = Math.max(0, at - BEFORE), end = at + words.length;
    return { before: (from ? "…" : "") + text.slice(from, at), match: text.slice(at, end), after: text.slice(end, end + AFTER) };
}

async function search() {
    const words = query, own = ++asked, results = [];
    for (const chat of app.chats) {
        const place = placeOf(chat.title, words);
        if (place)
            results.push({ chat, message: null, ...place });
    }
    const look = message => {
        const chat = chatOf(message.chat), texts = [message.text, message.reasoning, ...(message.files ?? []).map(file => file.text)];
        const place = chat && texts.map(text => text && placeOf(text, words)).find(Boolean);
        if (place)
            results.push({ chat, message, ...place });
        return own === asked && results.length < MAX_FOUND;
    };
    try {
        await eachMessage(look);
    } catch {
        app.chats.flatMap(chat => chat.messages ?? []).every(look); /* nothing is stored: what the page knows */
    }
    if (own !== asked)
        return;
    found = results;
    showList();
    say(word("foundN")(results.length));
    $("found").textContent = results.length ? "" : word("foundN")(0);
}

export function listenForSearch() {
    $("search").addEventListener("input", () => {
        query = $("search").value.trim().toLowerCase();
        $("found").textContent = "";
        asked++;
        if (query)
            search();
        else
            showList();
    });
    $("search").addEventListener("keydown", event => {
        if (event.key === "Escape" && $("search").value) {
            event.stopPropagation();
            $("search").value = "";
            $("search").dispatchEvent(new Event("input"));
        } else if (event.key === "ArrowDown") {
            event.preventDefault();
            $("chat-list").querySelector(".open")?.focus();
        }
    });
    $("chat-list").addEventListener("keydown", event => {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], all = [...$("chat-list").querySelectorAll(".open")];
        const at = all.indexOf(document.activeElement);
        if (!step || at < 0)
            return;
        event.preventDefault();
        (all[at + step] ?? (step < 0 ? $("search") : all[at])).focus();
    });
}
