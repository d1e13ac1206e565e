/* Export to files, and import from them. */
import { element } from "./element.js";
import { fromFile, toJson, toMarkdown } from "./formats.js";
import { choose } from "./screen.js";
import { addChat, app, chatOf, keep, loadChats, loadMessages, unkept } from "./state.js";
import { restore } from "./store.js";
import { word } from "./words.js";

const MAX_BYTES = 64 << 20;

const $ = id => document.getElementById(id);

function save(name, type, text) {
    const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    URL.revokeObjectURL(link.href);
}

function fileName(chat, ending) {
    const name = (chat.title || "conversation").replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 60) || "conversation";
    return `${name}.${ending}`;
}

async function saveAll() {
    for (const chat of app.chats)
        await loadMessages(chat);
    save("tutti-conversations.json", "application/json", toJson(app.chats.map(chat => ({ chat, messages: chat.messages }))));
}

function tellProblem(text) {
    $("exchange-error").textContent = text;
    $("exchange-error").hidden = !text;
}

/* Imports files; the conversation of the last one is shown. */
async function importFiles(files) {
    const problems = [];
    let last = null;
    for (const file of files) {
        try {
            if (file.size > MAX_BYTES)
                throw new Error(word("importTooLarge"));
            const all = fromFile(await file.text());
            if (!await keep(restore(all)))
                for (const { chat, messages } of all) {
                    addChat(Object.assign(chat, { messages }));
                    unkept.add(chat);
                }
            last = all[0]?.chat ?? last;
        } catch (error) {
            problems.push(word("notImported")(file.name, error.message));
        }
    }
    tellProblem(problems.join(" "));
    await loadChats();
    if (last)
        await choose(chatOf(last.id));
    if (!problems.length)
        $("exchange").close();
}

export function listenForExchange() {
    $("open-exchange").addEventListener("click", () => {
        const isEmpty = !app.current.messages.length;
        $("save-markdown").disabled = $("save-json").disabled = isEmpty;
        $("save-all").disabled = !app.chats.length;
        tellProblem("");
        $("exchange").showModal();
    });
    $("close-exchange").addEventListener("click", () => $("exchange").close());
    $("save-markdown").addEventListener("click", () => {
        const { current } = app;
        save(fileName(current, "md"), "text/markdown", toMarkdown(current, current.path));
    });
    $("save-json").addEventListener("click", () => {
        const { current } = app;
        save(fileName(current, "json"), "application/json", toJson([{ chat: current, messages: current.messages }]));
    });
    $("save-all").addEventListener("click", saveAll);
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", async () => {
        await importFiles([...$("import-file").files]);
        $("import-file").value = "";
    });
}
