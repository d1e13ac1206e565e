/* The chat page: conversations, the question, running answers. */
import { addChat, chats, removeChat, saveChats, saveSettings, settings, touch } from "./store.js";
import { answer, modelName } from "./stream.js";
import { element, fillAnswer, iconButton, messageView } from "./view.js";
import { fillWords, word } from "./words.js";

const $ = id => document.getElementById(id);
const runs = new Map(); /* conversation id -> AbortController of the answer that is being written */
let current = addChat();
let sticks = true; /* the view follows the end of the conversation */

/* ---- what is shown ---- */

function showList() {
    $("chat-list").replaceChildren(...chats.filter(chat => chat.messages.length).map(chat => {
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
            runs.get(chat.id)?.abort();
            removeChat(chat);
            saveChats();
            if (chat === current)
                current = addChat();
            show();
        });
        const rename = iconButton("edit", word("rename"), () => renameChat(chat, item));
        const item = element("li", { className: runs.has(chat.id) ? "running" : "" }, open, rename, remove);
        return item;
    }));
}

function renameChat(chat, item) {
    const input = element("input", { value: chat.title, maxLength: 100 });
    input.setAttribute("aria-label", word("rename"));
    let done = false;
    const finish = keep => {
        if (done)
            return;
        done = true;
        if (keep && input.value.trim()) {
            chat.title = input.value.trim();
            chat.named = true;
            saveChats();
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

function showMessage(message, index) {
    const isLast = index === current.messages.length - 1, idle = !runs.has(current.id), chat = current;
    const acts = {};
    if (idle && message.role === "user")
        acts.edit = () => editMessage(index);
    if (idle && message.role === "assistant" && isLast)
        acts.again = acts.retry = () => run(chat);
    if (idle)
        acts.remove = () => {
            chat.messages.splice(index);
            touch(chat);
            show();
        };
    return messageView(message, acts);
}

function showState() {
    const busy = runs.has(current.id);
    $("send").hidden = busy;
    $("stop").hidden = !busy;
    $("title").textContent = current.title || word("untitled");
    document.title = current.title ? current.title + " · tutti" : "tutti";
}

function show() {
    $("welcome").hidden = current.messages.length > 0;
    $("messages").replaceChildren(...current.messages.map(showMessage));
    showList();
    showState();
    if (sticks)
        toEnd();
}

function toEnd() {
    $("scroll").scrollTop = $("scroll").scrollHeight;
}

function choose(chat) {
    current = chat;
    sticks = true;
    openSide(false);
    show();
    if (matchMedia("(hover: hover)").matches)
        $("question").focus();
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

/* Writes an answer to the conversation's last question; one that is there is replaced. */
async function run(chat) {
    if (runs.has(chat.id))
        return;
    if (chat.messages.at(-1)?.role === "assistant")
        chat.messages.pop();
    const question = chat.messages.slice(), message = { role: "assistant", text: "", busy: true };
    const controller = new AbortController(), start = performance.now();
    let first = 0, pieces = 0, drawn = 0;
    const draw = now => {
        drawn = now;
        const item = $("messages").lastElementChild;
        if (chat === current && item && message.busy) {
            fillAnswer(item, message);
            if (sticks)
                toEnd();
        }
    };
    const measure = (tokens, now) => {
        message.stats = { tokens, first: (first - start) / 1000,
                          rate: tokens > 1 && now > first ? (tokens - 1) * 1000 / (now - first) : 0 };
    };
    chat.messages.push(message);
    runs.set(chat.id, controller);
    sticks = true;
    show();
    $("status").textContent = word("answering");
    try {
        const { reason, usage } = await answer(question, controller.signal, text => {
            const now = performance.now();
            first ||= now;
            message.text += text;
            measure(++pieces, now);
            if (now - drawn > 50)
                draw(now);
        });
        message.cut = reason === "length";
        if (usage && first)
            measure(usage.completion_tokens, performance.now());
    } catch (error) {
        if (error.name === "AbortError")
            message.stopped = true;
        else
            message.error = errorText(error);
        if (error.status === 401)
            openSettings(errorText(error));
    }
    delete message.busy;
    runs.delete(chat.id);
    if (!touch(chat))
        message.error ??= word("full");
    $("status").textContent = message.error ?? word("answered");
    if (chat === current)
        show();
    else
        showList();
}

function ask(text) {
    text = text.trim();
    if (!text || runs.has(current.id))
        return false;
    if (current.messages.at(-1)?.role === "user")
        current.messages.pop(); /* a question whose answer was deleted */
    current.messages.push({ role: "user", text });
    touch(current);
    run(current);
    return true;
}

function editMessage(index) {
    const item = $("messages").children[index], body = item.querySelector(".body"), chat = current;
    const area = element("textarea", { value: chat.messages[index].text });
    const save = element("button", { type: "button", className: "primary", textContent: word("save") });
    const cancel = element("button", { type: "button", className: "plain", textContent: word("cancel") });
    const send = () => {
        if (!area.value.trim())
            return;
        chat.messages.splice(index);
        ask(area.value);
    };
    area.setAttribute("aria-label", word("edit"));
    area.addEventListener("input", () => grow(area));
    area.addEventListener("keydown", event => {
        if (event.key === "Escape") {
            event.stopPropagation();
            show();
        } else if (isSend(event)) {
            event.preventDefault();
            send();
        }
    });
    save.addEventListener("click", send);
    cancel.addEventListener("click", show);
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
$("stop").addEventListener("click", () => {
    runs.get(current.id)?.abort();
    $("question").focus();
});
$("new-chat").addEventListener("click", () => choose(addChat()));
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
            runs.get(current.id)?.abort();
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
for (const chat of chats)
    for (const message of chat.messages)
        delete message.busy; /* the page was left in the middle of an answer */
for (const idea of word("ideas")) {
    const button = element("button", { type: "button", className: "idea", textContent: idea });
    button.addEventListener("click", () => ask(idea));
    $("ideas").append(button);
}
show();
findModel();
if (matchMedia("(hover: hover)").matches)
    $("question").focus();
