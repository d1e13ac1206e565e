/* From tokens to shown text: stop strings across token borders, hidden blanks, whole characters, visible tokens. */
#include "base/buf.h"
#include "base/ids.h"
#include "base/rng.h"
#include "engine/requests/reply.h"
#include "engine/run/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tutti_model *model;
static const struct tokenizer *tok;

static int open_model(void **state)
{
    (void)state;
    if (tutti_model_open(&model, TEST_DEMO_MODEL, NULL, NULL) != TUTTI_OK)
        return -1;
    tok = model_of(model)->tokenizer;
    return tok ? 0 : -1;
}

static int close_model(void **state)
{
    (void)state;
    tutti_model_close(model);
    return 0;
}

struct stop_set {
    struct tutti_string strings[LIMIT_STOPS];
    uint16_t borders[LIMIT_STOPS][64];
    const uint16_t *border_list[LIMIT_STOPS];
};

static struct stops make_stops(struct stop_set *set, const char *const *strings, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        set->strings[i] = (struct tutti_string){ strings[i], strlen(strings[i]) };
        stops_find_borders(set->borders[i], strings[i], strlen(strings[i]));
        set->border_list[i] = set->borders[i];
    }
    return (struct stops){ set->strings, n, set->border_list };
}

struct shown {
    struct buf text;
    size_t n_pushed, n_tokens; /* tokens given, tokens visible */
    bool is_stopped;
    const char *stop; /* the string that ended it; NULL: none */
};

/* Pushes ids until a stop string; sends after each, as the text thread does. */
static void show_ids(const struct reply_format *format, const struct ids *ids, struct shown *shown)
{
    struct reply reply;
    reply_init(&reply, format);
    *shown = (struct shown){ 0 };
    for (size_t i = 0; i < ids->n && !shown->is_stopped; i++) {
        struct sample sample = { .token = ids->ids[i] };
        assert_true(reply_push(&reply, &sample, &shown->is_stopped));
        shown->n_pushed++;
        assert_true(buf_add(&shown->text, reply.text.bytes, reply.text.n_bytes));
        reply_sent(&reply);
    }
    if (!shown->is_stopped) {
        assert_true(reply_finish(&reply, &shown->is_stopped));
        assert_true(buf_add(&shown->text, reply.text.bytes, reply.text.n_bytes));
    }
    shown->n_tokens = reply.n_generated;
    shown->stop = reply.has_stop_string ? format->stops.strings[reply.stop_string].text : NULL;
    reply_clear(&reply);
}

static void show_text(const struct reply_format *format, const char *text, struct shown *shown)
{
    struct ids ids = { 0 };
    assert_true(tokenizer_encode(tok, text, strlen(text), &ids));
    show_ids(format, &ids, shown);
    ids_clear(&ids);
}

static void check_shown(const struct reply_format *format, const char *text, const char *want,
                        bool is_stopped)
{
    struct shown shown;
    show_text(format, text, &shown);
    const char *got = shown.text.bytes ? shown.text.bytes : "";
    if (strcmp(got, want) != 0 || shown.is_stopped != is_stopped)
        fail_msg("\"%s\" became \"%s\", expected \"%s\"", text, got, want);
    buf_clear(&shown.text);
}

static void the_answer_is_the_text_before_the_first_stop_string(void **state)
{
    (void)state;
    struct stop_set set;
    static const char *const strings[] = { "capital of", "ital o", "zzz", "\n\n" };
    struct reply_format format = { .tok = tok, .stops = make_stops(&set, strings, 4) };
    check_shown(&format, "The capital of France is Paris.", "The cap", true); /* complete first */
    check_shown(&format, "The capital city", "The capital city", false);      /* held, then shown */
    check_shown(&format, "one\n\ntwo", "one", true);
    check_shown(&format, "one\n", "one\n", false);
    check_shown(&format, "zz", "zz", false);
    check_shown(&format, "azzzz", "a", true);
}

static void a_stop_string_is_kept_where_it_is_wanted(void **state)
{
    (void)state;
    struct stop_set set;
    static const char *const strings[] = { "capital of", "首都" };
    struct reply_format format = { .tok = tok, .stops = make_stops(&set, strings, 2), .keeps_stop = true };
    check_shown(&format, "The capital of France", "The capital of", true);
    check_shown(&format, "法国的首都是", "法国的首都", true);
    check_shown(&format, "The capital", "The capital", false);
}

static void a_stop_string_may_lie_across_characters(void **state)
{
    (void)state;
    struct stop_set set;
    static const char *const strings[] = { "首都", "\xF0\x9F\x98\x80!" };
    struct reply_format format = { .tok = tok, .stops = make_stops(&set, strings, 2) };
    check_shown(&format, "法国的首都是巴黎", "法国的", true);
    check_shown(&format, "a\xF0\x9F\x98\x80! b", "a", true);
    check_shown(&format, "a\xF0\x9F\x98\x80? b", "a\xF0\x9F\x98\x80? b", false);
}

static void a_chat_reply_hides_what_its_format_hides(void **state)
{
    (void)state;
    struct reply_format chat = { .tok = tok, .hides_blank_first_line = true, .trims = true };
    check_shown(&chat, "\n Hello there. \n", "Hello there.", false);
    check_shown(&chat, "Hello  there", "Hello  there", false);
    check_shown(&chat, " \n \n", "", false);
    check_shown(&chat, "get_weather\nx = 1", "get_weather\nx = 1", false); /* not blank: shown */
    struct reply_format first_line = { .tok = tok, .hides_blank_first_line = true, .continues_text = true };
    check_shown(&first_line, " \n  Hello \n", "  Hello \n", false);
    check_shown(&first_line, "  Hello", "   Hello", false); /* the tokenizer adds a blank in front */
    struct reply_format continued = chat;
    continued.continues_answer = true; /* the tokenizer adds a blank in front */
    check_shown(&continued, "\n Hello there. \n", " \n Hello there.", false);
    struct reply_format plain = { .tok = tok };
    check_shown(&plain, "\n Hello \n", "\n Hello \n", false);
}

/* What the authors' function of ChatGLM-6B, which strips and substitutes in the whole reply, makes of them. */
static const char *const REWRITTEN[][2] = {
    { "你好,世界!", "你好，世界！" },
    { "a,b", "a,b" },
    { "a,你", "a，你" },
    { "你,b", "你，b" },
    { "你,,b", "你，,b" },
    { "a,,你", "a,，你" },
    { ",你", "，你" },
    { ",", "," },
    { "你:好;我?", "你：好；我？" },
    { "[[训练时间]]", "2023年" },
    { "我在[[训练时间]],a", "我在2023年，a" },
    { "a,[[训练时间]]b", "a,2023年b" },
    { "[[训练时间]", "[[训练时间]" },
    { "[[[训练时间]]]", "[2023年]" },
    { "[[训练[[训练时间]]", "[[训练2023年" },
    { "你?!", "你？!" },
    { "a?!你b", "a?！你b" },
    { "一,龥,鿿,", "一，龥，鿿，" },
    { "あ,い", "あ,い" },
    { "3,000!", "3,000!" },
    { "你 ,好", "你 ，好" },
};
enum { N_REWRITTEN = sizeof REWRITTEN / sizeof *REWRITTEN };

static void a_reply_is_rewritten_as_its_authors_do(void **state)
{
    (void)state;
    struct reply_format chat = { .tok = tok, .trims = true, .fills_in_time = true, .widens_marks = true };
    struct reply_format later = { .tok = tok, .trims = true, .fills_in_time = true };
    struct reply_format plain = { .tok = tok };
    for (int i = 0; i < N_REWRITTEN; i++) {
        check_shown(&chat, REWRITTEN[i][0], REWRITTEN[i][1], false);
        check_shown(&plain, REWRITTEN[i][0], REWRITTEN[i][0], false);
    }
    check_shown(&later, " 你,[[训练时间]]! ", "你,2023年!", false);
    struct stop_set set;
    static const char *const strings[] = { "时间]]", "," };
    chat.stops = make_stops(&set, strings, 2); /* they are of the model's text */
    check_shown(&chat, "你[[训练时间]]", "你[[训练", true);
    check_shown(&chat, "你!,好", "你！", true);
}

static void a_rewritten_text_may_come_in_any_parts(void **state)
{
    (void)state;
    for (int i = 0; i < N_REWRITTEN; i++) {
        const char *text = REWRITTEN[i][0];
        struct rewrite r = { 0 };
        struct buf out = { 0 };
        for (size_t at = 0; at < strlen(text); at++) { /* even bytes of characters */
            size_t before = out.n_bytes;
            assert_true(rewrite_push(&r, text + at, 1, true, false, &out));
            assert_true(out.n_bytes >= before && r.held.n_bytes < strlen("[[训练时间]]"));
        }
        assert_true(rewrite_push(&r, "", 0, true, true, &out));
        assert_string_equal(out.bytes, REWRITTEN[i][1]);
        rewrite_clear(&r);
        buf_clear(&out);
    }
    struct rewrite r = { 0 }; /* no text is held longer than it must be */
    struct buf out = { 0 };
    assert_true(rewrite_push(&r, "你好,", strlen("你好,"), true, false, &out));
    assert_string_equal(out.bytes, "你好，");
    assert_true(rewrite_push(&r, "a,b[", 4, true, false, &out));
    assert_string_equal(out.bytes, "你好，a,b");
    assert_true(rewrite_push(&r, "x,", 2, true, false, &out));
    assert_string_equal(out.bytes, "你好，a,b[x");
    rewrite_clear(&r);
    buf_clear(&out);
}

static void a_stop_string_does_not_end_in_hidden_text(void **state)
{
    (void)state;
    struct stop_set set;
    static const char *const strings[] = { "\n" };
    struct reply_format chat = {
        .tok = tok, .stops = make_stops(&set, strings, 1), .hides_blank_first_line = true, .trims = true
    };
    check_shown(&chat, "\n Hello  \nthere", "Hello", true);
}

static void tokens_of_hidden_text_are_not_visible(void **state)
{
    (void)state;
    struct stop_set set;
    static const char *const strings[] = { " France is" };
    struct reply_format format = { .tok = tok, .stops = make_stops(&set, strings, 1) };
    struct shown shown;
    struct ids before = { 0 };
    assert_true(tokenizer_encode(tok, "The capital of", strlen("The capital of"), &before));
    show_text(&format, "The capital of France is Paris.", &shown);
    assert_string_equal(shown.text.bytes, "The capital of");
    assert_int_equal(shown.n_tokens, before.n);
    assert_true(shown.n_pushed > shown.n_tokens);
    ids_clear(&before);
    buf_clear(&shown.text);
}

static void a_token_becomes_visible_with_its_character(void **state)
{
    (void)state;
    static const char *const bytes[] = { "<0xE4>", "<0xBD>", "<0xA0>" }; /* U+4F60 */
    struct reply_format format = { .tok = tok };
    struct reply reply;
    reply_init(&reply, &format);
    for (size_t i = 0; i < 3; i++) {
        struct sample sample = { .token = tokenizer_find(tok, bytes[i], 6) };
        bool is_stopped;
        assert_true(sample.token >= 0);
        assert_true(reply_push(&reply, &sample, &is_stopped));
        assert_int_equal(reply.n_visible, i < 2 ? 0 : 3);
        assert_int_equal(reply.text.n_bytes, i < 2 ? 0 : 3);
    }
    reply_clear(&reply);
}

/* Special tokens that mark reasoning or calls are text where the request wants them, in order with the characters
 * around them; other special tokens never are. */
static void marks_are_shown_where_they_are_wanted(void **state)
{
    (void)state;
    int32_t controls[2], n = 0;
    for (int32_t id = 0; id < tokenizer_n_pieces(tok) && n < 2; id++)
        if (tokenizer_piece(tok, id).type == PIECE_CONTROL && tokenizer_piece(tok, id).n_bytes > 1)
            controls[n++] = id;
    assert_int_equal(n, 2);
    struct chat_marks marks = { 0 };
    assert_true(ids_add(&marks.shown, controls[1]));
    struct piece piece = tokenizer_piece(tok, controls[1]);
    struct reply_format shows = { .tok = tok, .marks = &marks, .continues_text = true };
    struct reply_format hides = { .tok = tok, .continues_text = true };
    struct ids ids = { 0 };
    struct buf want = { 0 };
    assert_true(tokenizer_encode(tok, "one", 3, &ids) && ids_add(&ids, controls[0]) &&
                ids_add(&ids, controls[1]));
    assert_true(ids_add(&ids, tokenizer_find(tok, "<0xE4>", 6))); /* begins a character */
    assert_true(ids_add(&ids, controls[1]) && tokenizer_encode(tok, "two", 3, &ids));
    for (int i = 0; i < 2; i++) {
        struct shown shown;
        int n_mark = i == 0 ? (int)piece.n_bytes : 0;
        buf_truncate(&want, 0);
        assert_true(
            buf_printf(&want, " one%.*s\xEF\xBF\xBD%.*s two", n_mark, piece.bytes, n_mark, piece.bytes));
        show_ids(i == 0 ? &shows : &hides, &ids, &shown);
        if (shown.text.n_bytes != want.n_bytes || memcmp(shown.text.bytes, want.bytes, want.n_bytes) != 0)
            fail_msg("found \"%.*s\", expected \"%s\"", (int)shown.text.n_bytes, shown.text.bytes,
                     want.bytes);
        assert_int_equal(shown.n_tokens, ids.n);
        buf_clear(&shown.text);
    }
    buf_clear(&want);
    ids_clear(&ids);
    ids_clear(&marks.shown);
}

/* ---- any tokens, any stop strings: against the rule written down plainly ---- */

static bool is_blank_char(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void expect(const struct reply_format *format, const struct ids *ids, struct buf *want,
                   const char **stopped_by)
{
    struct buf all = { 0 };
    struct detokenizer d;
    detokenizer_init(&d, tok, false);
    for (size_t i = 0; i < ids->n; i++)
        assert_true(detokenizer_push(&d, ids->ids[i], &all));
    assert_true(detokenizer_finish(&d, &all));
    assert_true(buf_reserve(&all, 1));
    size_t begin = 0, end = all.n_bytes;
    if (format->trims) {
        while (begin < end && is_blank_char(all.bytes[begin]))
            begin++;
    } else if (format->hides_blank_first_line) {
        size_t line = 0;
        while (line < end && is_blank_char(all.bytes[line]) && all.bytes[line] != '\n')
            line++;
        if (line == end)
            begin = end;
        else if (all.bytes[line] == '\n')
            begin = line + 1;
    }
    *stopped_by = NULL;
    for (size_t at = begin + 1; at <= all.n_bytes && !*stopped_by; at++) {
        size_t n_longest = 0;
        for (size_t i = 0; i < format->stops.n; i++) {
            const struct tutti_string *stop = &format->stops.strings[i];
            if (at - begin >= stop->n_bytes &&
                memcmp(all.bytes + at - stop->n_bytes, stop->text, stop->n_bytes) == 0) {
                end = at - stop->n_bytes < end ? at - stop->n_bytes : end;
                *stopped_by = stop->n_bytes > n_longest ? stop->text : *stopped_by;
                n_longest = stop->n_bytes > n_longest ? stop->n_bytes : n_longest;
            }
        }
    }
    while (format->trims && end > begin && is_blank_char(all.bytes[end - 1]))
        end--;
    assert_true(buf_add(want, all.bytes + begin, end - begin));
    buf_clear(&all);
}

static void any_tokens_and_stops_follow_the_rule(void **state)
{
    (void)state;
    static const char *const pool[] = { "a",   "the", " the", ".",    "\n", " ", "aa",
                                        "aab", "e",   "é",    "\xA9", "的", "  " };
    static const char *const pieces[] = { "a", "aa", "the", " ", "\n", ".", "e", "é", "的", "😀", "b", "  " };
    uint64_t n_stopped = 0, n_free = 0;
    for (uint64_t round = 0; round < 3000; round++) {
        struct stop_set set;
        const char *strings[4];
        size_t n_stops = mix64(round * 8) % 4;
        for (size_t i = 0; i < n_stops; i++)
            strings[i] = pool[mix64(round * 8 + i + 1) % (sizeof pool / sizeof *pool)];
        struct reply_format format = { .tok = tok,
                                       .stops = make_stops(&set, strings, n_stops),
                                       .hides_blank_first_line = round % 2,
                                       .trims = round % 3 == 0 };
        struct ids ids = { 0 };
        for (uint64_t i = 0; i < mix64(round) % 30; i++) {
            uint64_t x = mix64(round * 1000 + i);
            const char *piece = pieces[(x >> 8) % (sizeof pieces / sizeof *pieces)];
            if (x % 4 == 0) /* any id: bytes that are no characters, control pieces, the unknown one */
                assert_true(ids_add(&ids, (int32_t)((x >> 20) % (uint64_t)tokenizer_n_pieces(tok))));
            else if (x % 4 == 1)
                assert_true(ids_add(&ids, 3 + (int32_t)((x >> 20) % 256))); /* byte pieces */
            else
                assert_true(tokenizer_encode(tok, piece, strlen(piece), &ids));
        }
        struct buf want = { 0 };
        const char *stopped_by;
        expect(&format, &ids, &want, &stopped_by);
        bool is_stopped = stopped_by;
        struct shown shown;
        show_ids(&format, &ids, &shown);
        if (shown.is_stopped != is_stopped ||
            strcmp(shown.stop ? shown.stop : "", stopped_by ? stopped_by : "") ||
            shown.text.n_bytes != want.n_bytes ||
            (want.n_bytes > 0 && memcmp(shown.text.bytes, want.bytes, want.n_bytes) != 0))
            fail_msg("round %llu: \"%s\", expected \"%s\"", (unsigned long long)round, shown.text.bytes,
                     want.bytes);
        assert_true(shown.n_tokens <= shown.n_pushed);
        assert_true(is_stopped || shown.n_tokens == shown.n_pushed);
        n_stopped += is_stopped;
        n_free += !is_stopped;
        buf_clear(&shown.text);
        buf_clear(&want);
        ids_clear(&ids);
    }
    assert_true(n_stopped > 300 && n_free > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_answer_is_the_text_before_the_first_stop_string),
        cmocka_unit_test(a_stop_string_is_kept_where_it_is_wanted),
        cmocka_unit_test(a_stop_string_may_lie_across_characters),
        cmocka_unit_test(a_chat_reply_hides_what_its_format_hides),
        cmocka_unit_test(a_reply_is_rewritten_as_its_authors_do),
        cmocka_unit_test(a_rewritten_text_may_come_in_any_parts),
        cmocka_unit_test(a_stop_string_does_not_end_in_hidden_text),
        cmocka_unit_test(tokens_of_hidden_text_are_not_visible),
        cmocka_unit_test(a_token_becomes_visible_with_its_character),
        cmocka_unit_test(marks_are_shown_where_they_are_wanted),
        cmocka_unit_test(any_tokens_and_stops_follow_the_rule),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
