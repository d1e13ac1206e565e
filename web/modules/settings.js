/* The settings: of the conversation, of the browser, and light or dark. */
import { findModels } from "./models.js";
import { app, keep, OPTIONS, optionsOf } from "./state.js";
import { saveSettings, settings, updateChat } from "./store.js";
import { NUMBERS } from "./stream.js";
import { show } from "./screen.js";
import { word } from "./words.js";

const $ = id => document.getElementById(id);
const TEXTS = ["system", "effort"];

function fill(options) {
    const { elements } = $("settings-form");
    for (const name of [...NUMBERS, ...TEXTS])
        elements[name].value = options[name] ?? "";
}

export function openSettings(error) {
    fill(optionsOf(app.current));
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
    $("open-settings").addEventListener("click", () => openSettings());
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
