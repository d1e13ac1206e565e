/* Messages as elements of the page. All text of models and users goes through textContent or DOMPurify. */
import { word } from "./words.js";

const ICONS = {
    copy: "M9 9h10v10H9zM5 15V5h10",
    edit: "M5 19l1-4L16 5l3 3L9 18z",
    again: "M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5",
    remove: "M6 8h12M10 8V5h4v3M8 8l1 11h6l1-11",
    earlier: "M14 7l-5 5 5 5",
    later: "M10 7l5 5-5 5",
};

export function element(tag, properties = {}, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
}

function icon(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("d", ICONS[name]);
    svg.append(path);
    return svg;
}

export function iconButton(name, label, act) {
    const button = element("button", { type: "button", className: "icon small " + name, title: label }, icon(name));
    button.setAttribute("aria-label", label);
    button.addEventListener("click", act);
    return button;
}

/* The clipboard API exists only on https and localhost; elsewhere a selection is copied. */
async function copyText(text) {
    if (navigator.clipboard)
        return navigator.clipboard.writeText(text);
    const area = element("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
}

export function copyButton(text) {
    const button = iconButton("copy", word("copy"), async () => {
        await copyText(text());
        button.classList.add("ok");
        button.title = word("copied");
        setTimeout(() => {
            button.classList.remove("ok");
            button.title = word("copy");
        }, 1500);
    });
    return button;
}

/* ---- Markdown ---- */

/* DOMPurify 2.4.1 as Debian 12 patches it reads this undeclared name once, in a check that is to be false. */
globalThis.shadowNode ??= { __depth: 0 };

const PURIFY = {
    RETURN_DOM_FRAGMENT: true,
    USE_PROFILES: { html: true },
    /* Images and forms would let an answer call or imitate others. */
    FORBID_TAGS: ["img", "picture", "video", "audio", "source", "style", "form", "input", "textarea", "select", "button",
                  "iframe", "object", "embed"],
    FORBID_ATTR: ["style", "class", "id", "name"],
};

export function markdown(text) {
    if (!DOMPurify.isSupported)
        return element("div", { className: "plain-text", textContent: text });
    const part = DOMPurify.sanitize(marked.parse(text, { breaks: true, gfm: true }), PURIFY);
    for (const link of part.querySelectorAll("a")) {
        link.target = "_blank";
        link.rel = "noopener noreferrer nofollow";
    }
    for (const block of part.querySelectorAll("pre")) {
        const frame = element("div", { className: "code" });
        block.replaceWith(frame);
        block.tabIndex = 0;
        frame.append(block, copyButton(() => block.textContent.replace(/\n$/, "")));
    }
    for (const table of part.querySelectorAll("table")) {
        const frame = element("div", { className: "table" });
        table.replaceWith(frame);
        frame.append(table);
    }
    return part;
}

/* ---- messages ---- */

export function statsText(stats) {
    const parts = [];
    if (stats.tokens)
        parts.push(`${stats.tokens} ${word("tokens")}`);
    if (stats.rate)
        parts.push(`${stats.rate.toFixed(1)} ${word("tokens")}/s`);
    if (stats.first)
        parts.push(`${word("firstAfter")} ${stats.first.toFixed(2)} s`);
    return parts.join(" · ");
}

/* The shown version of an answer; undefined: none yet. */
export function versionOf(message) {
    return message.versions[message.shown];
}

/* The text of a message for display, copying and sending. */
export function textOf(message) {
    return message.role === "user" ? message.text : versionOf(message)?.text ?? "";
}

/* Below the answer: the error, and a button to try again. */
function noteBox(className, text, again) {
    const box = element("div", { className }, element("span", { textContent: text }));
    if (again) {
        const button = element("button", { type: "button", textContent: word("retry") });
        button.addEventListener("click", again);
        box.append(button);
    }
    return box;
}

/* Steps through the versions of an answer. */
function versionsView(message, show) {
    const { shown, versions } = message;
    const earlier = iconButton("earlier", word("earlier"), () => show(shown - 1));
    const later = iconButton("later", word("later"), () => show(shown + 1));
    earlier.disabled = shown <= 0;
    later.disabled = shown >= versions.length - 1;
    return element("span", { className: "versions" }, earlier,
                   element("span", { textContent: `${shown + 1}/${versions.length}` }), later);
}

/* The element of a message. acts: {edit, again, remove} without arguments, {show} of a version's index; absent ones have no
 * button. */
export function messageView(message, acts) {
    const isUser = message.role === "user";
    const body = element("div", { className: "body", dir: "auto" });
    const foot = element("div", { className: "foot" });
    const item = element("li", { className: "message " + message.role },
                         element("span", { className: "unseen", textContent: word(isUser ? "you" : "model") }), body,
                         foot);
    if (isUser)
        body.textContent = message.text;
    else
        fillAnswer(item, message);
    foot.append(copyButton(() => textOf(message)));
    if (acts.edit)
        foot.append(iconButton("edit", word("edit"), acts.edit));
    if (acts.again)
        foot.append(iconButton("again", word("again"), acts.again));
    if (acts.remove)
        foot.append(iconButton("remove", word("remove"), acts.remove));
    if (isUser)
        return item;
    if (message.versions.length > 1)
        foot.append(versionsView(message, acts.show));
    foot.append(element("span", { className: "stats", textContent: answerNote(message) }));
    if (message.error) {
        const box = noteBox("error", message.error, acts.again);
        box.setAttribute("role", "alert");
        item.append(box);
    } else if (versionOf(message)?.interrupted && !message.busy) {
        item.append(noteBox("broke-off", word("brokeOff"), acts.again));
    }
    return item;
}

function answerNote(message) {
    const version = versionOf(message), parts = version?.stats ? [statsText(version.stats)] : [];
    for (const name of ["stopped", "cut", "interrupted"])
        if (version?.[name])
            parts.push(word(name));
    return parts.filter(Boolean).join(" · ");
}

/* Renders an answer, complete or partial. An earlier version stays until the next one begins. */
export function fillAnswer(item, message) {
    const body = item.querySelector(".body"), text = textOf(message), isBusy = Boolean(message.busy);
    const waits = isBusy && message.busy.version === null;
    body.replaceChildren();
    if (text)
        body.append(markdown(text));
    if (waits)
        body.append(element("span", { className: "dots" }, element("i"), element("i"), element("i")));
    item.classList.toggle("busy", isBusy);
    item.classList.toggle("old", waits && Boolean(text));
    item.setAttribute("aria-busy", isBusy);
    const stats = item.querySelector(".stats");
    if (stats)
        stats.textContent = waits ? "" : answerNote(message);
}
