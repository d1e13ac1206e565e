/* The texts of the page, in English and Chinese; with numbers or names in them, they are functions. */
const WORDS = {
    en: {
        skip: "Skip to the question", conversations: "Conversations", newChat: "New conversation", settings: "Settings",
        openList: "Show conversations", closeList: "Hide conversations", toEnd: "Go to the latest message",
        welcome: "What shall we talk about?", tagline: "One model, many voices: ask away, everybody is answered at once.",
        question: "Write a message", send: "Send", stop: "Stop the answer", close: "Close", done: "Done",
        note: "Answers can be wrong.", licences: "Licences", system: "System prompt",
        systemHint: "How the model should behave", temperature: "Temperature", maxTokens: "Maximum tokens of an answer",
        seed: "Seed", key: "API key", byModel: "default", unlimited: "no limit", random: "random",
        keyHint: "only if the server requires one", defaults: "Restore defaults", copy: "Copy", copied: "Copied", edit: "Edit",
        again: "Answer again", remove: "Delete from here", rename: "Rename", removeChat: "Delete conversation",
        save: "Send", cancel: "Cancel", you: "You", model: "Model",
        untitled: "New conversation", stopped: "stopped", cut: "stopped at the token limit", tokens: "tokens", token: "token",
        firstAfter: "first after", answering: "Answering", answered: "The answer is complete", retry: "Try again",
        refused: "The server does not accept this request now:", notReady: "The server cannot answer now:",
        failed: "The server could not answer:", tooLong: "The conversation is longer than the model's context.",
        retryIn: n => `Try again in ${n} s.`, cutOff: "The answer ended early: the server or a proxy closed the connection.",
        lost: "The connection was lost. Is the server still running?", interrupted: "interrupted",
        thinking: "Thinking…", thought: "Thoughts", effort: "Thinking", effortOff: "off", effortLow: "a little",
        effortMedium: "some", effortHigh: "much", allChats: "Use these for new conversations, too",
        thisChat: "This conversation", thisBrowser: "This browser", modelChoice: "Model",
        thisServer: "This server", context: "Context", contextTokens: n => `${n} tokens`, device: "Device", processor: "processor",
        memory: "Device memory", memoryAll: all => `${all} GiB`, memoryUsed: (used, all) => `${used} of ${all} GiB used`,
        notServed: name => `${name} (not served now)`, contextOf: (used, all) => `Context: ${used} of ${all} tokens`,
        contextUsed: used => `Context: ${used} tokens`, nearlyFull: "nearly full: begin a new conversation soon",
        search: "Search conversations", foundN: n => n ? `${n} found` : "Nothing found",
        undo: "Undo", dismiss: "Dismiss", deletedChat: title => `Deleted “${title}”.`,
        deletedMessages: n => n === 1 ? "Deleted one message." : `Deleted ${n} messages.`,
        exchange: "Export and import", saveMarkdown: "Save this conversation as Markdown",
        saveJson: "Save this conversation as JSON", saveAll: "Save all conversations as JSON",
        importFile: "Import from a file", importHint: "JSON or Markdown of this page, or JSON with “messages” of OpenAI's API.",
        importTooLarge: "it is larger than 64 MB", notImported: (name, why) => `${name} was not imported: ${why}.`,
        attach: "Attach text files", attached: "Attached files", attachedN: n => `${n} attached`, detach: name => `Remove ${name}`,
        notText: name => `${name} is not UTF-8 text.`, tooManyFiles: (name, n) => `${name}: at most ${n} files can be attached.`,
        fileTooLarge: (name, size, max) => `${name} has ${size}, at most ${max} can be attached.`,
        messages: "Messages",
        brokeOff: "This answer was interrupted when its page was closed or reloaded.",
        earlier: "Earlier variant", later: "Later variant",
        wantsKey: "This server requires an API key.", wrongKey: "Unknown API key.",
        full: "The browser's storage is full or disabled: this is not saved. Delete some old conversations.",
        themeAuto: "Light or dark: automatic", themeLight: "Light", themeDark: "Dark",
        ideas: ["Tell me a story about a fox named Mia.", "What is the capital of France?", "Count from three to twelve.",
                "讲一个关于小猫的故事。"],
    },
    zh: {
        skip: "跳到输入框", conversations: "对话", newChat: "新对话", settings: "设置", openList: "显示对话列表",
        closeList: "隐藏对话列表", toEnd: "回到最新消息", welcome: "想聊点什么？",
        tagline: "一个模型，众人同声：尽管问，大家同时得到回答。", question: "输入消息", send: "发送",
        stop: "停止回答", close: "关闭", done: "完成", note: "回答可能有误。", licences: "许可证", system: "系统提示词",
        systemHint: "希望模型怎样表现", temperature: "温度", maxTokens: "最长回答（词元）", seed: "随机种子", key: "API 密钥",
        byModel: "模型默认", unlimited: "不限", random: "随机", keyHint: "服务器要求时填写", defaults: "恢复默认",
        copy: "复制", copied: "已复制", edit: "编辑", again: "重新回答", remove: "从这里删除", rename: "重命名",
        removeChat: "删除对话", save: "发送", cancel: "取消", you: "你", model: "模型",
        untitled: "新对话", stopped: "已停止", cut: "已达最长回答", tokens: "词元", token: "词元", firstAfter: "首个词元",
        answering: "正在回答", answered: "回答完毕", retry: "重试",
        refused: "服务器现在不接受此请求：", notReady: "服务器现在无法回答：", failed: "服务器未能回答：",
        tooLong: "对话超出了模型的上下文长度。", retryIn: n => `请在 ${n} 秒后重试。`, cutOff: "回答提前结束：服务器或代理关闭了连接。",
        thinking: "正在思考…", thought: "思考过程", effort: "思考", effortOff: "关闭", effortLow: "少", effortMedium: "中", effortHigh: "多",
        allChats: "也用于新对话", thisChat: "此对话", thisBrowser: "此浏览器", modelChoice: "模型",
        thisServer: "此服务器", context: "上下文", contextTokens: n => `${n} 词元`, device: "设备", processor: "处理器",
        memory: "显存", memoryAll: all => `${all} GiB`, memoryUsed: (used, all) => `已用 ${used} / ${all} GiB`,
        notServed: name => `${name}（当前未提供）`, contextOf: (used, all) => `上下文：${used} / ${all} 词元`,
        contextUsed: used => `上下文：${used} 词元`, nearlyFull: "即将用满，请尽快开始新对话", search: "搜索对话",
        foundN: n => n ? `找到 ${n} 条` : "没有找到", undo: "撤销", dismiss: "关闭提示", deletedChat: title => `已删除“${title}”。`,
        deletedMessages: n => `已删除 ${n} 条消息。`, exchange: "导出与导入", saveMarkdown: "将此对话保存为 Markdown",
        saveJson: "将此对话保存为 JSON", saveAll: "将所有对话保存为 JSON", importFile: "从文件导入",
        importHint: "本页导出的 JSON 或 Markdown，或含有 OpenAI API “messages” 的 JSON。", importTooLarge: "文件大于 64 MB",
        notImported: (name, why) => `${name} 未导入：${why}。`, attach: "附加文本文件", attached: "附件",
        attachedN: n => `已附加 ${n} 个文件`, detach: name => `移除 ${name}`, notText: name => `${name} 不是 UTF-8 文本。`,
        tooManyFiles: (name, n) => `${name}：最多附加 ${n} 个文件。`,
        fileTooLarge: (name, size, max) => `${name} 大小为 ${size}，最多 ${max}。`, messages: "消息",
        lost: "连接已断开，服务器还在运行吗？", interrupted: "已中断",
        brokeOff: "页面被关闭或重新加载，回答因此中断。", earlier: "上一个版本", later: "下一个版本",
        wantsKey: "此服务器需要 API 密钥。", wrongKey: "服务器不认识这个 API 密钥。",
        full: "浏览器存储已满或被禁用，此内容不会保存，请删除一些旧对话。", themeAuto: "明暗：自动", themeLight: "浅色", themeDark: "深色",
        ideas: ["讲一个关于小猫的故事。", "法国的首都是哪个城市？", "从3数到12。", "Tell me a story about a fox named Mia."],
    },
};

const language = navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";

export function word(key) {
    return WORDS[language][key];
}

/* A number with separators. */
export function count(n) {
    return n.toLocaleString(language);
}

/* Bytes in GiB, with one decimal. */
export function gib(n) {
    return (n / 2 ** 30).toLocaleString(language, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
}

export function seconds(key, n) {
    return word(key)(count(Math.ceil(n)));
}

/* Fills the page's fixed texts: data-text, data-label (a name for buttons and fields), data-hint (placeholder). */
export function fillWords() {
    document.documentElement.lang = language;
    for (const node of document.querySelectorAll("[data-text]"))
        node.textContent = word(node.dataset.text);
    for (const node of document.querySelectorAll("[data-label]")) {
        node.setAttribute("aria-label", word(node.dataset.label));
        if (node.tagName === "BUTTON")
            node.title = word(node.dataset.label);
    }
    for (const node of document.querySelectorAll("[data-hint]"))
        node.placeholder = word(node.dataset.hint);
}
