/* The pre-tokenizations of llama.cpp's names in tokenizer.ggml.pre. */
#include "tokenizer/stages/pretokenize.h"

#include <string.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define AFTER_WORDS  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(ends)                                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ends "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ends "|"
#define AFTER_CASED "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3      CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" AFTER_WORDS

/* The library's step Digits knows digits of Unicode 17. */
#define DIGITS "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]"

/* The step Punctuation has an older Unicode than all other steps: it lacks the characters after the
 * class. */
#define PUNCTUATION                                                                                          \
    "[\\p{P}$+<=>^`|~\\x{166D}\\x{111C9}](?<![\\x{61D}\\x{9FD}\\x{A76}\\x{C77}\\x{C84}\\x{1B4E}\\x{1B4F}"    \
    "\\x{1B7D}-"                                                                                             \
    "\\x{1B7F}\\x{2E43}-\\x{2E4F}\\x{2E52}-\\x{2E5D}\\x{10D6E}\\x{10EAD}\\x{10F55}-\\x{10F59}\\x{10F86}-"    \
    "\\x{10F89}"                                                                                             \
    "\\x{113D4}\\x{113D5}\\x{113D7}\\x{113D8}\\x{1144B}-\\x{1144F}\\x{1145A}\\x{1145B}\\x{1145D}\\x{11660}-" \
    "\\x{1166C}\\x{116B9}\\x{1183B}\\x{11944}-\\x{11946}\\x{119E2}\\x{11A3F}-\\x{11A46}\\x{11A9A}-\\x{"      \
    "11A9C}"                                                                                                 \
    "\\x{11A9E}-\\x{11AA2}\\x{11B00}-\\x{11B09}\\x{11BE1}\\x{11C41}-\\x{11C45}\\x{11C70}\\x{11C71}\\x{"      \
    "11EF7}"                                                                                                 \
    "\\x{11EF8}\\x{11F43}-\\x{11F4F}\\x{11FFF}\\x{12FF1}\\x{12FF2}\\x{16D6D}-\\x{16D6F}\\x{16E97}-\\x{"      \
    "16E9A}"                                                                                                 \
    "\\x{16FE2}\\x{1E5FF}\\x{1E95E}\\x{1E95F}])"

/* \w of Rust: Alphabetic, marks, decimal digits, connectors, and joiners. */
#define WORD                                                                                                 \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-" \
    "\\x{1F169}\\x{1F170}-\\x{1F189}"

const char PATTERN_GPT2[] = GPT2, PATTERN_DIGITS[] = DIGITS, PATTERN_PUNCTUATION[] = PUNCTUATION,
           PATTERN_BLANK[] = "\\s", PATTERN_WORDS[] = "[" WORD "]+|[^" WORD "\\s]+";

/* Rules with the same pattern share an entry. The patterns are those of the models'
 * tokenizer.json files; they split text like llama.cpp's own patterns. */
#define QWEN2(contractions, digits) contractions "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits AFTER_WORDS
#define CJK                         "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"
#define MARK                        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define MARKED_WORDS                                                                                         \
    MARK "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"                                                            \
         "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
#define BLOOM " ?[^(\\s|[.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C])]+"
/* Chinese has no upper and lower case. */
#define NO_HAN(classes) "[" classes "&&[^\\p{Han}]]"
#define KIMI_UPPER      NO_HAN("\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}")
#define KIMI_LOWER      NO_HAN("\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}")
#define LATIN                                                                                                \
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-"      \
    "\u0373\u0376\u0377"                                                                                     \
    "\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-"             \
    "\u052F\u0531-\u0556"                                                                                    \
    "\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-"     \
    "\u1D9A"                                                                                                 \
    "\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-"             \
    "\u1F7D\u1F80-\u1FB4"                                                                                    \
    "\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-"            \
    "\u1FF4\u1FF6-\u1FFC"                                                                                    \
    "\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-"  \
    "\u213F"                                                                                                 \
    "\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-" \
    "\uA69B"                                                                                                 \
    "\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-"     \
    "\uFF5A"                                                                                                 \
    "\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-"        \
    "\U00010CF2"                                                                                             \
    "\U000118A0-\U000118DF\U0001E900-\U0001E943"
/* Cascades of blanks instead of \s+. */
#define BLANKS(n) "\\s{" n "}(?!\\S)|"

static const struct pre_name NAMES[] = {
    { .name = "gpt-2",
      .same = " gpt2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
              "roberta-bpe jina-v1-en jina-v2-code mpt olmo jais trillion granite-docling exaone4 ",
      .patterns = { GPT2 } },
    { .name = "llama-bpe",
      .same = " llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
      .ignores_merges = true,
      .adds_bos = true,
      .patterns = { LLAMA3 } },
    { .name = "glm4", .same = " glm5 ", .ignores_merges = true, .patterns = { LLAMA3 } },
    { .name = "chatglm-bpe", .same = " smaug-bpe dbrx ", .patterns = { LLAMA3 } },
    { .name = "qwen2",
      .same = " deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2 ",
      .is_composed = true,
      .patterns = { QWEN2(CONTRACTIONS "|", "\\p{N}") } },
    { .name = "qwen35",
      .same = " ",
      .patterns = { CONTRACTIONS
                    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
                    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" } },
    { .name = "ufakzeka", .same = " ", .patterns = { QWEN2("", "\\p{N}") } },
    { .name = "laguna", .same = " ", .patterns = { "[^\\n]+|[\\n]+", QWEN2(CONTRACTIONS "|", "\\p{N}") } },
    { .name = "minicpm5",
      .same = " ",
      .ignores_merges = true,
      .patterns = { "\\p{N}{1,3}", QWEN2(CONTRACTIONS "|", "\\p{N}+") } },
    { .name = "bailingmoe",
      .same = " bailingmoe2 llada-moe ",
      .patterns = { "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| "
                    "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"
                    "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" } },
    { .name = "seed-coder",
      .same = " ",
      .patterns = { CONTRACTIONS "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+"
                                 "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+" } },
    { .name = "exaone-moe",
      .same = " ",
      .patterns = { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*+(?: \\p{L}\\p{M}*+)*+)++|\\p{N}"
                                 "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" } },
    { .name = "jais-2",
      .same = " ",
      .patterns = { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                                 "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" BLANKS("512") BLANKS("256")
                                     BLANKS("128") BLANKS("64") BLANKS("32") BLANKS("16") BLANKS("8")
                                         BLANKS("4") BLANKS("1,2") "\\s{1}" } },
    { .name = "bloom", .same = " poro-chat gpt3-finnish ", .patterns = { BLOOM } },
    { .name = "viking", .same = " ", .patterns = { BLOOM, "\\p{N}" } },
    { .name = "tekken",
      .same = " ",
      .ignores_merges = true,
      .adds_bos = true,
      .patterns = { CASED("") "\\p{N}" AFTER_CASED } },
    { .name = "gpt-4o",
      .same = " llama4 kanana2 talkie minimax-m2 ",
      .patterns = { CASED(CONTRACTIONS "?") "\\p{N}{1,3}" AFTER_CASED } },
    { .name = "granite-embed-multi-97m",
      .same = " ",
      .ignores_merges = true,
      .patterns = { CASED(CONTRACTIONS "?") "\\p{N}{1,3}" AFTER_CASED } },
    { .name = "tiny_aya",
      .same = " cohere2moe ",
      .is_costly = true,
      .patterns = { "\\d{1,3}(?=(?:\\d{3})*\\b)", CASED(CONTRACTIONS "?") "\\p{N}{1,3}" AFTER_CASED } },
    { .name = "kimi-k2",
      .same = " ",
      .patterns = { "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" CONTRACTIONS
                    "?|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*" CONTRACTIONS
                    "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" } },
    { .name = "youtu",
      .same = " ",
      .ignores_merges = true,
      .patterns = { "[\uAC00-\uD7A3\u3131-\u318E]+|["
                    "\uFF01\u2026\u201C\u201D\u2018\u2019\u2014\uFF1A\uFF1B\uFF0C"
                    "\u3001-\u303F\uFE30-\uFE4F]+|[\u3105-\u312F]+|" CJK,
                    CASED(CONTRACTIONS "?") "\\p{N}" AFTER_CASED } },
    { .name = "superbpe", .same = " ", .is_costly = true, .patterns = { "\\p{N}+", "(?=(\\d{3})+(?!\\d))" } },
    { .name = "starcoder",
      .same = " refact command-r smollm codeshell exaone minerva-7b mellum2 ",
      .patterns = { DIGITS, GPT2 } },
    { .name = "deepseek-llm",
      .same = " ",
      .patterns = { "[\r\n]", "\\s?[" LATIN "]+",
                    "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+", "\\s+$",
                    "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+", "\\p{N}+" } },
    { .name = "deepseek-coder",
      .same = " ",
      .patterns = { "[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+",
                    DIGITS } },
    { .name = "deepseek-v3",
      .same = " hunyuan-dense joyai-llm hy_v4 ",
      .patterns = { "\\p{N}{1,3}", CJK, MARKED_WORDS "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" } },
    { .name = "spark2_5",
      .same = " ",
      .patterns = { "\\p{N}{1,3}", CJK, MARKED_WORDS "|[\r\n]|\\s+(?!\\S)|\\s+", "\\p{N}" } },
    { .name = "afmoe",
      .same = " ",
      .is_costly = true,
      .patterns = { "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))",
                    "[\u4E00-\u9FFF\u3400-\u4DBF\uF900-\uFAFF\u3040-\u309F\u30A0-\u30FF\uFF65-\uFF9F\u2F00-"
                    "\u2FDF"
                    "\u0E40-\u0E7F\u0E80-\u0EFF\u1780-\u17FF\u1000-\u109F\uAA60-\uAA7F\uA9E0-\uA9FF\uAC00-"
                    "\uD7AF"
                    "\u1100-\u11FF]+",
                    MARKED_WORDS "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" } },
    { .name = "chameleon",
      .same = " ",
      .adds_bos = true,
      .patterns = { "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", DIGITS,
                    "[\\p{P}!-/:-@\\[-`{-~]", GPT2 } },
    { .name = "gemma4",
      .same = " granite-embed-multi-311m ",
      .has_characters = true,
      .adds_bos = true,
      .patterns = { "[^\\n]+|[\\n]+" } },
    { .name = "sarvam-moe", .same = " ", .has_characters = true, .patterns = { "[^\\n]+|[\\n]+" } },
    { .name = "whitespace",
      .same = " ",
      .has_characters = true,
      .drops_blanks = true,
      .patterns = { "\\s" } },
    { .name = "falcon", .same = " ", .patterns = { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]" } },
    { .name = "default",
      .same = " ",
      .patterns = { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" } },
};

enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

static bool is_among(const char *words, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = n > 0 ? strstr(words, name) : NULL; at; at = strstr(at + 1, name)) {
        if (at > words && at[-1] == ' ' && at[n] == ' ')
            return true;
    }
    return false;
}

const struct pre_name *pre_name_find(const char *name)
{
    for (int i = 0; i < N_NAMES; i++) {
        if (strcmp(NAMES[i].name, name) == 0 || is_among(NAMES[i].same, name))
            return &NAMES[i];
    }
    return NULL;
}

static bool has_steps(const struct pretokenizer *pre, const struct pre_name *named)
{
    int n = 0;
    for (; named->patterns[n]; n++) {
        const struct pre_step *s = &pre->steps[n];
        if (n >= pre->n_steps || !s->source || strcmp(s->source, named->patterns[n]) != 0 ||
            s->behavior != SPLIT_ISOLATED || s->is_inverted)
            return false;
    }
    return n == pre->n_steps;
}

const struct pre_name *pre_name_of(const struct pretokenizer *pre, bool is_composed, bool ignores_merges)
{
    for (int i = 0; i < N_NAMES; i++) {
        const struct pre_name *named = &NAMES[i];
        if (!named->has_characters && named->is_composed == is_composed &&
            named->ignores_merges == ignores_merges && has_steps(pre, named))
            return named;
    }
    return NULL;
}

enum pattern_kind pre_pattern_kind(const char *source)
{
    static const char *const OWN[] = { PATTERN_DIGITS, PATTERN_BLANK, PATTERN_WORDS };
    if (strcmp(source, PATTERN_PUNCTUATION) == 0)
        return PATTERN_EXACT;
    for (int i = 0; i < N_NAMES; i++) {
        for (int k = 0; !NAMES[i].is_costly && NAMES[i].patterns[k]; k++) {
            if (strcmp(NAMES[i].patterns[k], source) == 0)
                return PATTERN_KNOWN;
        }
    }
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++) {
        if (strcmp(source, OWN[i]) == 0)
            return PATTERN_KNOWN;
    }
    return PATTERN_UNKNOWN;
}
