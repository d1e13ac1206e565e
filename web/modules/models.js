/* The choice of the model or adapter that answers a conversation. */
import { app, keep, optionsOf, say } from "./state.js";
import { saveSettings, settings, updateChat } from "./store.js";
import { errorText, readModels } from "./stream.js";
import { element } from "./element.js";
import { openSettings } from "./settings.js";
import { word } from "./words.js";

const select = document.getElementById("model");

/* Shows the models, and the conversation's as chosen: its own, or the first. Returns that model; undefined: unknown yet. */
export function showModels(chat) {
    const { models } = app, name = optionsOf(chat).model, chosen = name ? models.find(model => model.id === name) : models[0];
    const rows = models.map(({ id }) => [id, id]);
    if (name && models.length && !chosen)
        rows.push([name, word("notServed")(name)]); /* the server will say so, too */
    const key = JSON.stringify(rows);
    if (select.dataset.rows !== key) {
        select.dataset.rows = key;
        select.replaceChildren(...rows.map(([value, textContent]) => element("option", { value, textContent })));
    }
    if (rows.length)
        select.value = name ?? models[0].id;
    select.hidden = !rows.length;
    return chosen;
}

/* Asks the server for its models. */
export async function findModels() {
    try {
        app.models = await readModels();
    } catch (error) {
        if (error.status === 401)
            openSettings(errorText(error));
        else
            say(errorText(error));
    }
}

/* The choice is the conversation's, and that of new conversations. */
export function followChoice(show) {
    select.addEventListener("change", () => {
        const { current } = app;
        current.options = { ...optionsOf(current), model: select.value };
        settings.model = select.value;
        saveSettings();
        show();
        if (app.chats.includes(current))
            keep(updateChat(current));
    });
}
