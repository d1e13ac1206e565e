#include "server/models/metrics_merge.h"

#include <stdlib.h>
#include <string.h>

/* The metric of that name; NULL: out of memory. */
static struct merged *find(struct metrics_merge *merge, const char *name, size_t n_name)
{
    for (size_t i = 0; i < merge->n; i++)
        if (!strncmp(merge->list[i].name, name, n_name) && merge->list[i].name[n_name] == '\0')
            return &merge->list[i];
    struct merged *grown = realloc(merge->list, (merge->n + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    merge->list = grown;
    char *copy = strndup(name, n_name);
    if (!copy)
        return NULL;
    merge->list[merge->n] = (struct merged){ .name = copy };
    return &merge->list[merge->n++];
}

/* "name{a="b"} 1" or "name 1", with one more label. */
static bool add_sample(struct buf *out, const char *line, size_t n, const char *model)
{
    size_t n_name = strcspn(line, "{ \n");
    bool has_labels = line[n_name] == '{';
    if (!model)
        return buf_add(out, line, n);
    return buf_add(out, line, n_name) && buf_printf(out, "{model=\"%s\"%s", model, has_labels ? "," : "}") &&
           buf_add(out, line + n_name + has_labels, n - n_name - has_labels);
}

bool metrics_merge_add(struct metrics_merge *merge, const char *text, const char *model)
{
    static const char HELP[] = "# HELP ", TYPE[] = "# TYPE ";
    struct merged *now = NULL;
    bool is_first = true, ok = true;
    while (ok && *text) {
        size_t n = strcspn(text, "\n");
        n += text[n] == '\n';
        if (!strncmp(text, HELP, sizeof HELP - 1)) {
            const char *name = text + sizeof HELP - 1;
            now = find(merge, name, strcspn(name, " \n"));
            ok = now != NULL;
            is_first = ok && now->head.n_bytes == 0;
        }
        if (ok && (!strncmp(text, HELP, sizeof HELP - 1) || !strncmp(text, TYPE, sizeof TYPE - 1)))
            ok = !is_first || buf_add(&now->head, text, n);
        else if (ok && now && n > 1)
            ok = add_sample(&now->samples, text, n, model);
        text += n;
    }
    return ok;
}

bool metrics_merge_write(const struct metrics_merge *merge, struct buf *out)
{
    bool ok = true;
    for (size_t i = 0; ok && i < merge->n; i++) {
        const struct merged *m = &merge->list[i];
        ok = (m->head.n_bytes == 0 || buf_add(out, m->head.bytes, m->head.n_bytes)) &&
             (m->samples.n_bytes == 0 || buf_add(out, m->samples.bytes, m->samples.n_bytes));
    }
    return ok;
}

void metrics_merge_clear(struct metrics_merge *merge)
{
    for (size_t i = 0; i < merge->n; i++) {
        free(merge->list[i].name);
        buf_clear(&merge->list[i].head);
        buf_clear(&merge->list[i].samples);
    }
    free(merge->list);
    *merge = (struct metrics_merge){ 0 };
}
