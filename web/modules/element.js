/* Elements, icons and buttons. */
import { word } from "./words.js";

const ICONS = {
    copy: "M9 9h10v10H9zM5 15V5h10",
    edit: "M5 19l1-4L16 5l3 3L9 18z",
    again: "M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5",
    remove: "M6 8h12M10 8V5h4v3M8 8l1 11h6l1-11",
    earlier: "M14 7l-5 5 5 5",
    later: "M10 7l5 5-5 5",
    close: "M6 6l12 12M18 6L6 18",
    file: "M7 4h7l4 4v12H7zM14 4v4h4",
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
    button.dataset.kind = name;
    button.addEventListener("click", act);
    return button;
}

/* Draws again, and keeps the focus on the button of the same kind in the same list item; if the item is another one, on that in
 * its place; if the button is disabled, on its neighbour. */
export function keepFocus(box, draw) {
    const had = document.activeElement, item = box.contains(had) && had !== box ? had.closest("[data-id]") : null;
    const id = item?.dataset.id, kind = had.dataset?.kind, at = [...box.children].indexOf(item);
    draw();
    if (!item || had.isConnected && document.activeElement === had)
        return;
    const now = [...box.children].find(child => child.dataset.id === id) ?? box.children[at];
    const same = kind ? now?.querySelector(`[data-kind="${kind}"]`) : null;
    const enabled = same?.disabled ? same.parentNode.querySelector("button:not(:disabled)") : same;
    (enabled ?? now?.querySelector("button:not(:disabled)"))?.focus();
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
        document.getElementById("status").textContent = word("copied");
        setTimeout(() => {
            button.classList.remove("ok");
            button.title = word("copy");
        }, 1500);
    });
    return button;
}
