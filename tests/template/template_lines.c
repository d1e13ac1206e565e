/* template_lines < JOBS: renders one template for each line of JSON {"template", "trusted", "user", "now"} and answers
 * with one line {"text", "segments": [[end, is_user], ...]} or {"error"}. */
#include "base/buf.h"
#include "template/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *render(const json_t *job)
{
    static const char *const ROLES[] = { "system",    "user",        "assistant", "tool",
                                         "developer", "observation", NULL };
    struct template *tpl = NULL;
    struct template_output out = { 0 };
    struct tutti_error err = { 0 };
    const json_t *text = json_object_get(job, "template");
    struct template_input input = { .trusted = json_object_get(job, "trusted"),
                                    .user = json_object_get(job, "user"),
                                    .roles = ROLES,
                                    .now = json_integer_value(json_object_get(job, "now")) };
    enum tutti_status st = template_compile(&tpl, json_string_value(text), json_string_length(text),
                                            "template", &err);
    if (st == TUTTI_OK)
        st = template_render(tpl, &input, &out, &err);
    json_t *answer = json_object();
    if (st != TUTTI_OK) {
        json_object_set_new(answer, "error", json_string(err.text));
    } else {
        json_t *segments = json_array();
        for (size_t i = 0; i < out.n_segments; i++)
            json_array_append_new(segments,
                                  json_pack("[ib]", (int)out.segments[i].end, out.segments[i].is_user));
        json_object_set_new(answer, "text", json_stringn(out.text, out.n_bytes));
        json_object_set_new(answer, "segments", segments);
    }
    template_output_clear(&out);
    template_free(tpl);
    return answer;
}

int main(void)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    while ((n = getline(&line, &size, stdin)) > 0) {
        json_error_t where;
        json_t *job = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &where);
        if (!job) {
            fprintf(stderr, "template_lines: %s\n", where.text);
            return 1;
        }
        json_t *answer = render(job);
        json_dumpf(answer, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(answer);
        json_decref(job);
    }
    free(line);
    return 0;
}
