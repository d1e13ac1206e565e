/* The public functions: compiling and rendering. */
#include "template/eval/eval.h"

#include <stdlib.h>
#include <string.h>

enum {
    TREE_BYTES = 256 * 1024 * 1024,
    DEFAULT_STEPS = 10 * 1000 * 1000,
    DEFAULT_MEMORY = 64 * 1024 * 1024,
    MEMORY_PER_INPUT_BYTE = 24,
    DEFAULT_OUTPUT = 64 * 1024 * 1024,
    DEFAULT_DEPTH = 200,
};

enum tutti_status template_compile(struct template **out, const char *text, size_t n_bytes, const char *name,
                                   struct tutti_error *err)
{
    if (n_bytes > TEMPLATE_MAX_BYTES)
        return error_set(err, TUTTI_E_LIMIT, "%s: a template of %zu bytes, at most %d are allowed", name,
                         n_bytes, TEMPLATE_MAX_BYTES);
    enum tutti_status st;
    struct template *tpl = calloc(1, sizeof *tpl);
    if (!tpl || !(tpl->name = strdup(name))) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
        goto done;
    }
    tpl->arena.limit = TREE_BYTES;
    st = lex(tpl, text, n_bytes, err);
    if (st == TUTTI_OK)
        st = parse(tpl, err);
    if (st != TUTTI_OK)
        goto done;
    /* The error may be sent to a client, which must not see the server's folders. */
    char *base = strrchr(tpl->name, '/');
    if (base)
        memmove(tpl->name, base + 1, strlen(base));
    *out = tpl;
    tpl = NULL;
done:
    template_free(tpl);
    return st;
}

void template_free(struct template *tpl)
{
    if (!tpl)
        return;
    arena_clear(&tpl->arena);
    free(tpl->name);
    free(tpl);
}

bool template_mentions(const struct template *tpl, const char *variable)
{
    for (size_t i = 0; i < tpl->tokens.n; i++) {
        const struct token *token = &tpl->tokens.tokens[i];
        if (token->kind == TOKEN_NAME && strcmp(token->text, variable) == 0)
            return true;
    }
    return false;
}

/* ---- variables ---- */

/* Bytes of all strings, so that the memory limit grows with a long conversation. Parsed JSON is
 * limited in depth by jansson; deeper values built by callers are not counted. */
static size_t text_bytes(const json_t *json, int depth)
{
    size_t n = 16, i;
    const char *key;
    json_t *item;
    if (depth == 0)
        return n;
    if (json_is_string(json))
        return n + json_string_length(json);
    json_array_foreach(json, i, item) n += text_bytes(item, depth - 1);
    json_object_foreach((json_t *)(uintptr_t)json, key, item) n += strlen(key) + text_bytes(item, depth - 1);
    return n;
}

static void add_variables(struct render *r, const json_t *object, enum origin origin)
{
    const char *name;
    json_t *item;
    json_object_foreach((json_t *)(uintptr_t)object, name, item)
    {
        bool is_role = strcmp(name, "role") == 0;
        frame_set(r, r->globals, name, value_from_json(r, item, origin, is_role));
    }
}

static void set_limits(struct render *r, const struct template_input *input)
{
    struct template_limits limits = input->limits;
    size_t n_input = text_bytes(input->user, 200) + text_bytes(input->trusted, 200);
    limits.n_steps = limits.n_steps ? limits.n_steps : DEFAULT_STEPS + n_input;
    limits.output_bytes = limits.output_bytes ? limits.output_bytes : DEFAULT_OUTPUT;
    limits.depth = limits.depth ? limits.depth : DEFAULT_DEPTH;
    if (!limits.memory_bytes)
        limits.memory_bytes = DEFAULT_MEMORY + MEMORY_PER_INPUT_BYTE * n_input;
    r->limits = limits;
    r->arena.limit = limits.memory_bytes;
}

/* ---- output ---- */

static bool add_segment(struct template_output *out, size_t *capacity, size_t end, bool is_user)
{
    if (out->n_segments == *capacity) {
        *capacity = *capacity ? *capacity * 2 : 16;
        void *more = realloc(out->segments, *capacity * sizeof *out->segments);
        if (!more)
            return false;
        out->segments = more;
    }
    out->segments[out->n_segments++] = (struct template_segment){ end, is_user };
    return true;
}

static bool copy_output(struct template_output *out, struct value text)
{
    size_t capacity = 0;
    out->text = malloc(text.n_bytes + 1);
    if (!out->text)
        return false;
    memcpy(out->text, text.bytes, text.n_bytes);
    out->text[text.n_bytes] = '\0';
    out->n_bytes = text.n_bytes;
    if (text.n_bytes > 0 && text.origin != ORIGIN_MIXED)
        return add_segment(out, &capacity, text.n_bytes, text.origin == ORIGIN_USER);
    for (size_t begin = 0, end; begin < text.n_bytes; begin = end) {
        end = begin + 1;
        while (end < text.n_bytes && text.marks[end] == text.marks[begin])
            end++;
        if (!add_segment(out, &capacity, end, text.marks[begin]))
            return false;
    }
    return true;
}

enum tutti_status template_render(const struct template *tpl, const struct template_input *input,
                                  struct template_output *out, struct tutti_error *err)
{
    struct template_output result = { 0 };
    struct text text = { 0 };
    struct frame globals = { 0 };
    struct render r = { .name = tpl->name,
                        .line = 1,
                        .roles = input->roles,
                        .now = input->now,
                        .err = err,
                        .out = &text,
                        .globals = &globals };
    set_limits(&r, input);
    add_variables(&r, input->user, ORIGIN_USER);
    add_variables(&r, input->trusted, ORIGIN_TRUSTED);
    struct frame *top = frame_new(&r, &globals);
    if (top)
        exec(&r, top, &tpl->body);
    if (!failed(&r) && !copy_output(&result, text_value(&text)))
        r.status = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", tpl->name);
    arena_clear(&r.arena);
    if (failed(&r)) {
        template_output_clear(&result);
        return r.status;
    }
    *out = result;
    return TUTTI_OK;
}

/* Constants, signs, and lists of them. JSON's null becomes a constant: Olmo 3's template writes values as JSON. */
static bool is_literal(struct expr *e)
{
    if (e->kind == EXPR_NAME && strcmp(e->name, "null") == 0) {
        e->kind = EXPR_CONST;
        e->value = value_none();
    }
    if (e->kind == EXPR_CONST)
        return true;
    if (e->kind == EXPR_UNARY)
        return e->op != TOKEN_NOT && is_literal(e->left);
    if (e->kind != EXPR_LIST && e->kind != EXPR_TUPLE && e->kind != EXPR_DICT)
        return false;
    for (size_t i = 0; i < e->n_args; i++) {
        if (!is_literal(e->args[i].value))
            return false;
    }
    return true;
}

/* `{{ dict(...) | tojson }}` and nothing else. */
static bool is_call_of_literals(const struct template *tpl)
{
    const struct stmt *s = tpl->body.n == 1 ? tpl->body.stmts[0] : NULL;
    const struct expr *filter = s && s->kind == STMT_PRINT ? s->value : NULL;
    const struct expr *call = filter && filter->kind == EXPR_FILTER ? filter->left : NULL;
    if (!call || call->kind != EXPR_CALL || call->left->kind != EXPR_NAME ||
        strcmp(call->left->name, "dict") != 0)
        return false;
    for (size_t i = 0; i < call->n_args; i++) {
        if (!call->args[i].name || !is_literal(call->args[i].value))
            return false;
    }
    return true;
}

enum tutti_status template_read_arguments(const char *text, size_t n_bytes, struct template_output *out,
                                          struct tutti_error *err)
{
    static const char HEAD[] = "{{ dict(", TAIL[] = ") | tojson }}";
    struct template *tpl = NULL;
    enum tutti_status st = TUTTI_OK;
    char *source = malloc(n_bytes + sizeof HEAD + sizeof TAIL);
    if (!source)
        return error_set(err, TUTTI_E_MEMORY, "out of memory");
    memcpy(source, HEAD, sizeof HEAD - 1);
    memcpy(source + sizeof HEAD - 1, text, n_bytes);
    memcpy(source + sizeof HEAD - 1 + n_bytes, TAIL, sizeof TAIL);
    st = template_compile(&tpl, source, n_bytes + sizeof HEAD + sizeof TAIL - 2, "call", err);
    if (st == TUTTI_OK && !is_call_of_literals(tpl))
        st = error_set(err, TUTTI_E_FORMAT, "call: expected named literals");
    if (st == TUTTI_OK)
        st = template_render(tpl, &(struct template_input){ 0 }, out, err);
    template_free(tpl);
    free(source);
    return st;
}

void template_output_clear(struct template_output *out)
{
    free(out->text);
    free(out->segments);
    *out = (struct template_output){ 0 };
}
