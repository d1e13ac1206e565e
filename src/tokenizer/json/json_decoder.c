/* Reads "decoder" of tokenizer.json, for tokens that are text. */
#include "base/utf8.h"
#include "tokenizer/json/json_reader.h"

#include <string.h>

static const char FIELD[] = "decoder";

static struct text_decoder *decoder_of(struct json_reader *r)
{
    return &r->tok->level->decoder;
}

static enum tutti_status misplaced(const struct json_reader *r, const json_t *part)
{
    return error_set(r->err, TUTTI_E_UNSUPPORTED, "%s: decoder: %s after %s is not supported", r->name,
                     json_reader_type(part), r->decoded == OF_BYTES ? "ByteFallback" : "Fuse or ByteLevel");
}

static enum tutti_status decoder_add_step(struct json_reader *r, const json_t *part, struct decode_step **out)
{
    if (r->decoded != OF_TOKENS)
        return misplaced(r, part);
    if (decoder_of(r)->n_steps >= MAX_DECODE_STEPS)
        return error_set(r->err, TUTTI_E_UNSUPPORTED, "%s: decoder: more than %d steps", r->name,
                         MAX_DECODE_STEPS);
    *out = &decoder_of(r)->steps[decoder_of(r)->n_steps++];
    **out = (struct decode_step){ .kind = DECODE_REPLACE };
    return TUTTI_OK;
}

static enum tutti_status read_replace(struct json_reader *r, const json_t *part)
{
    struct decode_step *step = NULL;
    enum tutti_status st = decoder_add_step(r, part, &step);
    if (st != TUTTI_OK)
        return st;
    step->replace.n = 1;
    return json_read_replace(r, FIELD, part, &step->replace.steps[0]);
}

static enum tutti_status read_metaspace(struct json_reader *r, const json_t *part)
{
    struct decode_step *step = NULL;
    struct metaspace metaspace;
    enum tutti_status st = json_read_metaspace(r, FIELD, part, &metaspace);
    if (st == TUTTI_OK)
        st = decoder_add_step(r, part, &step);
    if (st != TUTTI_OK)
        return st;
    step->kind = DECODE_METASPACE;
    step->drops_first = metaspace.prepends != METASPACE_NEVER;
    return buf_add(&step->mark, metaspace.mark, metaspace.n_mark) ? TUTTI_OK : json_reader_out_of_memory(r);
}

static enum tutti_status read_wordpiece(struct json_reader *r, const json_t *part)
{
    struct decode_step *step = NULL;
    enum tutti_status st = decoder_add_step(r, part, &step);
    if (st != TUTTI_OK)
        return st;
    step->kind = DECODE_WORDPIECE;
    step->cleans_up = !json_is_false(json_object_get(part, "cleanup"));
    return json_reader_text(r, FIELD, part, "prefix", &step->mark);
}

/* BPEDecoder: the blanks separate words, so the last one is dropped. */
static enum tutti_status read_suffix(struct json_reader *r, const json_t *part)
{
    struct decode_step *step = NULL;
    enum tutti_status st = decoder_add_step(r, part, &step);
    if (st != TUTTI_OK)
        return st;
    step->kind = DECODE_SUFFIX;
    st = json_reader_text(r, FIELD, part, "suffix", &step->mark);
    if (st == TUTTI_OK && step->mark.n_bytes == 0)
        return error_set(r->err, TUTTI_E_UNSUPPORTED, "%s: decoder: BPEDecoder: suffix is empty", r->name);
    r->decoded = OF_TEXT;
    decoder_of(r)->stop = 1;
    return st == TUTTI_OK && !buf_add(&decoder_of(r)->mark, " ", 1) ? json_reader_out_of_memory(r) : st;
}

static enum tutti_status read_strip(struct json_reader *r, const json_t *part)
{
    json_int_t start = json_integer_value(json_object_get(part, "start")),
               stop = json_integer_value(json_object_get(part, "stop"));
    struct decode_step *step = NULL;
    struct buf mark = { 0 };
    enum tutti_status st = json_reader_text(r, FIELD, part, "content", &mark);
    if (st == TUTTI_OK && (start < 0 || start > MAX_DECODE_STRIP || stop < 0 || stop > MAX_DECODE_STRIP ||
                           mark.n_bytes == 0 || utf8_char(mark.bytes, mark.n_bytes) != (int)mark.n_bytes))
        st = error_set(r->err, TUTTI_E_UNSUPPORTED,
                       "%s: decoder: Strip: expected content of one character, start and stop of 0 to %d",
                       r->name, MAX_DECODE_STRIP);
    if (st == TUTTI_OK && r->decoded == OF_TEXT) {
        if (decoder_of(r)->mark.n_bytes > 0 || decoder_of(r)->has_bytes)
            st = misplaced(r, part);
        else if (!buf_add(&decoder_of(r)->mark, mark.bytes, mark.n_bytes))
            st = json_reader_out_of_memory(r);
        decoder_of(r)->start = (int)start;
        decoder_of(r)->stop = (int)stop;
    } else if (st == TUTTI_OK && (st = decoder_add_step(r, part, &step)) == TUTTI_OK) {
        step->kind = DECODE_STRIP;
        step->start = (int)start;
        step->stop = (int)stop;
        if (!buf_add(&step->mark, mark.bytes, mark.n_bytes))
            st = json_reader_out_of_memory(r);
    }
    buf_clear(&mark);
    return st;
}

static enum tutti_status read_byte_decoder(struct json_reader *r, const json_t *part)
{
    struct decode_step *step = NULL;
    enum tutti_status st = decoder_add_step(r, part, &step);
    if (st != TUTTI_OK)
        return st;
    step->kind = DECODE_BYTES;
    decoder_of(r)->has_bytes = true;
    r->decoded = OF_TEXT;
    return TUTTI_OK;
}

static enum tutti_status read_fallback(struct json_reader *r, const json_t *part)
{
    if (r->decoded != OF_TOKENS)
        return misplaced(r, part);
    decoder_of(r)->falls_back = true;
    r->decoded = OF_BYTES;
    return TUTTI_OK;
}

static enum tutti_status read_fuse(struct json_reader *r, const json_t *part)
{
    (void)part;
    r->decoded = OF_TEXT;
    return TUTTI_OK;
}

enum tutti_status json_read_decoder(struct json_reader *r, const json_t *part)
{
    static const struct json_step STEPS[] = { { "ByteLevel", read_byte_decoder },
                                              { "Replace", read_replace },
                                              { "ByteFallback", read_fallback },
                                              { "Fuse", read_fuse },
                                              { "Strip", read_strip },
                                              { "Metaspace", read_metaspace },
                                              { "WordPiece", read_wordpiece },
                                              { "BPEDecoder", read_suffix },
                                              { NULL, NULL } };
    static const struct json_steps KINDS = { FIELD, "decoders", STEPS };
    struct decode_step *step = NULL;
    if (part && !json_is_null(part))
        return json_read_steps(r, &KINDS, part);
    enum tutti_status st = decoder_add_step(r, part, &step); /* tokens with blanks between */
    if (st == TUTTI_OK)
        step->kind = DECODE_BLANKS;
    return st;
}

static bool is_of_bytes(const json_t *part, int depth)
{
    const char *type = json_reader_type(part);
    bool has_bytes = strcmp(type, "ByteLevel") == 0;
    if (strcmp(type, "Sequence") != 0 || depth > MAX_JSON_STEP_DEPTH)
        return has_bytes;
    const json_t *list = json_object_get(part, "decoders");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        bool is_here = is_of_bytes(one, depth + 1);
        if (!is_here && strcmp(json_reader_type(one), "Fuse") != 0)
            return false;
        if (is_here && has_bytes)
            return false;
        has_bytes |= is_here;
    }
    return has_bytes;
}

bool json_decoder_is_of_bytes(const json_t *part)
{
    return is_of_bytes(part, 0);
}
