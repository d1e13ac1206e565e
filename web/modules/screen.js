/* Draws the conversation that is shown, and keeps the elements of the last ones. */
import { askAgain, deleteFrom, editMessage, lookForWriters, showVariant } from "./answers.js";
import { keepFocus } from "./element.js";
import { showList } from "./list.js";
import { showModels } from "./models.js";
import { app, isAnswering, loadMessages } from "./state.js";
import { pick, variantsOf } from "./tree.js";
import { messageView } from "./view.js";
import { count, word } from "./words.js";

const FIRST_VIEWS = 30, MORE_VIEWS = 20; /* messages rendered at once; then per idle callback */
const KEPT_VIEWS = 4; /* conversations whose elements are cached for when they are selected again */
const NEARLY_FULL = 0.9;

const $ = id => document.getElementById(id);
/* conversation id -> {items, first}, used last at the end. items: message id -> {item, key}; first: index of the first message that is
 * drawn; the ones before it follow. */
const views = new Map();

/* The element of a message of the conversation that is shown; undefined: it is not drawn. */
export function itemOf(message) {
    return views.get(app.current.id)?.items.get(message.id)?.item;
}

/* The element of a message: the existing one, unless the message has changed. */
function viewOf(message) {
    const chat = app.current, { items } = views.get(chat.id), known = items.get(message.id), variants = variantsOf(chat, message);
    const key = `${message.rev} ${variants.indexOf(message)} ${variants.length}`;
    if (known?.key === key)
        return known.item;
    const ifIdle = act => value => {
        if (!isAnswering(chat))
            act(chat, message, value);
    };
    const acts = { remove: ifIdle(deleteFrom), show: ifIdle((of, _, variant) => showVariant(of, variant)) };
    acts[message.role === "user" ? "edit" : "again"] = ifIdle(message.role === "user" ? editMessage : askAgain);
    const item = messageView(message, variants, acts, known?.item);
    items.set(message.id, { item, key });
    return item;
}

/* Puts the elements of all messages from the first rendered one on in order; elements already in place are not touched. */
function placeMessages() {
    const list = $("messages"), { path } = app.current;
    let at = list.firstChild;
    for (let index = views.get(app.current.id).first; index < path.length; index++) {
        const item = viewOf(path[index]);
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
function drawMore(chat, n = MORE_VIEWS) {
    const own = views.get(chat.id), box = $("scroll"), fromEnd = box.scrollHeight - box.scrollTop;
    if (chat !== app.current || own.first === 0)
        return;
    own.first = Math.max(0, own.first - n);
    placeMessages();
    box.scrollTop = box.scrollHeight - fromEnd;
    whenIdle(() => drawMore(chat));
}

/* How much of the model's context the conversation takes, as the last answer's usage tells. */
function showContext(chat) {
    const used = chat.path.findLast(message => message.stats?.total)?.stats.total ?? 0;
    const { context } = showModels(chat) ?? {}, share = context ? used / context : 0;
    $("context").hidden = !used;
    $("context").textContent = context ? word("contextOf")(count(used), count(context)) : word("contextUsed")(count(used));
    $("context").classList.toggle("nearly-full", share >= NEARLY_FULL);
    if (share >= NEARLY_FULL)
        $("context").append(" · ", word("nearlyFull"));
}

function showState() {
    const chat = app.current, busy = isAnswering(chat);
    $("send").hidden = busy;
    $("stop").hidden = !busy;
    $("messages").classList.toggle("answering", busy);
    $("title").textContent = chat.title || word("untitled");
    document.title = chat.title ? chat.title + " · tutti" : "tutti";
    showContext(chat);
}

export function toEnd() {
    $("scroll").scrollTop = $("scroll").scrollHeight;
}

export function show() {
    const chat = app.current, n = chat.path.length, recent = Math.max(0, n - FIRST_VIEWS);
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
    keepFocus($("messages"), placeMessages);
    showList();
    showState();
    if (app.sticks)
        toEnd();
}

export function openSide(open) {
    document.body.classList.toggle("side-open", open);
    $("shade").hidden = !open;
    $("open-side").setAttribute("aria-expanded", open);
    if (open)
        $("close-side").focus();
}

/* Shows a conversation. message: the id of one that is to be seen, with the variants that lead to it. */
export async function choose(chat, message) {
    app.current = chat;
    app.sticks = !message;
    openSide(false);
    if (app.chats.includes(chat))
        await loadMessages(chat);
    if (chat !== app.current)
        return;
    const found = chat.messages.find(other => other.id === message);
    if (found)
        pick(chat, found);
    show();
    dispatchEvent(new CustomEvent("chosen"));
    if (found) {
        drawMore(chat, Infinity);
        itemOf(found).scrollIntoView({ block: "start" });
        itemOf(found).focus();
    } else if (matchMedia("(hover: hover)").matches) {
        $("question").focus();
    }
    lookForWriters(chat);
}
