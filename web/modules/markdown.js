/* Markdown as elements, block by block: while an answer grows only its last block is parsed again, and the elements in place are
 * changed instead of being replaced, so selected text stays selected. All of it goes through DOMPurify. */
import { appendCode } from "./highlight.js";
import { drawMath, mathExtensions } from "./math.js";
import { copyButton, element } from "./element.js";

const MAX_BLOCK = 10000; /* characters; a longer block is shown as plain text, because parsing can take quadratic time */
const MAX_DEFINITIONS = 4000;

/* DOMPurify 2.4.1 as Debian 12 patches it reads this undeclared name once, in a check that is to be false. */
globalThis.shadowNode ??= { __depth: 0 };

const PURIFY = {
    RETURN_DOM_FRAGMENT: true,
    USE_PROFILES: { html: true },
    /* Images and forms would let an answer call or imitate others. */
    FORBID_TAGS: ["img", "picture", "video", "audio", "source", "style", "form", "input", "textarea", "select", "button",
                  "iframe", "object", "embed", "dialog"],
    FORBID_ATTR: ["style", "class", "id", "name", "tabindex", "role", "accesskey", "contenteditable", "popover", "title"],
};

const escapeHtml = text => text.replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);

marked.use({
    extensions: mathExtensions,
    renderer: { code: (code, info) => `<pre data-code="${escapeHtml(info ?? "")}">${escapeHtml(code)}</pre>` },
});

/* ---- blocks ---- */

const LIST = /^ {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)/, FENCE = /^\s*(`{3,}|~{3,})/;

/* Whether the line ends code that began with this fence. */
function isFence(line, fence) {
    return line.length >= fence.length && line === fence[0].repeat(line.length);
}

/* What ends the code or the formula that begins with this line; null: neither does. */
function closerOf(line) {
    const text = line.trim(), fence = FENCE.exec(line)?.[1];
    if (fence && !(fence[0] === "`" && text.slice(fence.length).includes("`")))
        return other => isFence(other.trim(), fence);
    if (text.startsWith("$$") && !text.slice(2).includes("$$"))
        return other => other.includes("$$");
    if (text.startsWith("\\[") && !text.includes("\\]"))
        return other => other.includes("\\]");
    return null;
}

/* Where the blocks of the text after from end: at blank lines, and around code outside of lists. The last end is the text's. A
 * block of HTML lasts until the end, because its elements may. */
function blockEnds(text, from) {
    const ends = [];
    let closes = null, isList = false, isHtml = false, isBlank = false, start = from;
    for (let at = from; at < text.length;) {
        const newline = text.indexOf("\n", at), end = newline < 0 ? text.length : newline + 1, line = text.slice(at, end);
        const isEmpty = !line.trim(), continues = isEmpty || isHtml || isList && (/^\s/.test(line) || LIST.test(line));
        if (!closes && at > start && !continues && (isBlank || !isList && closerOf(line))) {
            ends.push(start = at);
            isList = isHtml = false;
        }
        if (closes) {
            if (closes(line))
                closes = null;
            isBlank = !closes && !isList;
        } else {
            closes = closerOf(line);
            isList ||= !closes && LIST.test(line);
            isHtml ||= at === start && /^<[A-Za-z!]/.test(line);
            isBlank = isEmpty;
        }
        at = end;
    }
    if (text.length > start)
        ends.push(text.length);
    return ends;
}

/* Definitions of links, which other blocks refer to. */
function definitionsOf(text) {
    const lines = text.includes("]:") ? text.match(/^ {0,3}\[[^\]\n]{1,100}\]:[^\n]{1,400}$/gm) ?? [] : [];
    return lines.join("\n").slice(0, MAX_DEFINITIONS);
}

/* ---- elements ---- */

function codeFrame(code, language) {
    const inner = element("code"), block = element("pre", { tabIndex: 0 }, inner);
    const name = /^[\w+#.-]{1,20}/.exec(language)?.[0] ?? "";
    appendCode(inner, code, name);
    const frame = element("div", { className: "code" }, element("span", { className: "language", textContent: name }), block);
    frame.append(copyButton(() => frame.querySelector("pre").textContent.replace(/\n$/, "")));
    return frame;
}

/* A block that is code from its first line on, of any length. */
function fencedCode(source) {
    const match = /^ {0,3}(`{3,}|~{3,})([^\n]*)(?:\n|$)/.exec(source);
    if (!match || match[1][0] === "`" && match[2].includes("`"))
        return null;
    const lines = source.slice(match[0].length).trimEnd().split("\n");
    if (isFence(lines.at(-1).trim(), match[1]))
        lines.pop();
    return codeFrame(lines.join("\n") + "\n", match[2].trim());
}

function plainText(source) {
    return element("p", { className: "plain-text", textContent: source });
}

function blockPart(source, definitions) {
    const code = fencedCode(source);
    if (code)
        return code;
    if (source.length > MAX_BLOCK || !DOMPurify.isSupported)
        return plainText(source);
    let part;
    try {
        const all = definitions && source.includes("[") ? `${source}\n\n${definitions}` : source;
        part = DOMPurify.sanitize(marked.parse(all, { breaks: true, gfm: true }), PURIFY);
    } catch {
        return plainText(source); /* nested deeper than the parser's stack */
    }
    for (const link of part.querySelectorAll("a")) {
        link.target = "_blank";
        link.rel = "noopener noreferrer nofollow";
    }
    for (const block of part.querySelectorAll("pre"))
        block.replaceWith(codeFrame(block.textContent, block.dataset.code ?? ""));
    for (const table of part.querySelectorAll("table")) {
        const frame = element("div", { className: "table", tabIndex: 0 });
        table.replaceWith(frame);
        frame.append(table);
    }
    drawMath(part);
    return part;
}

function hasSameAttributes(a, b) {
    return a.attributes.length === b.attributes.length &&
           [...a.attributes].every(({ name, value }) => b.getAttribute(name) === value);
}

/* Makes the children of old equal to those of fresh. Nodes that are equal, and text that only grows, are kept. The depth is bounded
 * by the browser's HTML parser. */
function morph(old, fresh) {
    let at = old.firstChild;
    for (const node of [...fresh.childNodes]) {
        const next = at?.nextSibling ?? null;
        const isAlike = at && at.nodeType === node.nodeType && at.nodeName === node.nodeName;
        if (isAlike && node.nodeType === Node.TEXT_NODE) {
            if (node.data.startsWith(at.data))
                at.appendData(node.data.slice(at.data.length));
            else
                at.data = node.data;
        } else if (isAlike && node.nodeType === Node.ELEMENT_NODE && hasSameAttributes(at, node)) {
            if (node.nodeName !== "BUTTON") /* whose label says what it has done */
                morph(at, node);
        } else if (at) {
            at.replaceWith(node);
        } else {
            old.append(node);
        }
        at = next;
    }
    while (at) {
        const next = at.nextSibling;
        at.remove();
        at = next;
    }
}

/* body -> {text, definitions, blocks: [{source, end, node}]}: what it shows */
const states = new WeakMap();

/* Makes body show the text. If the text begins with the one shown, only its last blocks and what follows them are read: the last
 * line may have been incomplete, and then may belong to the block before it. */
export function fillMarkdown(body, text) {
    const old = states.get(body) ?? { text: "", definitions: "", blocks: [] };
    const definitions = definitionsOf(text), isLonger = text.startsWith(old.text);
    const kept = isLonger ? Math.max(0, old.blocks.length - 2) : 0, blocks = old.blocks.slice(0, kept);
    let start = kept ? blocks[kept - 1].end : 0;
    for (const end of blockEnds(text, start)) {
        const source = text.slice(start, end), known = old.blocks[blocks.length];
        const node = known?.node ?? body.appendChild(element("div", { className: "block" }));
        if (known?.source !== source)
            morph(node, element("div", {}, blockPart(source, definitions)));
        blocks.push({ source, end, node });
        start = end;
    }
    for (const { node } of old.blocks.slice(blocks.length))
        node.remove();
    if (definitions !== old.definitions)
        for (const { node, source } of blocks)
            if (source.includes("["))
                morph(node, element("div", {}, blockPart(source, definitions)));
    states.set(body, { text, definitions, blocks });
}
