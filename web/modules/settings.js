/* The settings: of the conversation, of the browser, and light or dark. Below them, what the server says of itself. */
import { element } from "./element.js";
import { findModels, showModels } from "./models.js";
import { app, keep, OPTIONS, optionsOf } from "./state.js";
import { saveSettings, settings, updateChat } from "./store.js";
import { NUMBERS, readModels } from "./stream.js";
import { show } from "./screen.js";
import { count, gib, word } from "./words.js";

const $ = id => document.getElementById(id);
const TEXTS = ["system", "effort"];

function fill(options) {
    const { elements } = $("settings-form");
    for (const name of [...NUMBERS, ...TEXTS])
        elements[name].value = options[name] ?? "";
}

/* The device, and its memory if it has some of its own. */
function deviceRows({ type, id, name, memory_bytes: all, memory_used_bytes: used }) {
    if (!name)
        return [[word("device"), type === "cpu" ? word("processor") : type]];
    const card = `${name} (${id})`, memory = used ? word("memoryUsed")(gib(used), gib(all)) : word("memoryAll")(gib(all));
    return [[word("device"), type === "cuda+cpu" ? `${card} + ${word("processor")}` : card], [word("memory"), memory]];
}

/* What is known of the model of the conversation. */
function showFacts() {
    const model = showModels(app.current), rows = model ? [[word("model"), model.id]] : [];
    if (model?.context)
        rows.push([word("context"), word("contextTokens")(count(model.context))]);
    if (model?.device)
        rows.push(...deviceRows(model.device));
    $("facts").replaceChildren(...rows.flatMap(([name, value]) =>
        [element("dt", { textContent: name }), element("dd", { textContent: value })]));
}

/* Memory is used by others, too, and a model may have been loaded since. */
async function refreshFacts() {
    try {
        app.models = await readModels();
    } catch {
        /* what was known stays */
    }
    showFacts();
}

export function openSettings(error) {
    fill(optionsOf(app.current));
    showFacts();
    $("settings-form").elements.key.value = settings.key ?? "";
    $("settings-form").elements.all.checked = false;
    $("settings-error").textContent = error ?? "";
    $("settings-error").hidden = !error;
    if (!$("settings").open)
        $("settings").showModal();
    if (error)
        $("settings-form").elements.key.focus();
}

function readSettings() {
    const { elements } = $("settings-form"), { current } = app, options = { ...optionsOf(current) };
    for (const name of NUMBERS) {
        const input = elements[name];
        options[name] = input.value === "" || !input.validity.valid ? null : input.valueAsNumber;
    }
    options.system = elements.system.value.trim() || null;
    options.effort = elements.effort.value || null;
    current.options = options;
    settings.key = elements.key.value.trim();
    if (elements.all.checked)
        Object.assign(settings, options);
    saveSettings();
    if (app.chats.includes(current))
        keep(updateChat(current));
}

export function showTheme() {
    document.documentElement.dataset.theme = settings.theme;
    $("theme-name").textContent = word({ auto: "themeAuto", light: "themeLight", dark: "themeDark" }[settings.theme] ?? "themeAuto");
}

export function listenForSettings() {
    $("open-settings").addEventListener("click", () => {
        openSettings();
        refreshFacts();
    });
    $("close-settings").addEventListener("click", () => $("settings").close());
    $("settings-form").addEventListener("submit", async () => {
        readSettings();
        await findModels();
        show();
    });
    $("reset-settings").addEventListener("click", () => fill(Object.fromEntries(OPTIONS.map(name => [name, null]))));
    $("theme").addEventListener("click", () => {
        settings.theme = { auto: "light", light: "dark", dark: "auto" }[settings.theme] ?? "auto";
        saveSettings();
        showTheme();
    });
}
