#include "cli/chat/thinking.h"

#include "cli/chat/prompt.h"
#include "cli/terminal/output.h"
#include "model/chat/reasoning.h"

#include <limits.h>
#include <string.h>

static const char *const SHOWN[] = { "show", "hide", "on", "off", NULL };
static const char *const EFFORTS[] = { "none", "minimal", "low", "medium", "high", NULL };

#define THINKING struct thinking_flags
const struct option THINKING_OPTIONS[] = {
    CHOICE_OPTION(
        THINKING, thinking, "thinking", "HOW", SHOWN,
        "for models that think before they answer: show the thinking before the answer, hide it, or turn "
        "it on or off; show turns it on too. Without this option the chat template decides whether the model "
        "thinks; chat on a terminal shows it, and everything else hides it"),
    CHOICE_OPTION(THINKING, effort, "reasoning-effort", "LEVEL", EFFORTS,
                  "how much to think, for chat templates that have such a setting"),
    INT_OPTION(
        THINKING, budget, "thinking-budget", "N",
        "maximum tokens of the thinking, after which the model is made to answer; 0: none; without it, "
        "no limit",
        .max = INT_MAX),
    { .name = NULL },
};

static enum tutti_status refuse(const char *name, const tutti_model *model, const char *why,
                                struct tutti_error *err)
{
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    return error_set_param(err, TUTTI_E_UNSUPPORTED, name, "--%s: %s %s", name, info.name, why);
}

/* Whether the template reads the effort: no two levels of one that does not differ. */
static enum tutti_status check_effort(const tutti_model *model, struct tutti_error *err)
{
    static const char LOW[] = "{\"reasoning_effort\": \"low\"}", HIGH[] = "{\"reasoning_effort\": \"high\"}",
                      NONE[] = "{\"reasoning_effort\": \"none\"}";
    bool differs = false;
    enum tutti_status st = prompt_depends(&differs, model, LOW, HIGH, err);
    if (st == TUTTI_OK && !differs)
        st = prompt_depends(&differs, model, NONE, HIGH, err);
    return st == TUTTI_OK && !differs
               ? refuse("reasoning-effort", model, "has a chat template without such a setting", err)
               : st;
}

/* Whether the mark that opens the thinking is one token, so that the engine can count what follows. */
static enum tutti_status check_mark(const char *option, const char *form, const tutti_model *model,
                                    struct tutti_error *err)
{
    const struct reasoning_form *marks = reasoning_form_find(form);
    if (!marks || !marks->open ||
        tutti_tokenize_trusted(model, marks->open, strlen(marks->open), false, NULL, 0) == 1)
        return TUTTI_OK;
    return refuse(option, model, "has no single token that opens its thinking, so tutti cannot end it", err);
}

static const char OFF[] = "{\"enable_thinking\": false}", ON[] = "{\"enable_thinking\": true}";

/* *has_switch: the template has a switch for the thinking; without one, it is turned off by a budget of 0. */
static enum tutti_status find_switch(const tutti_model *model, const char *form, bool is_off,
                                     bool *has_switch, struct tutti_error *err)
{
    enum tutti_status st = prompt_depends(has_switch, model, OFF, ON, err);
    return st == TUTTI_OK && is_off && !*has_switch ? check_mark("thinking", form, model, err) : st;
}

bool thinking_is_on(const struct thinking_flags *flags)
{
    return flags->thinking && (strcmp(flags->thinking, "on") == 0 || strcmp(flags->thinking, "show") == 0);
}

bool thinking_is_off(const struct thinking_flags *flags)
{
    return flags->thinking && strcmp(flags->thinking, "off") == 0;
}

enum tutti_status thinking_flags_apply(const struct thinking_flags *flags, const tutti_model *model,
                                       struct buf *arguments, struct tutti_request *request,
                                       struct tutti_error *err)
{
    static const char *const NONE[] = { NULL };
    const struct option *given = options_first_given(THINKING_OPTIONS, flags, 0, NONE);
    bool is_off = thinking_is_off(flags), has_switch = false;
    struct tutti_model_info info;
    struct buf text = { 0 };
    enum tutti_status st = TUTTI_OK;
    tutti_model_info(model, &info);
    if (given && !info.reasoning_form)
        return refuse(given->name, model, "does not think: its chat template has no marks of thinking", err);
    if (is_off && (flags->effort || flags->budget >= 0)) {
        const char *other = flags->effort ? "reasoning-effort" : "thinking-budget";
        return error_set_param(err, TUTTI_E_ARGUMENT, other, "--%s has no effect with --thinking off", other);
    }
    bool is_no_effort = flags->effort &&
                        (strcmp(flags->effort, "none") == 0 || strcmp(flags->effort, "minimal") == 0);
    if (is_no_effort && flags->thinking && strcmp(flags->thinking, "on") == 0)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "thinking",
            "--thinking on contradicts --reasoning-effort %s, which turns the thinking off", flags->effort);
    if (flags->effort)
        st = check_effort(model, err);
    if (st == TUTTI_OK && flags->budget >= 0)
        st = check_mark("thinking-budget", info.reasoning_form, model, err);
    if (st == TUTTI_OK &&
        (is_off || (thinking_is_on(flags) && !flags->effort))) /* an effort says it already */
        st = find_switch(model, info.reasoning_form, is_off, &has_switch, err);
    bool ok = st != TUTTI_OK || (!has_switch && !flags->effort) ||
              (has_switch ? buf_add_string(&text, is_off ? OFF : ON)
                          : buf_printf(&text, "{\"reasoning_effort\": \"%s\"}", flags->effort));
    if (!ok)
        st = error_out_of_memory("the template's arguments", err);
    if (st != TUTTI_OK) {
        buf_clear(&text);
        return st;
    }
    buf_clear(arguments);
    *arguments = text;
    request->template_arguments = text.bytes;
    request->shows_marks = info.reasoning_form != NULL;
    request->max_reasoning_tokens = is_off && !has_switch ? TUTTI_NO_REASONING
                                    : flags->budget < 0   ? 0
                                    : flags->budget == 0  ? TUTTI_NO_REASONING
                                                          : flags->budget;
    return TUTTI_OK;
}

void thinking_print(bool *is_open, const char *text, size_t n_bytes)
{
    if (n_bytes == 0)
        return;
    if (!*is_open) {
        output_dim(true);
        output_printf("[thinking]\n");
    }
    *is_open = true;
    output_write(text, n_bytes);
}

void thinking_end(bool *is_open, size_t n_tokens)
{
    if (!*is_open)
        return;
    *is_open = false;
    output_printf("\n[thought for %zu token%s]\n", n_tokens, n_tokens == 1 ? "" : "s");
    output_dim(false);
    output_write("\n", 1);
}
