/* text_list.c - see text_list.h. */
#include "base/text_list.h"

#include "base/mem.h"

int text_set(char **field, const char *text)
{
    char *copy = NULL;

    if (text && !(copy = mem_strdup(text)))
        return MUSTER_ENOMEM;
    mem_free(*field);
    *field = copy;
    return 0;
}

int text_list_add(struct text_list *l, const char *text, size_t n)
{
    char **items =
        l->err ? NULL : mem_realloc_array(l->items, l->count + 2, sizeof *items);
    char *copy = NULL;

    if (items) {
        l->items = items;
        copy = items[l->count] = mem_strndup(text, n);
    }
    if (!copy)
        return l->err = MUSTER_ENOMEM;
    items[++l->count] = NULL;
    return 0;
}

int env_put(struct text_list *l, const char *name, const char *value)
{
    const size_t n = strlen(name);
    char *text = mem_printf("%s=%s", name, value);

    if (!text)
        return l->err = MUSTER_ENOMEM;
    for (size_t i = 0; i < l->count; i++)
        if (strncmp(l->items[i], name, n) == 0 && l->items[i][n] == '=') {
            mem_free(l->items[i]);
            l->items[i] = text;
            return l->err;
        }
    (void)text_list_add(l, text, strlen(text));
    mem_free(text);
    return l->err;
}

void text_list_fini(struct text_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        mem_free(l->items[i]);
    mem_free(l->items);
    *l = (struct text_list){ 0 };
}

const char *env_get(char *const *envp, const char *name)
{
    const size_t n = strlen(name);

    for (; envp && *envp; envp++)
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=')
            return *envp + n + 1;
    return NULL;
}
