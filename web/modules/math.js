/* Formulas: $…$, $$…$$, \(…\) and \[…\] in Markdown, drawn by KaTeX, which is loaded with the first formula. */
const MAX_FORMULA = 2000, MAX_FORMULAS = 300; /* longer ones, and more of them in a block, stay as they are written */
/* Macros could grow a short formula without limit. */
const DEFINES = /\\(?:[gex]?def|let|futurelet|global|long|(?:re)?newcommand|providecommand)(?![A-Za-z])/;
const OPTIONS = { throwOnError: true, trust: false, strict: "ignore", maxExpand: 100, maxSize: 20 };

const escapeHtml = text => text.replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);

function extension(name, level, start, patterns) {
    return {
        name, level,
        start(source) {
            const at = source.search(start);
            return at < 0 ? undefined : at;
        },
        tokenizer(source) {
            for (const [pattern, isDisplayed] of patterns) {
                const match = pattern.exec(source);
                if (match)
                    return { type: name, raw: match[0], text: match[1], isDisplayed };
            }
            return undefined;
        },
        renderer(token) {
            return `<span data-math="${token.isDisplayed ? "block" : "inline"}">${escapeHtml(token.raw.trim())}</span>`;
        },
    };
}

/* For marked.use(). A dollar before a digit or after a space is money. */
export const mathExtensions = [
    extension("blockMath", "block", /\$\$|\\\[/,
              [[/^ {0,3}\$\$([^$]{1,2000})\$\$ *(?:\n|$)/, true], [/^ {0,3}\\\[([^]{1,2000}?)\\\] *(?:\n|$)/, true]]),
    extension("inlineMath", "inline", /\$|\\[([]/,
              [[/^\$\$([^$]{1,2000})\$\$/, true], [/^\\\[([^]{1,2000}?)\\\]/, true], [/^\\\(([^]{1,2000}?)\\\)/, false],
               [/^\$(?![\s$])((?:\\[^]|[^$\\\n`]){1,500}?)(?<!\s)\$(?!\d)/, false]]),
];

let loading = null;

export function loadMath() {
    loading ??= new Promise((resolve, reject) => {
        const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "/katex/katex.min.css" });
        const script = Object.assign(document.createElement("script"), { src: "/katex/katex.min.js" });
        script.addEventListener("load", resolve);
        script.addEventListener("error", () => {
            loading = null; /* tried again with the next formula */
            reject(new Error("KaTeX cannot be loaded"));
        });
        document.head.append(style, script);
    });
    return loading;
}

function draw(node) {
    const source = node.textContent, tex = source.replace(/^(?:\$\$?|\\[([])|(?:\$\$?|\\[)\]])$/g, "");
    if (source.length > MAX_FORMULA || DEFINES.test(tex) || node.querySelector(".katex"))
        return;
    try {
        katex.render(tex, node, { ...OPTIONS, displayMode: node.dataset.math === "block" });
    } catch {
        node.textContent = source; /* not TeX that KaTeX knows: as it was written */
    }
}

/* Draws the formulas in part. If KaTeX is not there yet, the source is shown until then. */
export function drawMath(part) {
    for (const node of [...part.querySelectorAll("[data-math]")].slice(0, MAX_FORMULAS)) {
        if (node.dataset.math === "block")
            node.tabIndex = 0; /* a wide one is scrolled with the keyboard */
        if (globalThis.katex)
            draw(node);
        else
            loadMath().then(() => draw(node), () => {}); /* without KaTeX the source stays */
    }
}
