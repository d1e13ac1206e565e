/* The chat page: starts it, and connects the input field, the keyboard and the other tabs. */
import { ask, grow, isSend, lookForWriters, noteSeen } from "./answers.js";
import { element } from "./element.js";
import { listenForExchange } from "./exchange.js";
import { currentFiles, detachAll, listenForFiles } from "./files.js";
import { listenForSearch, showList } from "./list.js";
import { findModels, followChoice } from "./models.js";
import { choose, openSide, show, toEnd } from "./screen.js";
import { listenForSettings, showTheme } from "./settings.js";
import { app, chatOf, emptyChat, isAnswering, keep, loadChats, loadMessages, runs } from "./state.js";
import { followSettings, onTold, takeOver, tell } from "./store.js";
import { arrange } from "./tree.js";
import { listenForUndo } from "./undo.js";
import { fillWords, word } from "./words.js";

const NEAR_END = 60, DRAFTS = "tutti.drafts"; /* pixels; unsent questions of this tab, by conversation */

const $ = id => document.getElementById(id);

/* ---- other pages ---- */

onTold(async note => {
    const { current } = app;
    if (note.message) {
        const chat = chatOf(note.message.chat);
        const at = chat?.messages?.findIndex(message => message.id === note.message.id) ?? -1;
        noteSeen(note.message);
        if (at < 0 || runs.get(chat.id)?.reply.id === note.message.id)
            return;
        chat.messages[at] = note.message;
        arrange(chat);
        if (chat === current)
            show();
    } else if (note.chat) {
        await loadChats();
        if (note.chat === app.current.id)
            await loadMessages(app.current);
        show();
        lookForWriters(app.current);
    } else if (note.stop) {
        runs.get(note.stop)?.controller.abort();
    } else if (note.who) {
        for (const run of runs.values())
            if (run.reply.id === note.who)
                tell({ message: run.reply });
    }
});

/* ---- input ---- */

function readDrafts() {
    try {
        return JSON.parse(sessionStorage.getItem(DRAFTS)) ?? {};
    } catch {
        return {};
    }
}

const draftKey = () => app.chats.includes(app.current) ? app.current.id : "";

/* An unsent question outlives a reload, and the visit of another conversation. */
function keepDraft(key, text) {
    const drafts = readDrafts();
    delete drafts[key];
    if (text)
        drafts[key] = text;
    try {
        sessionStorage.setItem(DRAFTS, JSON.stringify(drafts));
    } catch {
        /* the storage is full or forbidden: the text stays in its field */
    }
}

function showDraft() {
    $("question").value = readDrafts()[draftKey()] ?? "";
    grow($("question"));
}

function submit() {
    const key = draftKey();
    if (!ask($("question").value, currentFiles()))
        return;
    $("question").value = "";
    keepDraft(key, "");
    detachAll();
    grow($("question"));
}

function stop() {
    const own = runs.get(app.current.id);
    if (own)
        own.controller.abort();
    else if (isAnswering(app.current))
        tell({ stop: app.current.id });
}

function listenForInput() {
    $("ask").addEventListener("submit", event => {
        event.preventDefault();
        submit();
    });
    $("question").addEventListener("input", () => {
        grow($("question"));
        keepDraft(draftKey(), $("question").value);
    });
    $("question").addEventListener("keydown", event => {
        if (isSend(event)) {
            event.preventDefault();
            submit();
        }
    });
    $("stop").addEventListener("click", () => {
        stop();
        $("question").focus();
    });
    $("new-chat").addEventListener("click", () => choose(app.current.messages.length ? emptyChat() : app.current));
    $("open-side").addEventListener("click", () => openSide(true));
    $("close-side").addEventListener("click", closeSide);
    $("shade").addEventListener("click", closeSide);
    $("to-end").addEventListener("click", toEnd);
    $("scroll").addEventListener("scroll", () => {
        const box = $("scroll");
        app.sticks = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
        $("to-end").hidden = app.sticks;
    }, { passive: true });
    addEventListener("chosen", showDraft);
}

function closeSide() {
    openSide(false);
    $("open-side").focus();
}

function listenForKeys() {
    document.addEventListener("keydown", event => {
        const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
        if (document.querySelector("dialog[open]"))
            return;
        if (event.key === "Escape") {
            if (document.body.classList.contains("side-open"))
                closeSide();
            else
                stop();
        } else if (event.key === "/" && !isTyping) {
            event.preventDefault();
            $("question").focus();
        } else if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            openSide(true);
            $("search").focus();
        }
    });
}

/* ---- start ---- */

fillWords();
showTheme();
followSettings(showTheme);
listenForInput();
listenForKeys();
listenForFiles();
listenForSearch();
listenForSettings();
listenForUndo();
listenForExchange();
followChoice(show);
for (const idea of word("ideas")) {
    const button = element("button", { type: "button", className: "idea", textContent: idea });
    button.addEventListener("click", () => ask(idea));
    $("ideas").append(button);
}
show();
showDraft();
findModels().then(show);
if (matchMedia("(hover: hover)").matches)
    $("question").focus();
await keep(takeOver());
await loadChats();
showList();
