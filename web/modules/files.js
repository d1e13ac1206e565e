/* Text files attached to the next question: chosen, dropped, or pasted. */
import { element, iconButton } from "./element.js";
import { say } from "./state.js";
import { sizeText } from "./view.js";
import { word } from "./words.js";

const MAX_FILES = 16, MAX_BYTES = 1 << 20;

const $ = id => document.getElementById(id);
let attached = []; /* [{name, text}] */

function showFiles(problem = "") {
    $("attached").replaceChildren(...attached.map((file, index) => element("li", {},
        element("span", { textContent: `${file.name} · ${sizeText(file.text.length)}` }),
        iconButton("close", word("detach")(file.name), () => {
            attached = attached.filter(other => other !== file);
            showFiles();
            ($("attached").querySelectorAll("button")[index] ?? $("question")).focus();
        }))));
    $("attached").hidden = !attached.length;
    $("file-error").textContent = problem;
    $("file-error").hidden = !problem;
}

/* Attaches what is UTF-8 text, and says what was not and why. */
export async function attach(files) {
    const problems = [];
    for (const file of files) {
        if (attached.length >= MAX_FILES)
            problems.push(word("tooManyFiles")(file.name, MAX_FILES));
        else if (file.size > MAX_BYTES)
            problems.push(word("fileTooLarge")(file.name, sizeText(file.size), sizeText(MAX_BYTES)));
        else
            await read(file).then(text => attached.push({ name: file.name, text }), () => problems.push(word("notText")(file.name)));
    }
    showFiles(problems.join(" "));
    if (!problems.length)
        say(word("attachedN")(attached.length));
}

async function read(file) {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0"))
        throw new Error("binary");
    return text;
}

/* The attached files. */
export function currentFiles() {
    return attached;
}

export function detachAll() {
    attached = [];
    showFiles();
}

export function listenForFiles() {
    $("attach").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", async () => {
        await attach([...$("file").files]);
        $("file").value = "";
        $("question").focus();
    });
    $("question").addEventListener("paste", event => {
        const files = [...event.clipboardData.files];
        if (files.length) {
            event.preventDefault();
            attach(files);
        }
    });
    document.addEventListener("dragover", event => event.dataTransfer?.types.includes("Files") && event.preventDefault());
    document.addEventListener("drop", event => {
        if (!event.dataTransfer?.files.length)
            return;
        event.preventDefault();
        attach([...event.dataTransfer.files]);
    });
}
