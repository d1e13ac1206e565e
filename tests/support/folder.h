/* A folder of its own for a test or a group of tests: setup and teardown of cmocka. */
#ifndef TEST_FOLDER_H
#define TEST_FOLDER_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[] = "/tmp/tutti-test-XXXXXX";

static inline int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/tutti-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int folder_remove_entry(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info, (void)kind, (void)ftw;
    return remove(path);
}

/* With all that is in it; links are not followed. */
static inline int remove_folder(void **state)
{
    (void)state;
    return nftw(folder, folder_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

#endif
