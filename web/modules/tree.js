/* The tree of a conversation's messages. Each message names its parent; messages with the same parent are variants of each
 * other: edited questions, or answers given again. chat.picks names the variant that is shown below a parent; without one
 * the latest is shown. */

const ROOT = "";

/* Sets chat.path, the shown messages from the first to the last, chat.children, the messages below each parent, and
 * chat.parents, the parent of each message. Called after each change of chat.messages or chat.picks. A message whose parent was deleted counts as a first message: nothing that is stored is ever invisible. */
export function arrange(chat) {
    const parents = new Map(), children = new Map(), path = [];
    for (const message of chat.messages) {
        const parent = parents.has(message.parent) ? message.parent : ROOT;
        parents.set(message.id, parent); /* parents precede their children: there are no cycles */
        if (!children.has(parent))
            children.set(parent, []);
        children.get(parent).push(message);
    }
    for (let at = ROOT, below; (below = children.get(at)); at = path.at(-1).id)
        path.push(below.find(message => message.id === chat.picks?.[at]) ?? below.at(-1));
    chat.parents = parents;
    chat.children = children;
    chat.path = path;
}

/* The message and its variants, in the order of their creation. */
export function variantsOf(chat, message) {
    return chat.children.get(chat.parents.get(message.id)) ?? [message];
}

/* Shows this message, and with it all of its ancestors. */
export function pick(chat, message) {
    const byId = new Map(chat.messages.map(other => [other.id, other]));
    chat.picks = { ...chat.picks };
    for (let at = message; at; at = byId.get(at.parent))
        chat.picks[byId.has(at.parent) ? at.parent : ROOT] = at.id;
    arrange(chat);
}

/* The message and all messages below it. */
export function subtreeOf(chat, message) {
    const inside = new Set([message.id]);
    for (const other of chat.messages)
        if (inside.has(other.parent))
            inside.add(other.id);
    return chat.messages.filter(other => inside.has(other.id));
}
