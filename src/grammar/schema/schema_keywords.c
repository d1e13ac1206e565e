/* The keywords of JSON Schema: one table says which are supported, how two values of a keyword are
 * merged, and which are refused. Ignoring an unsupported keyword would give invalid answers, so it
 * is refused by name. Keywords that are not in the table are annotations, as JSON Schema defines. */
#include "grammar/schema/schema_reader.h"

#include <string.h>

enum { NUMBERS = TYPE_NUMBER | TYPE_INTEGER };

static const struct schema_keyword KEYWORDS[] = {
    { "$ref", KEYWORD_COMBINES, 0, MERGE_NEVER },
    { "allOf", KEYWORD_COMBINES, 0, MERGE_NEVER },
    { "anyOf", KEYWORD_COMBINES, 0, MERGE_NEVER },
    { "oneOf", KEYWORD_COMBINES, 0, MERGE_NEVER },
    { "not", KEYWORD_COMBINES, 0, MERGE_LIST }, /* a list in flat schemas: strings that are not allowed */
    { "if", KEYWORD_COMBINES, 0, MERGE_NEVER },
    { "then", KEYWORD_WITH_IF, 0, MERGE_NEVER },
    { "else", KEYWORD_WITH_IF, 0, MERGE_NEVER },
    { "dependentSchemas", KEYWORD_COMBINES, 0, MERGE_NEVER },
    { "dependentRequired", KEYWORD_COMBINES, 0, MERGE_NEVER },
    { "dependencies", KEYWORD_COMBINES, 0, MERGE_NEVER },

    { "type", KEYWORD_RULES, 0, MERGE_TYPES },
    { "enum", KEYWORD_RULES, 0, MERGE_VALUES },
    { "const", KEYWORD_RULES, 0, MERGE_VALUES },
    { "properties", KEYWORD_RULES, TYPE_OBJECT, MERGE_MEMBERS },
    { "patternProperties", KEYWORD_RULES, TYPE_OBJECT, MERGE_MEMBERS },
    { "additionalProperties", KEYWORD_RULES, TYPE_OBJECT, MERGE_MEMBERS },
    { "propertyNames", KEYWORD_RULES, TYPE_OBJECT, MERGE_SCHEMAS },
    { "required", KEYWORD_RULES, TYPE_OBJECT, MERGE_REQUIRED },
    { "minProperties", KEYWORD_RULES, TYPE_OBJECT, MERGE_LARGER },
    { "maxProperties", KEYWORD_RULES, TYPE_OBJECT, MERGE_SMALLER },
    { "items", KEYWORD_RULES, TYPE_ARRAY, MERGE_ITEMS },
    { "prefixItems", KEYWORD_RULES, TYPE_ARRAY, MERGE_ITEMS },
    { "additionalItems", KEYWORD_RULES, TYPE_ARRAY, MERGE_ITEMS },
    { "minItems", KEYWORD_RULES, TYPE_ARRAY, MERGE_LARGER },
    { "maxItems", KEYWORD_RULES, TYPE_ARRAY, MERGE_SMALLER },
    { "contains", KEYWORD_RULES, TYPE_ARRAY, MERGE_CONTAINS },
    { "minContains", KEYWORD_RULES, TYPE_ARRAY, MERGE_CONTAINS },
    { "maxContains", KEYWORD_RULES, TYPE_ARRAY, MERGE_CONTAINS },
    { "uniqueItems", KEYWORD_RULES, TYPE_ARRAY, MERGE_EITHER },
    { "pattern", KEYWORD_RULES, TYPE_STRING, MERGE_LIST },
    { "format", KEYWORD_RULES, TYPE_STRING, MERGE_LIST },
    { "contentEncoding", KEYWORD_RULES, TYPE_STRING, MERGE_LIST },
    { "minLength", KEYWORD_RULES, TYPE_STRING, MERGE_LARGER },
    { "maxLength", KEYWORD_RULES, TYPE_STRING, MERGE_SMALLER },
    { "minimum", KEYWORD_RULES, NUMBERS, MERGE_LARGER },
    { "exclusiveMinimum", KEYWORD_RULES, NUMBERS, MERGE_LARGER },
    { "maximum", KEYWORD_RULES, NUMBERS, MERGE_SMALLER },
    { "exclusiveMaximum", KEYWORD_RULES, NUMBERS, MERGE_SMALLER },
    { "multipleOf", KEYWORD_RULES, NUMBERS, MERGE_MULTIPLE },

    { "unevaluatedProperties", KEYWORD_REFUSED, 0, MERGE_NEVER },
    { "unevaluatedItems", KEYWORD_REFUSED, 0, MERGE_NEVER },
    { "$dynamicRef", KEYWORD_REFUSED, 0, MERGE_NEVER },
    { "$recursiveRef", KEYWORD_REFUSED, 0, MERGE_NEVER },
    { "$id", KEYWORD_REFUSED, 0, MERGE_NEVER }, /* but of the whole schema: references would start from it */
};

const struct schema_keyword *schema_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof KEYWORDS / sizeof *KEYWORDS; i++)
        if (!strcmp(name, KEYWORDS[i].name))
            return &KEYWORDS[i];
    return NULL;
}

/* A value with which a refused keyword demands nothing. */
static bool demands_nothing(const struct schema_reader *r, const json_t *schema, const char *key,
                            const json_t *value)
{
    return (!strncmp(key, "unevaluated", strlen("unevaluated")) && json_is_true(value)) ||
           (!strcmp(key, "$id") && schema == r->root);
}

/* The values of keywords that are lists in flat schemas, but never in a client's. */
static bool check_value(struct schema_reader *r, const char *key, const json_t *value)
{
    if ((!strcmp(key, "pattern") || !strcmp(key, "format") || !strcmp(key, "contentEncoding")) &&
        !json_is_string(value))
        schema_fail(r, "%s must be a string", key);
    if (!strcmp(key, "not") && json_is_array(value))
        schema_fail(r, "a schema must be an object, true or false");
    return r->status == TUTTI_OK;
}

bool schema_check_keywords(struct schema_reader *r, const json_t *schema)
{
    enum { STEPS_PER_KEY = 4 };
    const char *key;
    json_t *value;
    if (!schema_spend(r, 1 + STEPS_PER_KEY * json_object_size(schema)))
        return false;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        const struct schema_keyword *keyword = schema_keyword(key);
        if (keyword && keyword->use == KEYWORD_REFUSED && !demands_nothing(r, schema, key, value)) {
            schema_fail(r, "the keyword \"%s\" is not supported", key);
            return false;
        }
        if (keyword && !check_value(r, key, value))
            return false;
    }
    return true;
}

bool schema_combines(const json_t *schema)
{
    for (size_t i = 0; KEYWORDS[i].use == KEYWORD_COMBINES || KEYWORDS[i].use == KEYWORD_WITH_IF; i++)
        if (KEYWORDS[i].use == KEYWORD_COMBINES && json_object_get(schema, KEYWORDS[i].name))
            return true;
    return false;
}

bool schema_says_more(const json_t *schema, const char *than)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        const struct schema_keyword *keyword = strcmp(key, than) ? schema_keyword(key) : NULL;
        if (keyword && keyword->use != KEYWORD_REFUSED && keyword->use != KEYWORD_WITH_IF)
            return true;
    }
    return false;
}

unsigned schema_infer_types(const json_t *schema)
{
    unsigned types = 0;
    for (size_t i = 0; i < sizeof KEYWORDS / sizeof *KEYWORDS; i++)
        if (KEYWORDS[i].types && json_object_get(schema, KEYWORDS[i].name))
            types |= KEYWORDS[i].types;
    return types ? types : TYPE_ANY;
}
