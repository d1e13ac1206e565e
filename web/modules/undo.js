/* What was deleted last can be brought back, as long as the page is open. */
import { keep } from "./state.js";

const deleted = []; /* {label, undo}, the last one at the end */
const box = document.getElementById("undo-box"), label = document.getElementById("undo-label");

function showLast() {
    box.hidden = !deleted.length;
    label.textContent = deleted.at(-1)?.label ?? "";
}

/* Says what was deleted, and offers to undo it: the last deletion first. */
export function offerUndo(text, undo) {
    deleted.push({ label: text, undo });
    showLast();
    document.getElementById("undo").focus();
}

export function listenForUndo() {
    const leave = () => document.getElementById("question").focus();
    document.getElementById("undo").addEventListener("click", () => {
        const last = deleted.pop();
        showLast();
        leave();
        keep(last.undo());
    });
    document.getElementById("dismiss").addEventListener("click", () => {
        deleted.length = 0;
        showLast();
        leave();
    });
}
