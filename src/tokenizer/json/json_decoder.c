/* Reads "decoder" of tokenizer.json, for tokens that are text. */
#include "base/utf8.h"
#include "tokenizer/json/json_reader.h"

#include <string.h>

static const char FIELD[] = "decoder";

/* The output of the steps so far: single tokens, tokens and runs of bytes, or one text. */
enum decode_stage { OF_TOKENS, OF_BYTES, OF_TEXT };

struct decode_reader {
    struct json_reader *r;
    struct text_decoder *out;
    enum decode_stage stage;
};

static enum tutti_status misplaced(const struct decode_reader *d, const json_t *part)
{
    return error_set(d->r->err, TUTTI_E_UNSUPPORTED, "%s: decoder: %s after %s is not supported", d->r->name,
                     json_reader_type(part), d->stage == OF_BYTES ? "ByteFallback" : "Fuse or ByteLevel");
}

static enum tutti_status add_step(struct decode_reader *d, const json_t *part, struct decode_step **out)
{
    if (d->stage != OF_TOKENS)
        return misplaced(d, part);
    if (d->out->n_steps >= MAX_DECODE_STEPS)
        return error_set(d->r->err, TUTTI_E_UNSUPPORTED, "%s: decoder: more than %d steps", d->r->name,
                         MAX_DECODE_STEPS);
    *out = &d->out->steps[d->out->n_steps++];
    **out = (struct decode_step){ .kind = DECODE_REPLACE };
    return TUTTI_OK;
}

static enum tutti_status read_replace(struct decode_reader *d, const json_t *part)
{
    struct decode_step *step = NULL;
    enum tutti_status st = add_step(d, part, &step);
    if (st != TUTTI_OK)
        return st;
    step->replace.n = 1;
    return json_read_replace(d->r, FIELD, part, &step->replace.steps[0]);
}

static enum tutti_status read_metaspace(struct decode_reader *d, const json_t *part)
{
    struct decode_step *step = NULL;
    struct metaspace metaspace;
    enum tutti_status st = json_read_metaspace(d->r, FIELD, part, &metaspace);
    if (st == TUTTI_OK)
        st = add_step(d, part, &step);
    if (st != TUTTI_OK)
        return st;
    step->kind = DECODE_METASPACE;
    step->drops_first = metaspace.prepends != METASPACE_NEVER;
    return buf_add(&step->mark, metaspace.mark, metaspace.n_mark) ? TUTTI_OK
                                                                  : json_reader_out_of_memory(d->r);
}

static enum tutti_status read_wordpiece(struct decode_reader *d, const json_t *part)
{
    struct decode_step *step = NULL;
    enum tutti_status st = add_step(d, part, &step);
    if (st != TUTTI_OK)
        return st;
    step->kind = DECODE_WORDPIECE;
    step->cleans_up = !json_is_false(json_object_get(part, "cleanup"));
    return json_reader_text(d->r, FIELD, part, "prefix", &step->mark);
}

/* BPEDecoder: the blanks separate words, so the last one is dropped. */
static enum tutti_status read_suffix(struct decode_reader *d, const json_t *part)
{
    struct decode_step *step = NULL;
    enum tutti_status st = add_step(d, part, &step);
    if (st != TUTTI_OK)
        return st;
    step->kind = DECODE_SUFFIX;
    st = json_reader_text(d->r, FIELD, part, "suffix", &step->mark);
    if (st == TUTTI_OK && step->mark.n_bytes == 0)
        return error_set(d->r->err, TUTTI_E_UNSUPPORTED, "%s: decoder: BPEDecoder: suffix is empty",
                         d->r->name);
    d->stage = OF_TEXT;
    d->out->stop = 1;
    return st == TUTTI_OK && !buf_add(&d->out->mark, " ", 1) ? json_reader_out_of_memory(d->r) : st;
}

static enum tutti_status read_strip(struct decode_reader *d, const json_t *part)
{
    json_int_t start = json_integer_value(json_object_get(part, "start")),
               stop = json_integer_value(json_object_get(part, "stop"));
    struct decode_step *step = NULL;
    struct buf mark = { 0 };
    enum tutti_status st = json_reader_text(d->r, FIELD, part, "content", &mark);
    if (st == TUTTI_OK && (start < 0 || start > MAX_DECODE_STRIP || stop < 0 || stop > MAX_DECODE_STRIP ||
                           mark.n_bytes == 0 || utf8_char(mark.bytes, mark.n_bytes) != (int)mark.n_bytes))
        st = error_set(d->r->err, TUTTI_E_UNSUPPORTED,
                       "%s: decoder: Strip: expected content of one character, start and stop of 0 to %d",
                       d->r->name, MAX_DECODE_STRIP);
    if (st == TUTTI_OK && d->stage == OF_TEXT) {
        if (d->out->mark.n_bytes > 0 || d->out->has_bytes)
            st = misplaced(d, part);
        else if (!buf_add(&d->out->mark, mark.bytes, mark.n_bytes))
            st = json_reader_out_of_memory(d->r);
        d->out->start = (int)start;
        d->out->stop = (int)stop;
    } else if (st == TUTTI_OK && (st = add_step(d, part, &step)) == TUTTI_OK) {
        step->kind = DECODE_STRIP;
        step->start = (int)start;
        step->stop = (int)stop;
        if (!buf_add(&step->mark, mark.bytes, mark.n_bytes))
            st = json_reader_out_of_memory(d->r);
    }
    buf_clear(&mark);
    return st;
}

static enum tutti_status read_byte_decoder(struct decode_reader *d, const json_t *part)
{
    struct decode_step *step = NULL;
    enum tutti_status st = add_step(d, part, &step);
    if (st != TUTTI_OK)
        return st;
    step->kind = DECODE_BYTES;
    d->out->has_bytes = true;
    d->stage = OF_TEXT;
    return TUTTI_OK;
}

static enum tutti_status read_fallback(struct decode_reader *d, const json_t *part)
{
    if (d->stage != OF_TOKENS)
        return misplaced(d, part);
    d->out->falls_back = true;
    d->stage = OF_BYTES;
    return TUTTI_OK;
}

static enum tutti_status read_fuse(struct decode_reader *d, const json_t *part)
{
    (void)part;
    d->stage = OF_TEXT;
    return TUTTI_OK;
}

static enum tutti_status decoder_read_part(struct decode_reader *d, const json_t *part, int depth)
{
    static const struct {
        const char *type;
        enum tutti_status (*read)(struct decode_reader *d, const json_t *part);
    } READERS[] = { { "Replace", read_replace },       { "Metaspace", read_metaspace },
                    { "WordPiece", read_wordpiece },   { "BPEDecoder", read_suffix },
                    { "Strip", read_strip },           { "ByteLevel", read_byte_decoder },
                    { "ByteFallback", read_fallback }, { "Fuse", read_fuse } };
    const char *type = json_reader_type(part);
    for (size_t i = 0; i < sizeof READERS / sizeof *READERS; i++) {
        if (strcmp(type, READERS[i].type) == 0)
            return READERS[i].read(d, part);
    }
    if (strcmp(type, "Sequence") != 0 || depth > MAX_JSON_STEP_DEPTH)
        return json_reader_unsupported(
            d->r, FIELD, part,
            "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, WordPiece, BPEDecoder or Sequence");
    const json_t *list = json_object_get(part, "decoders");
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++)
        st = decoder_read_part(d, json_array_get(list, i), depth + 1);
    return st;
}

enum tutti_status json_read_decoder(struct json_reader *r, const json_t *part)
{
    struct decode_reader d = { .r = r, .out = &r->tok->level->decoder };
    struct decode_step *step = NULL;
    if (part && !json_is_null(part))
        return decoder_read_part(&d, part, 0);
    enum tutti_status st = add_step(&d, part, &step); /* tokens with blanks between */
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
