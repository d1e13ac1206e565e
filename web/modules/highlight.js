/* Colours code: the comments, strings, numbers and keywords of a language, found by one regular expression in one pass. Each of
 * its alternatives consumes what it has looked at, so the time is linear in the code's length. */
const MAX_CODE = 100000; /* longer code is not coloured */

const C_STYLE = { line: "//", block: ["/*", "*/"], quotes: "\"'" };
const HASH_STYLE = { line: "#", quotes: "\"'" };

const KEYWORDS = {
    c: "auto break case char const continue default do double else enum extern float for goto if inline int long register restrict " +
       "return short signed sizeof static struct switch typedef union unsigned void volatile while bool true false NULL " +
       "class delete new namespace operator private protected public template this throw try catch using virtual nullptr constexpr",
    js: "async await break case catch class const continue debugger default delete do else export extends false finally for from " +
        "function if import in instanceof interface let new null of return static super switch this throw true try type typeof " +
        "undefined var void while yield implements enum readonly as",
    python: "and as assert async await break class continue def del elif else except False finally for from global if import in is " +
            "lambda None nonlocal not or pass raise return True try while with yield match case self",
    shell: "if then else elif fi for while until do done case esac in function return export local echo exit set unset source cd",
    java: "abstract boolean break byte case catch char class const continue default do double else enum extends final finally float " +
          "for if implements import instanceof int interface long native new null package private protected public return short " +
          "static super switch this throw throws true false try void volatile while var val fun when object override string using " +
          "namespace async await get set internal sealed record",
    go: "break case chan const continue default defer else fallthrough for func go goto if import interface map nil package range " +
        "return select struct switch true false type var string int error bool byte",
    rust: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub " +
          "ref return self Self static struct super trait true type unsafe use where while",
    sql: "select from where insert into values update set delete create table drop alter index join left right inner outer on group " +
         "by order having limit offset as and or not null is in like between union all distinct primary key foreign references " +
         "default case when then else end begin commit count sum avg min max",
    ruby: "alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo rescue retry " +
          "return self super then true unless until when while yield require puts local function repeat",
    data: "true false null yes no on off",
    css: "important media import keyframes supports",
};

const LANGUAGES = [
    [["c", "cpp", "c++", "h", "hpp", "cc", "objc", "cuda"], { ...C_STYLE, keywords: "c" }],
    [["js", "javascript", "jsx", "ts", "typescript", "tsx", "mjs"], { ...C_STYLE, quotes: "\"'`", keywords: "js" }],
    [["java", "kotlin", "kt", "cs", "csharp", "scala", "swift", "dart", "php"], { ...C_STYLE, keywords: "java" }],
    [["go", "golang"], { ...C_STYLE, quotes: "\"'`", keywords: "go" }],
    [["rust", "rs"], { ...C_STYLE, quotes: "\"", keywords: "rust" }],
    [["css", "scss", "less"], { ...C_STYLE, keywords: "css" }],
    [["python", "py", "python3"], { ...HASH_STYLE, triple: true, keywords: "python" }],
    [["sh", "bash", "shell", "zsh", "console", "dockerfile", "makefile"], { ...HASH_STYLE, keywords: "shell" }],
    [["ruby", "rb", "perl", "elixir", "r"], { ...HASH_STYLE, keywords: "ruby" }],
    [["yaml", "yml", "toml", "ini", "conf"], { ...HASH_STYLE, keywords: "data" }],
    [["json", "jsonc", "json5", "jsonl"], { line: "//", quotes: "\"", keywords: "data" }],
    [["sql", "lua"], { line: "--", block: ["/*", "*/"], quotes: "\"'", keywords: "sql", anyCase: true }],
    [["html", "xml", "svg", "vue"], { block: ["<!--", "-->"], quotes: "\"'", tags: true, keywords: "data" }],
];

const escapeRegExp = text => text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");

/* {pattern, keywords, anyCase} of a language. The groups of the pattern: comment, string, tag, number, word. */
function grammarOf({ line, block, quotes, triple, tags, keywords, anyCase }) {
    const comments = [line && escapeRegExp(line) + "[^\\n]*",
                      block && `${escapeRegExp(block[0])}[^]*?(?:${escapeRegExp(block[1])}|$)`].filter(Boolean);
    const strings = Array.from(quotes, q => `${q}(?:[^${q}\\\\${q === "`" ? "" : "\\n"}]|\\\\[^])*(?:${q}|(?=\\n)|$)`);
    if (triple)
        strings.unshift('"""[^]*?(?:"""|$)', "'''[^]*?(?:'''|$)");
    const groups = [comments.join("|"), strings.join("|"), tags ? "</?[A-Za-z][\\w:-]*|/?>" : "(?!)", "\\d[\\w.]*",
                    "[A-Za-z_$@][\\w$]*"];
    return { pattern: new RegExp(groups.map(group => `(${group})`).join("|"), "g"), anyCase,
             keywords: new Set(KEYWORDS[keywords].split(" ")) };
}

const grammars = new Map();

function grammarFor(language) {
    const name = language.toLowerCase(), kind = LANGUAGES.find(([names]) => names.includes(name))?.[1];
    if (kind && !grammars.has(kind))
        grammars.set(kind, grammarOf(kind));
    return grammars.get(kind);
}

const CLASSES = ["comment", "string", "keyword", "number"];

/* A span for each line of a difference that adds or removes something. */
function appendDiff(node, code) {
    for (const line of code.split(/(?<=\n)/)) {
        const kind = /^\+(?!\+\+)/.test(line) ? "added" : /^-(?!--)/.test(line) ? "removed" : null;
        node.append(kind ? spanOf("hl-" + kind, line) : line);
    }
}

function spanOf(className, text) {
    const span = document.createElement("span");
    span.className = className;
    span.textContent = text;
    return span;
}

/* Appends the code to node; plain if the language is unknown. */
export function appendCode(node, code, language) {
    const isShort = code.length <= MAX_CODE, grammar = isShort ? grammarFor(language) : null;
    if (isShort && /^(diff|patch)$/i.test(language))
        return appendDiff(node, code);
    let at = 0;
    for (const match of grammar ? code.matchAll(grammar.pattern) : []) {
        const group = match.findIndex((part, index) => index > 0 && part !== undefined);
        const isWord = group === 5, word = grammar.anyCase ? match[0].toLowerCase() : match[0];
        if (!match[0] || isWord && !grammar.keywords.has(word))
            continue;
        if (match.index > at)
            node.append(code.slice(at, match.index));
        node.append(spanOf("hl-" + (isWord ? "keyword" : CLASSES[group - 1]), match[0]));
        at = match.index + match[0].length;
    }
    if (at < code.length)
        node.append(code.slice(at));
}
