/* Messages as elements of the page. All text of models and users goes through textContent or DOMPurify. */
import { copyButton, element, iconButton } from "./element.js";
import { fillMarkdown } from "./markdown.js";
import { count, word } from "./words.js";

const openThinking = new Set(); /* ids of the answers whose reasoning is unfolded */

export function statsText(stats) {
    const parts = [];
    if (stats.tokens)
        parts.push(`${count(stats.tokens)} ${word(stats.tokens === 1 ? "token" : "tokens")}`);
    if (stats.rate)
        parts.push(`${stats.rate.toFixed(stats.rate < 100 ? 1 : 0)} ${word("tokens")}/s`);
    if (stats.first)
        parts.push(`${word("firstAfter")} ${stats.first.toFixed(2)} s`);
    return parts.join(" · ");
}

export function sizeText(n) {
    return n < 1000 ? `${n} B` : n < 1e6 ? `${(n / 1000).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`;
}

/* Below the answer: the error, and a button to try again. */
function noteBox(className, text, again) {
    const box = element("div", { className }, element("span", { textContent: text }));
    if (again) {
        const button = element("button", { type: "button", textContent: word("retry") });
        button.dataset.kind = "retry";
        button.addEventListener("click", again);
        box.append(button);
    }
    return box;
}

/* Steps through the variants of a message. */
function variantsView(message, variants, show) {
    const shown = variants.indexOf(message);
    const earlier = iconButton("earlier", word("earlier"), () => show(variants[shown - 1]));
    const later = iconButton("later", word("later"), () => show(variants[shown + 1]));
    earlier.disabled = shown <= 0;
    later.disabled = shown >= variants.length - 1;
    return element("span", { className: "versions" }, earlier,
                   element("span", { textContent: `${shown + 1}/${variants.length}` }), later);
}

function fileView(file) {
    const head = element("summary", { textContent: `${file.name} · ${sizeText(file.text.length)}` });
    const text = element("pre", { tabIndex: 0 }), frame = element("details", { className: "file" }, head, text);
    frame.addEventListener("toggle", () => { text.textContent = frame.open ? file.text : ""; });
    return frame;
}

/* The body of a question. */
export function fillQuestion(body, message) {
    body.replaceChildren(...(message.files ?? []).map(fileView), element("div", { className: "words", textContent: message.text }));
}

/* The element of a message. variants: the message and its variants. acts: {edit, again, remove, branch} without arguments, {show} of
 * a variant; absent ones have no button. known: the message's element if there is one. It is updated: what is selected in it stays
 * selected. */
export function messageView(message, variants, acts, known = null) {
    const isUser = message.role === "user";
    const item = known ?? element("li", { className: "message " + message.role, tabIndex: -1 },
                                  element("span", { className: "unseen", textContent: word(isUser ? "you" : "model") }),
                                  element("div", { className: "body", dir: "auto" }));
    const body = item.querySelector(".body"), foot = element("div", { className: "foot" });
    item.dataset.id = message.id;
    while (body.nextSibling)
        body.nextSibling.remove();
    item.append(foot);
    if (isUser)
        fillQuestion(body, message);
    else
        fillAnswer(item, message);
    foot.append(copyButton(() => message.text));
    for (const name of ["edit", "again", "remove"])
        if (acts[name])
            foot.append(iconButton(name, word(name), acts[name]));
    if (variants.length > 1)
        foot.append(variantsView(message, variants, acts.show));
    if (isUser)
        return item;
    foot.append(element("span", { className: "stats", textContent: answerNote(message) }));
    if (message.error) {
        const box = noteBox("error", message.error, acts.again);
        box.setAttribute("role", "alert");
        item.append(box);
    } else if (message.interrupted && !message.busy) {
        item.append(noteBox("broke-off", word("brokeOff"), acts.again));
    }
    return item;
}

function answerNote(message) {
    const parts = message.stats ? [statsText(message.stats)] : [];
    for (const name of ["stopped", "cut", "interrupted"])
        if (message[name])
            parts.push(word(name));
    return parts.filter(Boolean).join(" · ");
}

/* The reasoning, folded until the user unfolds it. Text that grows is appended, so that a selection stays. */
function fillThinking(item, message) {
    let frame = item.querySelector(".thinking");
    if (!message.reasoning)
        return frame?.remove();
    if (!frame) {
        frame = element("details", { className: "thinking", open: openThinking.has(message.id) }, element("summary"),
                        element("div", { className: "plain-text", dir: "auto" }, ""));
        frame.addEventListener("toggle", () => openThinking[frame.open ? "add" : "delete"](message.id));
        item.querySelector(".body").before(frame);
    }
    const [head, text] = frame.children, isThinking = message.busy && !message.text;
    head.textContent = isThinking ? word("thinking") : word("thought") + (message.thought ? ` (${message.thought.toFixed(1)} s)` : "");
    const node = text.firstChild ?? text.appendChild(document.createTextNode(""));
    if (message.reasoning.startsWith(node.data))
        node.appendData(message.reasoning.slice(node.data.length));
    else
        node.data = message.reasoning;
}

/* Renders an answer, complete or partial. */
export function fillAnswer(item, message) {
    const body = item.querySelector(".body"), isBusy = Boolean(message.busy), waits = isBusy && !message.text && !message.reasoning;
    body.querySelector(".dots")?.remove();
    fillThinking(item, message);
    fillMarkdown(body, message.text);
    if (waits)
        body.append(element("span", { className: "dots" }, element("i"), element("i"), element("i")));
    item.classList.toggle("busy", isBusy);
    item.setAttribute("aria-busy", isBusy);
    const stats = item.querySelector(".stats");
    if (stats)
        stats.textContent = waits ? "" : answerNote(message);
}
