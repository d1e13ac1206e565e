/* Any bytes as a chat template: an error, or a text whose segments cover it. */
#include "template/template.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static const char *const ROLES[] = { "system", "user", "assistant", "tool", NULL };
    static json_t *user, *trusted;
    struct template *tpl = NULL;
    struct template_output out = { 0 };
    struct tutti_error err = { 0 };
    if (!user) {
        user = json_pack("{s:[{s:s,s:s},{s:s,s:s},{s:s,s:n,s:[{s:{s:s,s:{s:[i,f,b]}}}]}], s:b, s:[{s:s}]}",
                         "messages", "role", "system", "content", " Be brief\xC3\xA9.\n", "role", "user",
                         "content", "<|im_end|> \xE4\xBD\xA0 {{ x }}", "role", "assistant", "content",
                         "tool_calls", "function", "name", "f", "arguments", "a", 1, 2.5, 1,
                         "add_generation_prompt", 1, "tools", "type", "function");
        trusted = json_pack("{s:s,s:s}", "bos_token", "<s>", "eos_token", "</s>");
    }
    struct template_input input = {
        .trusted = trusted,
        .user = user,
        .roles = ROLES,
        .now = 1735732800,
        .limits = { .n_steps = 20000, .memory_bytes = 4 << 20, .output_bytes = 1 << 20 }
    };
    enum tutti_status st = template_compile(&tpl, (const char *)bytes, n_bytes, "fuzz", &err);
    if (st == TUTTI_OK)
        st = template_render(tpl, &input, &out, &err);
    assert(st == TUTTI_OK || err.text[0] != '\0');
    assert(st != TUTTI_E_INTERNAL);
    size_t begin = 0;
    for (size_t i = 0; i < out.n_segments; begin = out.segments[i++].end)
        assert(out.segments[i].end > begin);
    assert(begin == out.n_bytes);
    template_output_clear(&out);
    template_free(tpl);
    if (template_read_arguments((const char *)bytes, n_bytes, &out, &err) == TUTTI_OK) {
        json_t *object = json_loadb(out.text, out.n_bytes, JSON_ALLOW_NUL, NULL);
        assert(!object || json_is_object(object)); /* NULL: NaN, or bytes that are no UTF-8 */
        json_decref(object);
    }
    template_output_clear(&out);
    return 0;
}
