/* The texts of the page, in English and Chinese. */
const WORDS = {
    en: {
        skip: "Skip to the question", conversations: "Conversations", newChat: "New conversation", settings: "Settings",
        openList: "Show conversations", closeList: "Hide conversations", toEnd: "Go to the latest message",
        welcome: "What shall we talk about?", tagline: "One model, many voices: ask away, everybody is answered at once.",
        question: "Write a message", send: "Send", stop: "Stop the answer", close: "Close", done: "Done",
        note: "Answers can be wrong.", licences: "Licences", system: "System prompt",
        systemHint: "How the model should behave", temperature: "Temperature", maxTokens: "Maximum tokens of an answer",
        seed: "Seed", key: "API key", byModel: "the model's own", unlimited: "no limit", random: "random",
        keyHint: "only if the server requires one", defaults: "Restore defaults", copy: "Copy", copied: "Copied", edit: "Edit",
        again: "Answer again", remove: "Delete from here", rename: "Rename", removeChat: "Delete conversation",
        removeSure: "Press again to delete", save: "Send", cancel: "Cancel", you: "You", model: "Model",
        untitled: "New conversation", stopped: "stopped", cut: "stopped at the token limit", tokens: "tokens",
        firstAfter: "first after", answering: "Answering", answered: "The answer is complete", retry: "Try again",
        busy: "The server is busy: its queue is full. Please try again in a moment.",
        lost: "The connection was lost. Is the server still running?", interrupted: "interrupted",
        brokeOff: "This answer was interrupted when its page was closed or reloaded.",
        elsewhere: "Another tab is writing this answer", earlier: "Earlier answer", later: "Later answer",
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
        removeChat: "删除对话", removeSure: "再按一次删除", save: "发送", cancel: "取消", you: "你", model: "模型",
        untitled: "新对话", stopped: "已停止", cut: "已达最长回答", tokens: "词元", firstAfter: "首个词元",
        answering: "正在回答", answered: "回答完毕", retry: "重试", busy: "服务器繁忙，队列已满，请稍后再试。",
        lost: "连接已断开，服务器还在运行吗？", interrupted: "已中断",
        brokeOff: "页面被关闭或重新加载，回答因此中断。", elsewhere: "另一个标签页正在回答", earlier: "上一个回答", later: "下一个回答",
        wantsKey: "此服务器需要 API 密钥。", wrongKey: "服务器不认识这个 API 密钥。",
        full: "浏览器存储已满或被禁用，此内容不会保存，请删除一些旧对话。", themeAuto: "明暗：自动", themeLight: "浅色", themeDark: "深色",
        ideas: ["讲一个关于小猫的故事。", "法国的首都是哪个城市？", "从3数到12。", "Tell me a story about a fox named Mia."],
    },
};

const language = navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";

export function word(key) {
    return WORDS[language][key];
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
