#include "grammar/schema/schema_unicode.h"

#include <string.h>
#include <utf8proc.h>

#define CATEGORY(NAME) (1u << UTF8PROC_CATEGORY_##NAME)
#define LETTERS        (CATEGORY(LU) | CATEGORY(LL) | CATEGORY(LT) | CATEGORY(LM) | CATEGORY(LO))
#define MARKS          (CATEGORY(MN) | CATEGORY(MC) | CATEGORY(ME))
#define NUMBERS        (CATEGORY(ND) | CATEGORY(NL) | CATEGORY(NO))
#define PUNCTUATION                                                                                          \
    (CATEGORY(PC) | CATEGORY(PD) | CATEGORY(PS) | CATEGORY(PE) | CATEGORY(PI) | CATEGORY(PF) | CATEGORY(PO))
#define SYMBOLS    (CATEGORY(SM) | CATEGORY(SC) | CATEGORY(SK) | CATEGORY(SO))
#define SEPARATORS (CATEGORY(ZS) | CATEGORY(ZL) | CATEGORY(ZP))
#define OTHERS     (CATEGORY(CC) | CATEGORY(CF) | CATEGORY(CO))

/* Emoji_Component of Unicode's emoji-data.txt. */
static const struct char_range EMOJI_COMPONENTS[] = {
    { '#', '#' },       { '*', '*' },         { '0', '9' },         { 0x200D, 0x200D },   { 0x20E3, 0x20E3 },
    { 0xFE0F, 0xFE0F }, { 0x1F1E6, 0x1F1FF }, { 0x1F3FB, 0x1F3FF }, { 0x1F9B0, 0x1F9B3 }, { 0xE0020, 0xE007F }
};
/* Extended_Pictographic of Unicode 17.0, as far as Unicode 15.0 assigns it: before 17.0 more had the property. */
static const struct char_range PICTOGRAPHS[] = {
    { 0xA9, 0xA9 },       { 0xAE, 0xAE },       { 0x203C, 0x203C },   { 0x2049, 0x2049 },
    { 0x2122, 0x2122 },   { 0x2139, 0x2139 },   { 0x2194, 0x2199 },   { 0x21A9, 0x21AA },
    { 0x231A, 0x231B },   { 0x2328, 0x2328 },   { 0x23CF, 0x23CF },   { 0x23E9, 0x23F3 },
    { 0x23F8, 0x23FA },   { 0x24C2, 0x24C2 },   { 0x25AA, 0x25AB },   { 0x25B6, 0x25B6 },
    { 0x25C0, 0x25C0 },   { 0x25FB, 0x25FE },   { 0x2600, 0x2604 },   { 0x260E, 0x260E },
    { 0x2611, 0x2611 },   { 0x2614, 0x2615 },   { 0x2618, 0x2618 },   { 0x261D, 0x261D },
    { 0x2620, 0x2620 },   { 0x2622, 0x2623 },   { 0x2626, 0x2626 },   { 0x262A, 0x262A },
    { 0x262E, 0x262F },   { 0x2638, 0x263A },   { 0x2640, 0x2640 },   { 0x2642, 0x2642 },
    { 0x2648, 0x2653 },   { 0x265F, 0x2660 },   { 0x2663, 0x2663 },   { 0x2665, 0x2666 },
    { 0x2668, 0x2668 },   { 0x267B, 0x267B },   { 0x267E, 0x267F },   { 0x2692, 0x2697 },
    { 0x2699, 0x2699 },   { 0x269B, 0x269C },   { 0x26A0, 0x26A1 },   { 0x26A7, 0x26A7 },
    { 0x26AA, 0x26AB },   { 0x26B0, 0x26B1 },   { 0x26BD, 0x26BE },   { 0x26C4, 0x26C5 },
    { 0x26C8, 0x26C8 },   { 0x26CE, 0x26CF },   { 0x26D1, 0x26D1 },   { 0x26D3, 0x26D4 },
    { 0x26E9, 0x26EA },   { 0x26F0, 0x26F5 },   { 0x26F7, 0x26FA },   { 0x26FD, 0x26FD },
    { 0x2702, 0x2702 },   { 0x2705, 0x2705 },   { 0x2708, 0x270D },   { 0x270F, 0x270F },
    { 0x2712, 0x2712 },   { 0x2714, 0x2714 },   { 0x2716, 0x2716 },   { 0x271D, 0x271D },
    { 0x2721, 0x2721 },   { 0x2728, 0x2728 },   { 0x2733, 0x2734 },   { 0x2744, 0x2744 },
    { 0x2747, 0x2747 },   { 0x274C, 0x274C },   { 0x274E, 0x274E },   { 0x2753, 0x2755 },
    { 0x2757, 0x2757 },   { 0x2763, 0x2764 },   { 0x2795, 0x2797 },   { 0x27A1, 0x27A1 },
    { 0x27B0, 0x27B0 },   { 0x27BF, 0x27BF },   { 0x2934, 0x2935 },   { 0x2B05, 0x2B07 },
    { 0x2B1B, 0x2B1C },   { 0x2B50, 0x2B50 },   { 0x2B55, 0x2B55 },   { 0x3030, 0x3030 },
    { 0x303D, 0x303D },   { 0x3297, 0x3297 },   { 0x3299, 0x3299 },   { 0x1F004, 0x1F004 },
    { 0x1F0CF, 0x1F0CF }, { 0x1F170, 0x1F171 }, { 0x1F17E, 0x1F17F }, { 0x1F18E, 0x1F18E },
    { 0x1F191, 0x1F19A }, { 0x1F201, 0x1F202 }, { 0x1F21A, 0x1F21A }, { 0x1F22F, 0x1F22F },
    { 0x1F232, 0x1F23A }, { 0x1F250, 0x1F251 }, { 0x1F300, 0x1F321 }, { 0x1F324, 0x1F393 },
    { 0x1F396, 0x1F397 }, { 0x1F399, 0x1F39B }, { 0x1F39E, 0x1F3F0 }, { 0x1F3F3, 0x1F3F5 },
    { 0x1F3F7, 0x1F3FA }, { 0x1F400, 0x1F4FD }, { 0x1F4FF, 0x1F53D }, { 0x1F549, 0x1F54E },
    { 0x1F550, 0x1F567 }, { 0x1F56F, 0x1F570 }, { 0x1F573, 0x1F57A }, { 0x1F587, 0x1F587 },
    { 0x1F58A, 0x1F58D }, { 0x1F590, 0x1F590 }, { 0x1F595, 0x1F596 }, { 0x1F5A4, 0x1F5A5 },
    { 0x1F5A8, 0x1F5A8 }, { 0x1F5B1, 0x1F5B2 }, { 0x1F5BC, 0x1F5BC }, { 0x1F5C2, 0x1F5C4 },
    { 0x1F5D1, 0x1F5D3 }, { 0x1F5DC, 0x1F5DE }, { 0x1F5E1, 0x1F5E1 }, { 0x1F5E3, 0x1F5E3 },
    { 0x1F5E8, 0x1F5E8 }, { 0x1F5EF, 0x1F5EF }, { 0x1F5F3, 0x1F5F3 }, { 0x1F5FA, 0x1F64F },
    { 0x1F680, 0x1F6C5 }, { 0x1F6CB, 0x1F6D2 }, { 0x1F6D5, 0x1F6D7 }, { 0x1F6DC, 0x1F6E5 },
    { 0x1F6E9, 0x1F6E9 }, { 0x1F6EB, 0x1F6EC }, { 0x1F6F0, 0x1F6F0 }, { 0x1F6F3, 0x1F6FC },
    { 0x1F7E0, 0x1F7EB }, { 0x1F7F0, 0x1F7F0 }, { 0x1F90C, 0x1F93A }, { 0x1F93C, 0x1F945 },
    { 0x1F947, 0x1F9FF }, { 0x1FA70, 0x1FA7C }, { 0x1FA80, 0x1FA88 }, { 0x1FA90, 0x1FABD },
    { 0x1FABF, 0x1FAC5 }, { 0x1FACE, 0x1FADB }, { 0x1FAE0, 0x1FAE8 }, { 0x1FAF0, 0x1FAF8 }
};
static const struct char_range ASCII[] = { { 0, 0x7F } };

static const struct property {
    const char *name, *long_name; /* long_name NULL: none */
    uint32_t categories;          /* bits CATEGORY(...); 0: the ranges */
    const struct char_range *ranges;
    size_t n_ranges;
} PROPERTIES[] = {
    { "L", "Letter", LETTERS, NULL, 0 },
    { "Lu", "Uppercase_Letter", CATEGORY(LU), NULL, 0 },
    { "Ll", "Lowercase_Letter", CATEGORY(LL), NULL, 0 },
    { "Lt", "Titlecase_Letter", CATEGORY(LT), NULL, 0 },
    { "Lm", "Modifier_Letter", CATEGORY(LM), NULL, 0 },
    { "Lo", "Other_Letter", CATEGORY(LO), NULL, 0 },
    { "M", "Mark", MARKS, NULL, 0 },
    { "Mn", "Nonspacing_Mark", CATEGORY(MN), NULL, 0 },
    { "Mc", "Spacing_Mark", CATEGORY(MC), NULL, 0 },
    { "Me", "Enclosing_Mark", CATEGORY(ME), NULL, 0 },
    { "N", "Number", NUMBERS, NULL, 0 },
    { "Nd", "Decimal_Number", CATEGORY(ND), NULL, 0 },
    { "Nl", "Letter_Number", CATEGORY(NL), NULL, 0 },
    { "No", "Other_Number", CATEGORY(NO), NULL, 0 },
    { "P", "Punctuation", PUNCTUATION, NULL, 0 },
    { "Pc", "Connector_Punctuation", CATEGORY(PC), NULL, 0 },
    { "Pd", "Dash_Punctuation", CATEGORY(PD), NULL, 0 },
    { "Ps", "Open_Punctuation", CATEGORY(PS), NULL, 0 },
    { "Pe", "Close_Punctuation", CATEGORY(PE), NULL, 0 },
    { "Pi", "Initial_Punctuation", CATEGORY(PI), NULL, 0 },
    { "Pf", "Final_Punctuation", CATEGORY(PF), NULL, 0 },
    { "Po", "Other_Punctuation", CATEGORY(PO), NULL, 0 },
    { "S", "Symbol", SYMBOLS, NULL, 0 },
    { "Sm", "Math_Symbol", CATEGORY(SM), NULL, 0 },
    { "Sc", "Currency_Symbol", CATEGORY(SC), NULL, 0 },
    { "Sk", "Modifier_Symbol", CATEGORY(SK), NULL, 0 },
    { "So", "Other_Symbol", CATEGORY(SO), NULL, 0 },
    { "Z", "Separator", SEPARATORS, NULL, 0 },
    { "Zs", "Space_Separator", CATEGORY(ZS), NULL, 0 },
    { "Zl", "Line_Separator", CATEGORY(ZL), NULL, 0 },
    { "Zp", "Paragraph_Separator", CATEGORY(ZP), NULL, 0 },
    { "C", "Other", OTHERS, NULL, 0 },
    { "Cc", "Control", CATEGORY(CC), NULL, 0 },
    { "Cf", "Format", CATEGORY(CF), NULL, 0 },
    { "Co", "Private_Use", CATEGORY(CO), NULL, 0 },
    { "ASCII", NULL, 0, ASCII, 1 },
    { "EComp", "Emoji_Component", 0, EMOJI_COMPONENTS, sizeof EMOJI_COMPONENTS / sizeof *EMOJI_COMPONENTS },
    { "ExtPict", "Extended_Pictographic", 0, PICTOGRAPHS, sizeof PICTOGRAPHS / sizeof *PICTOGRAPHS },
};

static bool is_word(const char *name, size_t n_bytes, const char *word)
{
    return word && strlen(word) == n_bytes && memcmp(name, word, n_bytes) == 0;
}

/* General_Category may be named in front: gc=L. */
static const struct property *find_property(const char *name, size_t n_bytes)
{
    const char *value = memchr(name, '=', n_bytes);
    bool is_category = value && (is_word(name, (size_t)(value - name), "gc") ||
                                 is_word(name, (size_t)(value - name), "General_Category"));
    if (value && !is_category)
        return NULL;
    if (is_category) {
        n_bytes -= (size_t)(value + 1 - name);
        name = value + 1;
    }
    for (size_t i = 0; i < sizeof PROPERTIES / sizeof *PROPERTIES; i++) {
        const struct property *p = &PROPERTIES[i];
        if (is_word(name, n_bytes, p->name) || is_word(name, n_bytes, p->long_name))
            return is_category && !p->categories ? NULL : p;
    }
    return NULL;
}

/* or_had: also characters that had the property in an earlier Unicode. */
static bool has_property(const struct property *p, uint32_t code, const utf8proc_property_t *of, bool or_had)
{
    if (p->categories)
        return p->categories >> of->category & 1;
    for (size_t i = 0; i < p->n_ranges; i++)
        if (code >= p->ranges[i].low && code <= p->ranges[i].high)
            return true;
    return or_had && p->ranges == PICTOGRAPHS && of->boundclass == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC;
}

int schema_unicode_ranges(const char *name, size_t n_bytes, bool is_negated, bool is_wide,
                          struct char_range *ranges, int max)
{
    const struct property *p = find_property(name, n_bytes);
    int n = 0;
    bool was_in = false;
    for (uint32_t code = 0; p && code <= MAX_CODE_POINT; code++) {
        const utf8proc_property_t *of = utf8proc_get_property((utf8proc_int32_t)code);
        bool is_in = of->category == UTF8PROC_CATEGORY_CN ? is_wide
                     : of->category == UTF8PROC_CATEGORY_CS
                         ? false
                         : has_property(p, code, of, is_wide != is_negated) != is_negated;
        if (is_in && !was_in && n++ < max)
            ranges[n - 1].low = code;
        if (is_in && n <= max)
            ranges[n - 1].high = code;
        was_in = is_in;
    }
    return p ? n : -1;
}
